"""Data sets as arrays: by name with checksums, or from the user's own files."""

from headway.data.arrays import Dataset
from headway.data.datasets import DATASETS, load

__all__ = ["DATASETS", "Dataset", "load"]

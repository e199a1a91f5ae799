"""The known data sets: catalogue, downloads, archives, file formats.

It may import headway.base and data.arrays.
"""

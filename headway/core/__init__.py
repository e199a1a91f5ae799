"""What methods are written with: pieces, recipes, the arguments of hooks, the grammar of recipes, the registry.

It may import models (torch-free parts), data and base. It does not import methods, which import it.
Importing it does not import torch; `torch` and `F` from here are the real modules, loaded at their first use.
"""

from typing import TYPE_CHECKING, Any

from headway.base.lazy import F, Tensor, torch
from headway.base.names import Names, everything, in_body, in_head, nothing
from headway.base.tree import Tree, mean
from headway.core.arrived import Arrived
from headway.core.compatibility import Setup
from headway.core.local import Batch, Local
from headway.core.phase import Phase, Step
from headway.core.piece import Grad, Piece
from headway.core.recipe import Recipe
from headway.core.setting import setting
from headway.core.state import Note, Notes, Report

if TYPE_CHECKING:
    from headway.models.net import Net
else:
    Net = Any  # for annotations; its module needs torch

__all__ = [
    "Arrived", "Batch", "F", "Grad", "Local", "Names", "Net", "Note", "Notes", "Phase", "Piece", "Recipe", "Report",
    "Setup", "Step", "Tensor", "Tree", "everything", "in_body", "in_head", "mean", "nothing", "setting", "torch",
]  # fmt: skip

"""The examples in the docstrings of public modules print what they show, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
from types import SimpleNamespace

import pytest
import torch

import headway
from headway import methods
from headway.base.names import everything
from headway.base.tree import Tree
from headway.core.arrived import Arrived
from headway.core.compatibility import Setup
from headway.core.local import Batch, Local
from headway.core.phase import Step
from headway.core.piece import HOOKS, Piece
from headway.core.state import Report
from headway.runs import search

HOMES = [getattr(getattr(headway, name), "__module__", home) for name, home in headway._HOMES.items() if name != "runs"]
MODULES = ["headway", *dict.fromkeys([*HOMES, "headway.runs.search", "headway.base.wording"])]


def pair(a: float, b: float) -> Tree:
    return Tree({"u": torch.tensor([float(a), float(b)])})


def world_of_hooks() -> dict[str, object]:
    """What the examples of the hooks are about; the docstring of `Piece` says it in words."""
    w, now = pair(1, 2), pair(0, 4)
    x, y = torch.eye(2), torch.tensor([0, 1])
    net = SimpleNamespace(classes=2, params=lambda: now, stats=Tree, embedding_of=lambda x: x)
    z = torch.tensor([[2.0, 0.0], [0.0, 1.0]])  # squared errors 1 and 0 over two classes
    local = Local(
        net, w, x, y, 3, 0.5, everything, {"c": pair(1, 1)}, {"c": pair(0, 0.5), "mu": torch.eye(2) * 2},
        step_weights=lambda pulled: Tree({"u": torch.tensor(2.0)}),
    )  # fmt: skip
    reports = [Report(k, 1 + 2 * k, 2, tree, Tree(), {}) for k, tree in enumerate((now, pair(2, 4)))]
    arrived = Arrived(w, reports, [0.25, 0.75], 4, 3, 0.5, {"h": pair(0, 0)}, w_new=pair(1.5, 4))
    return {
        "methods": methods, "recipe": headway.recipe, "torch": torch, "Setup": Setup, "Step": Step, "w": w, "net": net,
        "local": local, "batch": Batch(x, y, torch.tensor([[1.0, 0.0], [0.0, 2.0]]), z), "arrived": arrived,
        "grad": lambda: pair(0.5, 0.5), "rng": torch.Generator(),
    }  # fmt: skip


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    given = world_of_hooks() if name == "headway.core.piece" else None
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs=given, optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("name", sorted(set(headway.__all__) - {"Options", "Task", "Recipe"}))
def test_a_public_name_has_an_example(name):
    thing = search.runs if name == "runs" else getattr(headway, name)  # `headway.runs` is a package that can be called
    found = doctest.DocTestFinder().find(thing, name)
    assert sum(len(test.examples) for test in found) >= 1


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_an_example(hook):
    assert ">>> " in inspect.getdoc(getattr(Piece, hook))

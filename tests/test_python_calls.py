"""What Python code may hand to headway, and what it is told where that is wrong."""

from __future__ import annotations

import pytest
import torch
from run_files import DIGITS

import headway
from headway.base.errors import HeadwayError


def test_the_python_side_takes_what_it_gives(tmp_path):
    run = headway.run(headway.recipe("scaffold+fn"), out=tmp_path / "r", **DIGITS)
    assert headway.Run(str(run.path)).model()(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    table = headway.compare("fedavg", seeds=1, out=tmp_path / "c", **DIGITS)
    with pytest.raises(KeyError, match="there is no figure 'nope'"):
        table.rows[0].mean("nope")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"recipe": None}, "recipe=None: give text such as"),
        ({"recipe": "fedavg", "rounds": True}, "rounds must be a whole number"),
        ({"recipe": "fedavg", "data": ([1], [2])}, r"Dataset\.of"),
    ],
)
def test_python_mistakes_get_a_sentence(given, says, tmp_path):
    with pytest.raises(HeadwayError, match=says):
        headway.run(out=tmp_path / "r", **(DIGITS | given))


@pytest.mark.parametrize("name", ["data", "weights", "partition"])
def test_empty_values_are_refused_from_python_too(name, tmp_path):
    with pytest.raises(HeadwayError, match=f"{name}='': it is empty"):
        headway.run("fedavg", out=tmp_path / "r", **(DIGITS | {name: ""}))

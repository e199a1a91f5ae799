"""Drift: norms and cosines done by hand, and the runs they are measured on."""

from __future__ import annotations

import math

import pytest
import torch
from diagnosed import blobs, check_whole, finished, task_on

from headway.analysis.diagnostics import drift as module
from headway.analysis.diagnostics.drift import coarser, cosines, drift, layer_norms, relative, together
from headway.base.tree import Tree


def test_a_layer_is_one_vector() -> None:
    tree = Tree(
        {"body.fc.weight": torch.tensor([[3.0]]), "body.fc.bias": torch.tensor([4.0]), "head.weight": torch.ones(4)}
    )
    norms = layer_norms(tree)
    assert norms == {"body.fc": 5.0, "head": 2.0}  # sqrt(9 + 16), sqrt(4)
    assert together({"a": 3.0, "b": 4.0, "c": 1.0}, {"a": "x", "b": "x", "c": "y"}) == {"x": 5.0, "y": 1.0}


def test_relative_drift_and_a_layer_that_was_zero() -> None:
    found = relative([{"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 2.0}], [{"a": 2.0, "b": 0.0}, {"a": 2.0, "b": 4.0}])
    assert found["a"].tolist() == [0.5, 1.5]
    assert math.isnan(found["b"][0])
    assert found["b"][1] == 0.5


def test_cosines_by_hand() -> None:
    """(3, 4), (4, 3), (-6, -8) and one that did not move: (12 + 12) / 25 = 0.96."""
    found = cosines(torch.tensor([[3.0, 4.0], [4.0, 3.0], [-6.0, -8.0], [0.0, 0.0]]), block=1)
    assert found[0, 1] == pytest.approx(0.96)
    assert found[0, 2] == pytest.approx(-1.0)
    assert math.isnan(found[0, 3])


def test_names_are_shortened_until_they_fit() -> None:
    names = [f"body.layer{i}.{j}.conv" for i in range(3) for j in range(5)]
    assert len(set(coarser(names, 15).values())) == 15
    assert coarser(names, 14)[names[0]] == "body.layer0"
    assert set(coarser(names, 2).values()) == {"body"}


@pytest.mark.parametrize("recipe", ["fedavg", "fedper", "fedtc", "local", "lgfedavg", "scaffold"])
def test_on_a_run(recipe: str, tmp_path) -> None:
    subject = finished(recipe, tmp_path / "run")
    found = drift(subject)
    check_whole(found, tmp_path)
    assert all(row["moved"] >= 0 for row in found.tables["layers"])
    body = [row["relative"] for row in found.tables["layers"] if row["layer"].startswith("body.")]
    assert all(0 < v < 1 for v in body)
    held = {row["layer"].partition(".")[0]: row["held_by"] for row in found.tables["layers"]}
    assert held["body"] == ("the client" if recipe in ("local", "lgfedavg") else "all")


def test_drift_is_the_distance_to_what_the_server_sent(tmp_path) -> None:
    subject = finished("fedavg", tmp_path / "run")
    found = drift(subject)
    w = subject.saved.server.w
    for local in subject.local_models():
        moved = (local.net.head.weight.detach() - w["head.weight"]).square().sum()
        moved = moved + (local.net.head.bias.detach() - w["head.bias"]).square().sum()
        row = next(r for r in found.tables["layers"] if r["layer"] == "head" and r["client"] == local.client)
        assert row["moved"] == pytest.approx(float(moved.sqrt()), rel=1e-5)


def test_updates_that_rest_on_disk_are_the_same(tmp_path, monkeypatch) -> None:
    subject = finished("fedavg", tmp_path / "run")
    there = drift(subject).tables
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    assert drift(subject).tables == there


def test_one_client_alone(tmp_path) -> None:
    task = task_on(blobs(3), clients=1)
    found = drift(finished("fedavg", tmp_path / "run", task))
    assert found.summary["mean cosine of client updates"] is None
    check_whole(found, tmp_path)

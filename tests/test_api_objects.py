"""headway.run, compare and recipe with pieces and recipes as objects, some of a class that headway does not know."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from calling import SMALL_TASK, headway

import headway as fl
from headway.base.errors import CheckpointError, ConfigError, RecipeError
from headway.methods.fn import FN
from headway.methods.moon import Moon
from headway.methods.perfedavg import PerFedAvg
from headway.methods.prox import Prox
from headway.methods.scaffold import Scaffold

pytestmark = pytest.mark.usefixtures("in_tmp")


@dataclass(frozen=True)
class Shrink(fl.Piece):
    """A penalty on the logits that no paper proposes."""

    name, slot = "shrink", "reg"
    amount: float = fl.setting(0.01, "weight of the penalty", ge=0)

    def penalty(self, batch, local):
        return self.amount * batch.z.square().mean()


def model_bytes(folder) -> bytes:
    return Path(folder, "model.safetensors").read_bytes()


def rounds_of(folder) -> bytes:
    return Path(folder, "metrics.jsonl").read_bytes()


# ---- recipe
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (FN(), "fedavg+fn"),
        ([FN(), Scaffold()], "scaffold+fn"),
        ((Moon(mu=5.0), FN()), "fedavg+fn+moon(mu=5.0)"),
        ([fl.recipe("fedprox(mu=0.1)"), FN()], "fedavg+fn+prox(mu=0.1)"),
        (PerFedAvg(alpha=0.02), str(fl.recipe("perfedavg(alpha=0.02)"))),
        (Shrink(), "fedavg+shrink"),
        ([Shrink(amount=0.5), FN(), Prox()], "fedavg+fn+prox+shrink(amount=0.5)"),
    ],
)
def test_a_recipe_of_pieces_is_the_recipe_of_their_text(given, text):
    assert str(fl.recipe(given)) == text


def test_objects_are_kept_as_they_are():
    mine, moon = Shrink(amount=0.5), Moon(mu=5.0)
    pieces = fl.recipe([mine, moon]).pieces
    assert any(p is mine for p in pieces)
    assert any(p is moon for p in pieces)
    whole = fl.recipe("scaffold")
    assert fl.recipe(whole) is whole


def test_an_own_base_takes_the_place_of_fedavg():
    @dataclass(frozen=True)
    class Base(fl.Piece):
        name, slot = "mybase", "base"

    assert str(fl.recipe([Base(), FN()])) == "mybase+fn"
    with pytest.raises(RecipeError, match="both decide the base"):
        fl.recipe([Base(), Scaffold()])


@pytest.mark.parametrize("given", [3, None, [], ["fedavg"], [FN], {"fedavg"}])
def test_what_is_no_recipe_is_refused(given):
    with pytest.raises(ConfigError, match=r"^recipe=.*: give text such as 'scaffold\+fn', a piece, a list of pieces"):
        fl.recipe(given)


def test_a_piece_under_a_name_of_headway_is_refused():
    @dataclass(frozen=True)
    class Mine(FN):
        """Not headway's FN, and config.json could not tell the two apart."""

    with pytest.raises(RecipeError, match="fn: headway has another piece of that name; give Mine another name"):
        fl.recipe(Mine())


def test_an_own_piece_given_twice_with_other_settings_is_refused():
    with pytest.raises(RecipeError, match="shrink: it appears twice with different settings"):
        fl.recipe([Shrink(), Shrink(amount=0.5)])


# ---- run
def test_run_takes_text_recipe_piece_and_list_alike():
    text = fl.run("moon(mu=5)+fn", **SMALL_TASK, out="a")
    for out, given in (("b", fl.recipe("moon(mu=5)+fn")), ("c", [Moon(mu=5.0), FN()])):
        run = fl.run(given, **SMALL_TASK, out=out)
        assert model_bytes(run.path) == model_bytes(text.path)
        assert run.config["identity"] == text.config["identity"]
        assert run.config["objects"] == []


@pytest.mark.parametrize("workers", [1, 2])
def test_an_own_piece_trains_here_and_in_workers(workers):
    plain = fl.run("fedavg", **SMALL_TASK, out="a")
    nothing = fl.run([Shrink(amount=0.0)], **SMALL_TASK, out="b", workers=workers)
    run = fl.run(Shrink(amount=1.0), **SMALL_TASK, out="c", workers=workers)
    assert rounds_of(nothing.path) == rounds_of(plain.path)
    assert rounds_of(run.path) != rounds_of(plain.path)
    assert run.config["recipe"] == "fedavg+shrink(amount=1.0)"
    assert run.config["objects"] == ["recipe"]
    assert run.model()(run.task.dataset.x_test).shape == (80, 10)
    if workers == 2:
        alone = fl.run(Shrink(amount=1.0), **SMALL_TASK, out="d")
        assert model_bytes(run.path) == model_bytes(alone.path)


def unfinish(run) -> bytes:
    """The run as one that was stopped after its first round."""
    whole = model_bytes(run.path)
    for name in ("summary.json", "model.safetensors", "checkpoint/round-000002.json"):
        (run.path / name).unlink()
    return whole


def test_the_same_call_continues_a_stopped_run_of_an_own_piece():
    run = fl.run(Shrink(), **SMALL_TASK, out="a", checkpoint_seconds=0)
    whole = unfinish(run)
    fl.run(Shrink(), **SMALL_TASK, out="a")
    assert model_bytes("a") == whole


def test_resume_of_an_own_piece_says_what_is_missing():
    run = fl.run(Shrink(), **SMALL_TASK, out="a", checkpoint_seconds=0)
    unfinish(run)
    said = (
        "recipe=fedavg+shrink: the piece 'shrink' was a Python object, which cannot be built from config.json; "
        "repeat the same call of headway.run, which continues it"
    )
    with pytest.raises(CheckpointError) as caught:
        fl.resume(run.path)
    assert str(caught.value) == said
    end = headway("resume", "a")
    assert (end.code, end.err) == (2, f"headway: {said}\n")


def test_an_own_piece_on_a_cluster_is_refused_before_anything_is_written():
    with pytest.raises(ConfigError, match="engine=ray: the piece 'shrink' exists in this process alone"):
        fl.run(Shrink(), **SMALL_TASK, engine="ray")
    assert not Path("runs").exists()


# ---- compare
def test_compare_takes_text_and_objects_side_by_side():
    mine = [Shrink(amount=0.5), FN()]
    table = fl.compare(["fedavg", fl.recipe("fedprox"), FN(), mine], **SMALL_TASK | {"rounds": 1}, out="c")
    assert {row.recipe for row in table.rows} == {"fedavg", "fedprox", "fedavg+fn", "fedavg+fn+shrink(amount=0.5)"}
    again = json.loads(Path("c/leaderboard.json").read_text())
    assert len(again) == 4


def test_compare_takes_a_single_recipe_of_any_kind():
    for given in ("fedavg", fl.recipe("fedavg")):
        assert [row.recipe for row in fl.compare(given, **SMALL_TASK | {"rounds": 1}, out="c").rows] == ["fedavg"]


# ---- another process
def test_a_finished_run_of_an_own_piece_is_listed_and_reported_elsewhere():
    run = fl.run(Shrink(), **SMALL_TASK, out="runs/a")
    for words in (["runs"], ["report", str(run.path)]):
        end = subprocess.run([sys.executable, "-m", "headway", *words], capture_output=True, text=True, check=False)
        assert end.returncode == 0, end.stderr

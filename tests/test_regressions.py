"""Bugs that were found once: each by the smallest case that shows it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import calling
import numpy as np
import pytest
import torch
import toy

import headway
from headway import rounds
from headway.afterwards import calibrate
from headway.client import set_mode
from headway.diagnostics.accuracy import failure
from headway.engine import LocalEngine, PoolEngine
from headway.errors import HeadwayError
from headway.experiment import Progress
from headway.local import effective_steps
from headway.methods import recipe as parse
from headway.methods.fednova import FedNova
from headway.methods.ffc import FFC
from headway.piece import Piece
from headway.recipes import Recipe
from headway.state import Report
from headway.tree import Tree

ROOT = Path(__file__).parents[1]
DIGITS = {"data": "digits", "clients": 4, "partition": "dir(0.3)", "train_size": 200, "test_size": 100, "rounds": 2}


def test_under_batch_statistics_each_client_is_scored_on_its_own_tests_alone(tmp_path):
    run = headway.run("fedavg", out=tmp_path / "r", model="resnet8", bn="batch", **DIGITS)
    last = json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["personal_acc"] == pytest.approx(run.summary["personal"]["stages"]["received"])


@pytest.mark.parametrize("order", ["fo", "hf"])
def test_per_fedavg_steps_personal_parameters_by_beta_too(order):
    # a thousandth of the outer step moves body and head a thousandth as far
    def moved(beta):
        task = toy.two_clients(start=1.0)
        _, engine = toy.several(f"perfedavg(order={order},beta={beta})+fedper", task, 1)
        return [float((engine.store.get(0).personal["head.weight"] - torch.tensor([[1.0], [-1.0]])).norm())]

    assert moved(0.0001)[0] == pytest.approx(moved(0.1)[0] / 1000, rel=1e-2)


def test_proximal_steps_under_momentum_follow_the_recurrence():
    # rho 0.5, q 0.1, unit gradient: m = 1, d = 1; m = 0.5 + 1 - 0.1 = 1.4, d = 2.4; m = 0.7 + 1 - 0.24 = 1.46, d = 3.86
    assert effective_steps(3, 0.5, 0.1) == pytest.approx(3.86)
    assert effective_steps(3, 0.0, 0.1) == pytest.approx((1 - 0.9**3) / 0.1)  # plain SGD: the closed form
    assert effective_steps(3, 0.5, 1e-12) == pytest.approx(effective_steps(3, 0.5))


@pytest.mark.parametrize("recipe", ["fednova(mu=0.5)", "fednova+prox(mu=0.5)"])
def test_fednova_counts_the_pull_whoever_brings_it(recipe):
    _, reports, _ = toy.one_round(recipe, toy.two_clients(epochs=4, momentum=0.9))
    assert reports[0].sent["fednova"]["a"] == pytest.approx(effective_steps(4, 0.9, 0.1 * 0.5))


def test_fednova_sends_one_number_where_all_parameters_step_alike():
    _, reports, _ = toy.one_round("fednova", toy.two_clients(epochs=4))
    assert reports[0].sent["fednova"] == {"a": 4.0}


def test_fednova_takes_one_number_from_some_and_several_from_others():
    # under fedtc the head steps at a hundredth of the rate; a client that makes no step with it sends one number
    task = toy.skewed(6, train_size=300, momentum=0.9, partition="dir(0.05)")
    server, _ = toy.several("fednova+fedtc", task, 2)
    assert all(torch.isfinite(v).all() for v in server.w.values())
    w = Tree({"u": torch.tensor(0.0), "v": torch.tensor(0.0)})
    moved = Tree({"u": torch.tensor(1.0), "v": torch.tensor(1.0)})
    each = Tree({"u": torch.tensor(2.0), "v": torch.tensor(4.0)})
    sent = [{"a": 2.0}, {"a": each}]
    reports = [Report(k, 1, 1, moved, Tree(), s) for k, s in enumerate(sent)]
    new = FedNova().aggregate(w, reports, [0.5, 0.5])
    # u: tau_eff 2, mean of 1/2 and 1/2; v: tau_eff 3, mean of 1/2 and 1/4
    assert (new["u"].item(), new["v"].item()) == (1.0, pytest.approx(3 * 0.375))


class Faulty(Piece):
    name, slot = "faulty", "reg"

    def penalty(self, batch, local):
        raise ValueError("my own bug at batch 7")


def test_an_error_in_a_worker_reaches_the_run_as_it_is():
    task = toy.skewed(4, train_size=100)
    engine = PoolEngine(Recipe((*parse("fedavg").pieces, Faulty())), task, 2)
    try:
        with pytest.raises(ValueError, match="my own bug at batch 7") as caught:
            rounds.run(engine.recipe, task, engine, 1)
        assert "in penalty" in str(caught.value.__cause__)  # the worker's own traceback
    finally:
        engine.close()


def test_a_worker_that_dies_during_evaluation_is_replaced(monkeypatch):
    from headway.models import net as net_module

    monkeypatch.setattr(net_module.chunks, "__defaults__", (100,))
    task, recipe = toy.skewed(4, train_size=100), parse("fedavg")
    net = rounds.global_net(rounds.begin(recipe, task), recipe, task)
    engine = PoolEngine(recipe, task, 2)
    try:
        engine.workers[0].stop()
        engine.workers[0].pipe, theirs = __import__("multiprocessing").Pipe()
        theirs.close()
        with pytest.raises(OSError):
            engine.workers[0].pipe.send(1)
        engine._replace(0)
        toy.assert_same(engine.logits(task, net), LocalEngine().logits(task, net))
    finally:
        engine.close()


def test_calibration_traffic_is_part_of_the_megabytes(tmp_path):
    result = headway.compare(["fedavg", "fedavg+ccvr", "fedavg+ffc"], out=tmp_path / "c", **DIGITS)
    size = {row.recipe: row.mean("megabytes") for row in result.rows}
    assert size["fedavg+ccvr"] > size["fedavg"]
    assert size["fedavg+ffc"] > size["fedavg"]


def test_ffc_counts_half_of_its_symmetric_matrix():
    task = toy.skewed(2, train_size=40)
    net = task.net(parse("fedavg"))
    gram = FFC().survey(net, *task.data[0])["gram"]
    d, classes = task.dim, task.classes
    assert gram.nbytes() == 4 * (d * (d + 1) // 2 + d * classes)  # D16


def test_one_step_is_the_gradient_alone():
    # h = u x with u = 0: the classifier's gradient is 0, so whatever the weight decay it must not move
    task, recipe = toy.two_clients(weight_decay=10.0), parse("perfedavg(alpha=0.1)+one_step")
    server, engine = rounds.begin(recipe, task), LocalEngine()
    phases = rounds.personal_phases(recipe, task)
    (result,) = engine.personal(recipe, task, rounds.cast_of(server, recipe), [0], phases, True)
    assert result.tensors["head.weight"].flatten().tolist() == [1.0, -1.0]


@pytest.mark.parametrize(("compat", "awake"), [("true", True), ("false", False)])
def test_algorithm2_compat_leaves_batchnorm_awake_as_the_code_does(compat, awake):
    recipe = parse(f"fedetf+algorithm2(turns=1,compat={compat})")
    task = toy.task_of([[0.0, 1.0], [1.0, 0.0], [2.0, 5.0]], [0, 1, 1], [[0, 1, 2]], body=toy.Normed)
    net = task.net(recipe)
    modes = []
    for phase in rounds.personal_phases(recipe, task):
        set_mode(net.thaw(phase.thaws), phase, lone_sample=False)
        modes.append(net.body.bn.training)
    assert modes == [True, awake, awake]


def test_the_memory_acts_under_dot_regression_too():
    plain, lifted = "etfproj+dotreg", "etfproj+dotreg+gmv(warmup=1,alpha=5,space=raw)"
    task = toy.skewed(3, train_size=90)
    a, b = (toy.several(text, task, 3)[0].w for text in (plain, lifted))
    assert any(not torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("recipe", "told"), [("fedper", True), ("fedrod", False), ("fedtc", False)])
def test_the_mean_of_personal_heads_is_told_where_it_predicts(recipe, told, tmp_path):
    run = headway.run(recipe, out=tmp_path / "r", **DIGITS)
    assert ("global_acc_mean_of_personal" in run.summary) == told


def test_overwriting_a_run_removes_what_was_made_of_the_old_one(tmp_path):
    run = headway.run("fedavg", out=tmp_path / "r", **DIGITS)
    calibrate(run.path, "ccvr(epochs=1)")
    assert (run.path / "calibrated").exists()
    headway.run("scaffold", out=tmp_path / "r", overwrite=True, **DIGITS)
    assert not (tmp_path / "r" / "calibrated").exists()


def test_a_run_without_a_global_model_fails_by_its_personal_accuracy():
    rows = [{"round": t, "diverged": False, "global_acc": None, "personal_acc": 0.1} for t in range(1, 51)]
    assert "chance" in failure(rows, 10, "personal_acc")
    seldom = [{"round": t, "diverged": False, "global_acc": 0.1} for t in (25, 50)]  # evaluated twice in 50 rounds
    assert "chance" in failure(seldom, 10)
    assert failure([{"round": t, "diverged": False, "global_acc": 0.1} for t in (1, 2)], 10) is None  # just begun


@pytest.mark.parametrize(
    ("recipe", "says"),
    [("fedper+gmv(space=raw,warmup=1)", "personal"), ("fn+clsnorm", "underfit"), ("fn+etf", "underfit")],
)
def test_doubtful_sums_come_with_advice(recipe, says):
    parsed = parse(recipe)
    assert says in " ".join(parsed.advise(parsed, 20, 0.1))


def test_fednhs_prototypes_start_on_the_server():
    recipe, task = parse("fednh"), toy.skewed(3, train_size=90)
    server = rounds.begin(recipe, task)
    toy.assert_same(server.kept["proto"]["W"], task.net(recipe).frozen()["head.weight"])
    _, reports, _ = toy.one_round(recipe, task)
    assert sorted(reports[0].sent["proto"]) == ["mu", "n"]


def test_a_body_that_is_too_narrow_is_named_with_its_data(tmp_path):
    with pytest.raises(HeadwayError, match=r"\(model=resnet20, data=cifar100\)"):
        headway.run("etf", data="cifar100", model="resnet20", out=tmp_path / "r")


def test_a_path_that_is_no_run_is_not_told_to_resume(tmp_path):
    with pytest.raises(HeadwayError, match=r"it has no config\.json"):
        calibrate(tmp_path / "nope", "ccvr")


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    assert {re.split(r"[<>=\[]", d)[0].lower() for d in named} - {project["name"]} <= pinned


def test_the_readme_shows_what_explain_prints():
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```\n\$ (headway explain [^\n]+)\n(.*?)```", text, flags=re.S)
    assert blocks
    for command, shown in blocks:
        words = [sys.executable, "-m", *shlex.split(command)]
        printed = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        assert [line.rstrip() for line in printed.splitlines()] == [line.rstrip() for line in shown.splitlines()]


# ---- what a user's folder holds is theirs
def test_overwrite_never_touches_a_folder_that_holds_no_run(tmp_path):
    out = tmp_path / "mine"
    (out / "clients").mkdir(parents=True)
    (out / "clients" / "list.txt").write_text("mine")
    (out / "config.json").write_text('{"my": 1}')
    with pytest.raises(HeadwayError, match=r"config\.json is not headway's"):
        headway.run("fedavg", out=out, overwrite=True, **DIGITS)
    assert (out / "config.json").read_text() == '{"my": 1}'
    (out / "config.json").unlink()
    (out / "c0").mkdir()
    with pytest.raises(HeadwayError, match="holds no run"):
        headway.run("fedavg", out=out, overwrite=True, **DIGITS)


def test_overwrite_of_a_run_leaves_foreign_files_in_its_folders(tmp_path):
    run = headway.run("fedper", out=tmp_path / "r", **DIGITS)
    (run.path / "clients" / "notes.txt").write_text("mine")
    headway.run("fedavg", out=tmp_path / "r", overwrite=True, **DIGITS)
    assert [p.name for p in (tmp_path / "r" / "clients").iterdir()] == ["notes.txt"]


def net_of_width(width):
    class Net(torch.nn.Sequential):
        def __init__(self, classes=10):
            layers = (torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
            super().__init__(torch.nn.Flatten(), *layers)

    return Net


def test_another_model_under_the_same_name_is_another_run(tmp_path):
    headway.run("fedavg", model=net_of_width(8), out=tmp_path / "r", **DIGITS)
    headway.run("fedavg", model=net_of_width(8), out=tmp_path / "r", **DIGITS)
    with pytest.raises(HeadwayError, match="has changed since"):
        headway.run("fedavg", model=net_of_width(64), out=tmp_path / "r", **DIGITS)


def test_another_runs_difference_is_told_from_both_sides(tmp_path):
    headway.run("fedavg", out=tmp_path / "r", **DIGITS)
    with pytest.raises(HeadwayError, match=r"rounds: 2 there, 3 here"):
        headway.run("fedavg", out=tmp_path / "r", **(DIGITS | {"rounds": 3}))


def test_a_summarys_figures_are_those_of_the_saved_model(tmp_path):
    summary = headway.run("fedavg+ccvr", out=tmp_path / "r", **DIGITS).summary
    after = summary["calibrated"]
    assert summary["global_acc"] == after["after"]
    assert (summary["global_loss"], summary["balanced_acc"]) == (after["loss"], after["balanced_acc"])
    assert after["balanced_acc_before"] != after["balanced_acc"]


# ---- Python
def test_the_python_side_takes_what_it_gives(tmp_path):
    run = headway.run(headway.recipe("scaffold+fn"), out=tmp_path / "r", **DIGITS)
    assert headway.Run(str(run.path)).model()(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    table = headway.compare("fedavg", seeds=1, out=tmp_path / "c", **DIGITS)
    with pytest.raises(KeyError, match="there is no figure 'nope'"):
        table.rows[0].mean("nope")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"recipe": None}, "give a recipe as text"),
        ({"recipe": "fedavg", "rounds": True}, "rounds must be a whole number"),
        ({"recipe": "fedavg", "data": ([1], [2])}, r"Dataset\.of"),
    ],
)
def test_python_mistakes_get_a_sentence(given, says, tmp_path):
    with pytest.raises(HeadwayError, match=says):
        headway.run(out=tmp_path / "r", **(DIGITS | given))


def test_arrays_become_a_data_set():
    x = torch.randn(60, 5)
    data = headway.Dataset.of(x, torch.arange(60) % 3, group=torch.arange(60) % 4)
    assert (data.classes, data.shape, len(data.y) + len(data.y_test)) == (3, (5,), 60)
    assert data.group is not None


# ---- damage
def test_a_finished_run_with_a_damaged_model_is_made_whole_again(tmp_path):
    run = headway.run("scaffold", out=tmp_path / "r", **DIGITS)
    whole = (run.path / "model.safetensors").read_bytes()
    (run.path / "model.safetensors").write_bytes(whole[:50])
    headway.resume(run.path)
    assert (run.path / "model.safetensors").read_bytes() == whole


def test_a_run_that_lost_all_checkpoints_says_so(tmp_path):
    run = headway.run("fedavg", out=tmp_path / "r", **DIGITS)
    (run.path / "summary.json").unlink()
    for path in (run.path / "checkpoint").glob("*.json"):
        path.write_text("[]")

    class Hearing(Progress):
        said: list[str] = []  # noqa: RUF012

        def say(self, text):
            self.said.append(text)

    headway.resume(run.path, headway.Options(progress=Hearing()))
    assert any("starts again at round 1" in text for text in Hearing.said)


def test_an_instance_starts_from_its_own_classifier_bias_too(tmp_path):
    net = net_of_width(8)()
    run = headway.run("fedavg", model=net, lr=1e-12, out=tmp_path / "r", **DIGITS)
    assert torch.allclose(run.model().head.bias, net[-1].bias)


@pytest.mark.parametrize("name", ["data", "weights", "partition"])
def test_empty_values_are_refused_from_python_too(name, tmp_path):
    with pytest.raises(HeadwayError, match=f"{name}='': it is empty"):
        headway.run("fedavg", out=tmp_path / "r", **(DIGITS | {name: ""}))


def test_a_finished_request_says_that_it_runs_again(tmp_path):
    heard = []

    class Hearing(Progress):
        def say(self, text):
            heard.append(text)

    for _ in range(2):
        headway.run("fedavg", out=tmp_path / "r", options=headway.Options(progress=Hearing()), **DIGITS)
    assert sum("runs again" in text for text in heard) == 1
    assert headway.resume(str(tmp_path / "r")).done


def test_the_word_none_stays_a_word_where_a_setting_knows_it(tmp_path):
    """`--set augment=none` was taken for no value at all and refused."""
    done = calling.headway("run", "fedavg", *calling.SMALL, "--set", "augment=none", "--json", "--out", tmp_path / "r")
    assert done.code == 0, done.err


def test_classes_that_no_training_sample_has_are_told(tmp_path):
    """Labels 0, 1, 2 and 9 make ten classes, of which a user may not know."""
    rng = np.random.default_rng(0)
    y = np.array([0, 1, 2, 9] * 30)
    np.savez(tmp_path / "gaps.npz", x=rng.normal(size=(120, 4)), y=y, x_test=rng.normal(size=(40, 4)), y_test=y[:40])
    end = calling.headway(
        "run", "fedavg", f"--data={tmp_path / 'gaps.npz'}", "--clients=2", "--rounds=1", f"--out={tmp_path / 'a'}"
    )
    assert end.code == 0, end.err
    assert "no training sample of class 3, 4, 5, 6, 7 and 1 more" in end.err

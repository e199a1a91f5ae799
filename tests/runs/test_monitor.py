"""Live watching: it changes no bit of a run, goes on after a stop, and its figures are those of the models."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from calling import SMALL, headway
from toy import skewed

from headway.analysis.diagnostics.subject import Subject
from headway.base.errors import ConfigError
from headway.base.tree import Tree
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.metrics.local_statistics import statistics_of
from headway.runs.directory import read_table
from headway.runs.monitor import Watcher, drift_figures, evenly, rounded, scales
from headway.runs.options import watch_names
from headway.runs.run import Run
from headway.runs.runner import Options, Progress, Stopped, execute, resume
from headway.runs.tracking import Trackers, numbers
from headway.runs.watched import WATCHED
from headway.training import rounds
from headway.training.client import train_client
from headway.training.nets import kept
from headway.training.settings import settings

TASK = {"clients": 3, "rounds": 3, "train_size": 150, "test_size": 60, "model": "mlp_small", "partition": "dir(0.1)"}


def ran(text: str, out: Path, watch: str = "", progress: Progress | None = None, **given) -> Run:
    options = Options(watch=watch or (), checkpoint_seconds=0.0, progress=progress or Progress())
    return execute(text, settings({**TASK, **given}), out, options)


# ---- the law: it looks and never touches
@pytest.mark.parametrize(
    "text", ["fedavg", "fedetf", "fedtc", "local", "fednh", "fedrod(private=hyper)", "scaffold+fn"]
)
def test_a_watched_run_is_the_unwatched_one(tmp_path, text: str) -> None:
    given = {"sampling": 0.7, "persist_momentum": text == "fedetf"}
    plain, watched = ran(text, tmp_path / "a", **given), ran(text, tmp_path / "b", "all", **given)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (plain.path / name).read_bytes() == (watched.path / name).read_bytes(), name
    assert not (plain.path / "watch.jsonl").exists()
    assert len(read_table(watched.path / "watch.jsonl")) == 3


def test_a_body_with_running_statistics_is_left_alone_too(tmp_path) -> None:
    given = {"model": "resnet20", "train_size": 24, "test_size": 12, "rounds": 2, "batch_size": 4, "data": "digits"}
    plain, watched = ran("fedavg", tmp_path / "a", **given), ran("fedavg", tmp_path / "b", "all", **given)
    assert (plain.path / "model.safetensors").read_bytes() == (watched.path / "model.safetensors").read_bytes()


class StopAfter(Progress):
    """Ctrl-C in the middle of the round after this one."""

    def __init__(self, done: int):
        self.done, self.at = done, 0

    def round(self, row) -> None:
        self.at = row["round"]

    def client(self, done: int, total: int) -> None:
        if self.at == self.done and done == 1:
            os.kill(os.getpid(), signal.SIGINT)


def test_resumed_is_straight(tmp_path) -> None:
    straight = ran("fedtc", tmp_path / "a", "all")
    with pytest.raises(Stopped):
        ran("fedtc", tmp_path / "b", "all", StopAfter(1))
    table = tmp_path / "b" / "watch.jsonl"
    assert len(read_table(table)) == 1
    with open(table, "a") as f:  # a line that was written after the checkpoint, by a process killed in the next round
        f.write('{"round": 2, "ha')
    resume(tmp_path / "b")
    for name in ("metrics.jsonl", "watch.jsonl", "model.safetensors"):
        assert (straight.path / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_the_same_request_again_goes_on_watching(tmp_path) -> None:
    straight = ran("fedavg", tmp_path / "a", "drift")
    with pytest.raises(Stopped):
        ran("fedavg", tmp_path / "b", "drift", StopAfter(1))
    ran("fedavg", tmp_path / "b")  # without asking for it: the run began watched
    assert (straight.path / "watch.jsonl").read_bytes() == (tmp_path / "b" / "watch.jsonl").read_bytes()


def test_a_checkpoint_of_before_watching_is_continued(tmp_path) -> None:
    with pytest.raises(Stopped):
        ran("fedavg", tmp_path / "b", "", StopAfter(1))
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert "watch" not in config["options"]
    config["options"]["watch"] = ["drift"]
    (tmp_path / "b" / "config.json").write_text(json.dumps(config))
    resume(tmp_path / "b")
    assert [row["round"] for row in read_table(tmp_path / "b" / "watch.jsonl")] == [2, 3]


def test_only_evaluated_rounds_are_watched(tmp_path) -> None:
    run = ran("fedavg", tmp_path / "a", "collapse", rounds=5, eval_every=2)
    assert [row["round"] for row in read_table(run.path / "watch.jsonl")] == [2, 4, 5]


def test_overwrite_takes_the_old_table_away(tmp_path) -> None:
    ran("fedavg", tmp_path / "a", "drift")
    execute("fedprox", settings(TASK), tmp_path / "a", Options(overwrite=True))
    assert not (tmp_path / "a" / "watch.jsonl").exists()


# ---- what is measured
def test_columns_of_a_watched_round(tmp_path) -> None:
    row = read_table(ran("fedetf", tmp_path / "a", "all").path / "watch.jsonl")[-1]
    assert {"weight_id", "weight_ood", "weight_global", "feature_id", "feature_ood", "feature_global", "nc_error",
            "nc_error_seen", "consistency", "classifier_cosine", "drift_body", "drift_head", "update_cosine",
            "temperature", "temperature_global", "steps"} <= set(row)  # fmt: skip
    assert set(row["temperature"]) == {"0", "1", "2"}
    assert row["weight_global"] == pytest.approx(1)  # a frozen frame of unit vectors
    assert row["classifier_cosine"] == pytest.approx(1)
    assert row["temperature_mean"] == pytest.approx(sum(row["temperature"].values()) / 3)


@pytest.mark.parametrize("text", ["fedper", "fedavg"])
def test_the_global_classifier_is_the_mean_of_personal_ones(tmp_path, text: str) -> None:
    run = ran(text, tmp_path / "a", "norms")
    head = Subject.of(run.path).head  # fedper: the mean of what the clients keep; its server never trains a head
    wanted = head.weight.double().norm(dim=1).mean().item()
    assert read_table(run.path / "watch.jsonl")[-1]["weight_global"] == pytest.approx(wanted)


def test_classifiers_of_every_client(tmp_path) -> None:
    run = ran("fedavg", tmp_path / "a", "classifiers")
    rows = read_table(run.path / "watch.jsonl")
    assert [set(row) for row in rows] == [{"round", "classifiers"}] * 3
    subject = Subject.of(run.path)
    for row in rows:
        assert list(row["classifiers"]) == ["0", "1", "2"]
        assert [seen["counts"] for seen in row["classifiers"].values()] == subject.counts.tolist()
        assert all(len(seen["norms"]) == 10 for seen in row["classifiers"].values())
    assert rows[0]["classifiers"]["0"]["norms"] != rows[2]["classifiers"]["0"]["norms"]


def test_norms_are_watched_to_five_digits() -> None:
    # ||(3, 4)|| = 5, ||(1, 1)|| = sqrt(2) = 1.41421356..
    assert rounded(torch.tensor([[3.0, 4.0], [1.0, 1.0]]).norm(dim=1)) == [5.0, 1.4142]
    assert rounded(torch.tensor([12345.678, 0.00012345678])) == [12346.0, 0.00012346]


def test_a_fixed_classifier_is_not_watched(tmp_path) -> None:
    assert set(read_table(ran("fedetf", tmp_path / "a", "classifiers").path / "watch.jsonl")[-1]) == {"round"}


# ---- what goes wrong with it
class Listening(Progress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_a_look_that_fails_ends_watching_and_not_the_run(tmp_path, monkeypatch) -> None:
    plain = ran("fedavg", tmp_path / "a")
    look = Watcher.look

    def broken(self, server, cast, reports):
        if server.round == 2:
            raise RuntimeError("shapes\ndo not match")
        return look(self, server, cast, reports)

    monkeypatch.setattr(Watcher, "look", broken)
    heard = Listening()
    watched = ran("fedavg", tmp_path / "b", "drift", heard)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (plain.path / name).read_bytes() == (watched.path / name).read_bytes(), name
    assert [row["round"] for row in read_table(watched.path / "watch.jsonl")] == [1]
    told = [text for text in heard.said if "watching" in text]
    assert told == ["warning: watching stopped at round 2 and the run goes on (RuntimeError: shapes do not match)"]


def test_trackers_hear_what_is_watched(tmp_path, monkeypatch) -> None:
    heard = []
    monkeypatch.setattr(Trackers, "round", lambda self, row: heard.append(dict(numbers(row))))
    rows = read_table(ran("fedavg", tmp_path / "a", "drift,steps,classifiers").path / "watch.jsonl")
    assert [row["drift_body"] for row in heard] == [row["drift_body"] for row in rows]
    assert heard[0]["steps/1"] == rows[0]["steps"]["1"]
    assert heard[0]["train_loss"] > 0
    assert not any("classifiers" in name for name in heard[0])  # hundreds of numbers a round are no curves


def test_the_servers_own_trace_comes_along(tmp_path) -> None:
    run = ran("fedexp", tmp_path / "a", "steps")
    rows = read_table(run.path / "watch.jsonl")
    assert [row["fedexp.eta_g"] for row in rows] == [row["trace"]["fedexp.eta_g"] for row in run.metrics]
    assert set(rows[0]) == {"round", "steps", "fedexp.eta_g"}


def test_without_a_global_model_there_is_nothing_global(tmp_path) -> None:
    row = read_table(ran("local", tmp_path / "a", "all").path / "watch.jsonl")[-1]
    assert row["nc_error"] is row["weight_global"] is row["drift_body"] is None
    assert row["weight_id"] > 0
    assert "temperature" not in row


@pytest.mark.parametrize("text", ["fedavg", "fedtc", "fedper", "fednh", "fedrod(private=hyper)"])
def test_local_models_are_those_that_were_trained(text: str) -> None:
    task, recipe = skewed(3, train_size=150, test_size=60), parse(text)
    engine = LocalEngine()
    server, _, _ = rounds.run_round(rounds.begin(recipe, task), recipe, task, engine)
    cast = rounds.cast_of(server, recipe)
    before = {k: engine.client(recipe, task, cast, k) for k in range(3)}
    server, cast, reports = rounds.run_round(server, recipe, task, engine)
    watcher = Watcher(recipe, task, engine.store, ("norms",))
    for report in reports:
        k = report.client
        seen = watcher.statistics(cast, report)
        train_client(recipe, task, cast, before[k], own_memory=False)
        net = kept(task, f"working {json.dumps(recipe.head(), sort_keys=True)}", lambda: task.net(recipe)).eval()
        wanted = statistics_of(net, k, seen.counts, task.data[k], watcher.test)
        for name in ("rows", "raw", "seen", "norm_sums"):
            assert torch.equal(getattr(seen, name).nan_to_num(), getattr(wanted, name).nan_to_num()), (k, name)


def test_drift_by_hand() -> None:
    # body moves: (3, 4) and (0, 5): 5 and 5; head: 0 and 12: mean 6. whole: <a, b> = 20, |a| = 5, |b| = 13
    start = Tree({"body.u": torch.zeros(2), "head.weight": torch.ones(1)})
    ends = {
        0: Tree({"body.u": torch.tensor([3.0, 4.0]), "head.weight": torch.tensor([1.0])}),
        7: Tree({"body.u": torch.tensor([0.0, 5.0]), "head.weight": torch.tensor([13.0])}),
    }
    found = drift_figures(start, ends)
    assert found == {"drift_body": 5.0, "drift_head": 6.0, "update_cosine": pytest.approx(20 / (5 * 13))}


def test_drift_of_large_tensors_is_summed_in_parts(monkeypatch) -> None:
    monkeypatch.setattr("headway.runs.monitor.COLUMNS", 3)
    start = Tree({"body.u": torch.zeros(10)})
    found = drift_figures(start, {0: Tree({"body.u": torch.ones(10)}), 1: Tree({"body.u": -torch.ones(10)})})
    assert found["drift_body"] == pytest.approx(math.sqrt(10))
    assert found["drift_head"] is None
    assert found["update_cosine"] == pytest.approx(-1)


def test_nothing_shared_does_not_drift() -> None:
    assert set(drift_figures(Tree(), {0: Tree()}).values()) == {None}


def test_temperatures_are_learned_scales_of_heads() -> None:
    assert scales(Tree({"head.scale": torch.tensor(2.0), "body.scale": torch.tensor(3.0)})) == [2.0]


def test_the_cost_is_limited() -> None:
    assert list(evenly(5, 20)) == [0, 1, 2, 3, 4]
    assert len(evenly(10_000, 2000)) == len(set(evenly(10_000, 2000))) == 2000
    assert list(evenly(0, 20)) == []


# ---- how it is asked for
def test_names() -> None:
    assert watch_names("all") == WATCHED
    assert watch_names("drift, norms") == watch_names(["norms", "drift"]) == ("norms", "drift")
    assert watch_names(()) == ()
    with pytest.raises(ConfigError, match=r"watch=norm: nothing of that name can be watched; did you mean 'norms'\?"):
        watch_names("norm")
    with pytest.raises(ConfigError, match="watch='': "):
        watch_names("norms,")


def test_the_command(tmp_path) -> None:
    end = headway("run", "fedavg", *SMALL, f"--out={tmp_path / 'a'}", "--watch=drift,collapse")
    assert end.code == 0
    assert Run(tmp_path / "a").config["options"]["watch"] == ["collapse", "drift"]
    assert len(read_table(tmp_path / "a" / "watch.jsonl")) == 2
    end = headway("run", "fedavg", *SMALL, f"--out={tmp_path / 'b'}", "--watch=drifts")
    assert end.code == 2
    assert end.err == "headway: watch=drifts: nothing of that name can be watched; did you mean 'drift'?\n"
    assert not (tmp_path / "b").exists()
    assert "watch=''" in headway("run", "fedavg", *SMALL, "--watch=").err

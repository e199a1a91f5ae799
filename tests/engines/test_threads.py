"""Workers have one thread each and bits depend on threads: the two are never mixed within a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import headway as fl
from headway.base.errors import ConfigError
from headway.engines import PoolEngine, choice
from headway.methods import recipe as parse
from headway.runs.directory import read_json
from headway.runs.runner import Options
from headway.training.settings import settings
from headway.training.task import build

TASK = {"clients": 3, "rounds": 3, "train_size": 150, "test_size": 60, "model": "mlp_small"}


@pytest.fixture(autouse=True)
def one_thread_again():
    yield
    torch.set_num_threads(1)


@pytest.fixture
def engines(monkeypatch) -> list[str]:
    """The engines that runs took, where any round is worth workers."""
    taken: list[str] = []
    real = choice.engine_for

    def noted(*args):
        taken.append(type(made := real(*args)).__name__)
        return made

    monkeypatch.setattr(choice, "WORTH_WORKERS", 0)
    monkeypatch.setattr("headway.runs.runner.engine_for", noted)
    monkeypatch.setattr("headway.base.machine.cores", lambda: 2)
    return taken


@pytest.mark.parametrize(
    ("threads", "workers", "engine", "settled"),
    [
        (1, None, "local", None),
        (1, "auto", "local", None),
        (1, 3, "local", 3),
        (2, None, "local", 1),
        (2, "auto", "local", 1),
        (2, 1, "local", 1),
        (2, 3, "ray", 3),
        (2, "auto", "ray", None),
    ],
)
def test_workers_beside_threads(threads, workers, engine, settled) -> None:
    assert Options(threads=threads, workers=workers, engine=engine).workers == settled


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize("workers", [0, -1, 1.5, "two", True])
def test_what_is_no_number_of_workers_is_refused(workers) -> None:
    with pytest.raises(ConfigError, match=f"^workers={workers}: .* use auto or a whole number from 1$"):
        fl.run("fedavg", **TASK, workers=workers, out="a")


@pytest.mark.usefixtures("in_tmp")
def test_several_of_both_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^workers=2: workers have one thread each and threads=2; give one"):
        fl.run("fedavg", **TASK, threads=2, workers=2, out="a")


def test_a_run_of_two_threads_goes_on_without_workers(tmp_path, monkeypatch, engines) -> None:
    monkeypatch.chdir(tmp_path)
    run = fl.run("fedavg", **TASK, threads=2, out="a", checkpoint_seconds=0)
    whole = (run.path / "model.safetensors").read_bytes()
    for again in (
        lambda: fl.resume(run.path, Options(workers=None)),
        lambda: fl.run("fedavg", **TASK, workers="auto", out="a"),
    ):
        for name in ("summary.json", "model.safetensors", "checkpoint/round-000003.json"):
            (run.path / name).unlink()
        again()
        assert (run.path / "model.safetensors").read_bytes() == whole
        assert read_json(run.path / "config.json")["options"]["threads"] == 2
    assert engines == ["LocalEngine"] * 3
    (run.path / "summary.json").unlink()
    with pytest.raises(ConfigError, match=r"^workers=2: workers have one thread each and threads=2"):
        fl.resume(run.path, Options(workers=2))


def test_auto_takes_workers_where_threads_are_one(tmp_path, monkeypatch, engines) -> None:
    monkeypatch.chdir(tmp_path)
    fl.run("fedavg", **TASK, workers="auto", out="a")
    assert engines == [PoolEngine.__name__]


@pytest.mark.parametrize(
    ("model", "more", "worth"),
    [
        ("mlp_small", {"clients": 5, "train_size": 100, "test_size": 100}, False),
        ("mcmahan_cnn_padded", {"clients": 5}, True),  # 1,438 images of about 5 million multiplications
        ("mcmahan_cnn_padded", {"clients": 5, "rounds": 1, "train_size": 50, "test_size": 50}, False),
        ("mlp_small", {"clients": 100, "rounds": 20}, True),  # each client costs time of its own
        ("mlp_small", {"clients": 100, "rounds": 2}, False),
    ],
)
def test_rounds_that_gain_from_workers(model, more, worth) -> None:
    task = build(settings({"data": "digits", "model": model, **more}))
    assert choice.worth_workers(parse("fedavg"), task, task.everyone()) is worth


def test_the_evaluation_counts_too() -> None:
    """Ten clients a round of two images each: the test set is most of the work."""
    small = {"data": "digits", "model": "mcmahan_cnn_padded", "clients": 100, "sampling": 0.02, "rounds": 200}
    each, seldom = (build(settings(small | {"eval_every": n})) for n in (1, 200))
    recipe = parse("fedavg")
    assert choice.worth_workers(recipe, each, each.sampling(0))
    assert not choice.worth_workers(recipe, seldom, seldom.sampling(0))


def test_many_small_clients_that_train_alone_gain_from_workers() -> None:
    task = build(settings({"data": "digits", "model": "mlp_small", "clients": 500, "partition": "iid", "rounds": 20}))
    together, alone = parse("fedavg"), parse("moon")
    assert not choice.worth_workers(together, replace(task, cohort=256), task.everyone())
    assert choice.worth_workers(alone, replace(task, cohort=256), task.everyone())

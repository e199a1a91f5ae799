"""Runs with native code: by default where it is worth compiling, recorded, the same for any number of workers."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import headway
from headway.base.errors import ConfigError
from headway.data import Dataset
from headway.engines import LocalEngine
from headway.engines.pool import PoolEngine
from headway.methods import recipe as parse
from headway.models.native import build as building
from headway.runs.runner import Options
from headway.training import defaults, rounds
from headway.training.settings import settings
from headway.training.task import build

needs_compiler = pytest.mark.skipif(building.compiler() is None, reason="native code is built by a C++ compiler")
DRAW = np.random.RandomState(0)
IMAGES, LABELS = DRAW.randint(0, 255, (96, 3, 16, 16), dtype=np.uint8), np.arange(96) % 10
TASK = {"clients": 3, "partition": "iid", "batch_size": 8, "rounds": 2, "sampling": 1.0, "lr": 0.02}


class Tutorial(nn.Module):
    """A network as most are written: functions between layers, and `view`, which refuses channels last."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.norm, self.fc = nn.BatchNorm2d(32), nn.Linear(32 * 16, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.norm(self.conv2(x))), 2)
        return self.fc(x.view(-1, 32 * 16))


def data() -> Dataset:
    return Dataset.of(IMAGES, LABELS, IMAGES[:30], LABELS[:30])


def task(model: object = Tutorial, **more):
    name = model if isinstance(model, str) else "own"
    s = settings({**TASK, "data": "own", "model": name, **more})
    return build(s, dataset=data(), model=None if isinstance(model, str) else model)


@pytest.fixture
def worth(monkeypatch):
    """Every run is large enough for native code."""
    monkeypatch.setattr(defaults, "WORTH_COMPILING", 0.0)


@needs_compiler
@pytest.mark.parametrize(
    ("model", "layout"),
    [("resnet8", "channels_last+native"), (Tutorial, "channels_first+native"), ("mlp_small", "channels_first")],
)
def test_native_code_is_on_without_a_flag_where_it_computes_something(worth, model, layout):
    assert defaults.by_rule(task(model)).layout == layout


@needs_compiler
def test_it_is_left_out_where_it_does_not_pay_or_cannot_be(worth, monkeypatch):
    assert not defaults.by_rule(task("resnet8"), use_native=False).layout.endswith("+native")
    monkeypatch.setattr(defaults, "WORTH_COMPILING", 1e15)
    assert not defaults.by_rule(task("resnet8")).layout.endswith("+native")  # 3 x 96 images x 2 rounds: too short
    monkeypatch.setattr(defaults, "WORTH_COMPILING", 0.0)
    torch.set_num_threads(2)  # native code has one
    try:
        assert not defaults.by_rule(task("resnet8")).layout.endswith("+native")
    finally:
        torch.set_num_threads(1)
    monkeypatch.setattr(defaults, "compiler", lambda: None)
    assert not defaults.by_rule(task("resnet8")).layout.endswith("+native")


@needs_compiler
def test_a_compiler_that_fails_is_told_and_torch_trains(worth, monkeypatch):
    def fails(names):
        raise ConfigError("native: winograd.cpp could not be built (no space)")

    told: list[str] = []
    monkeypatch.setattr(defaults.native, "ready", fails)
    assert defaults.by_rule(task("resnet8"), say=told.append).layout == "channels_last"
    assert told == ["note: torch trains the model: native: winograd.cpp could not be built (no space)"]


def test_the_seconds_of_a_run_by_hand():
    """A layer of 768 x 3 in the body, three passes, 96 samples of 3 clients, half a round, 5 epochs, 2 rounds."""
    made = task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 3), nn.Linear(3, 10)), epochs=5, sampling=0.5)
    work, steps, clients = 3 * 2 * 768 * 3 * 96 * 5, 3 * 4 * 5, 3  # 32 samples a client are four batches of 8
    expected = 0.5 * 2 * (work / 1e11 + steps * 1e-4 + clients * 3e-4)
    assert defaults.run_seconds(made, defaults.probed(made)) == pytest.approx(expected)


@pytest.mark.parametrize("native", ["auto", "off"])
def test_a_network_that_views_its_maps_runs(tmp_path, worth, native):
    run = headway.run("fedavg", data=data(), model=Tutorial, **TASK, out=tmp_path / "r", native=native)
    on = native == "auto" and building.compiler() is not None
    assert run.config["options"]["layout"] == ("channels_first+native" if on else "channels_first")
    assert run.config["options"].get("native") == (None if native == "auto" else "off")
    assert run.summary["failed"] is None
    assert torch.isfinite(run.model()(data().x_test.float())).all()


@needs_compiler
@pytest.mark.parametrize("recipe", ["scaffold+fn", "fedavg+etf+gmv(warmup=1)", "fedper+ft", "moon"])
def test_any_number_of_workers_gives_the_same_bits_and_torch_the_same_up_to_rounding(worth, recipe):
    plain, made = task("resnet8"), parse(recipe)
    native = defaults.by_rule(plain)
    assert native.layout == "channels_last+native"
    with closing(PoolEngine(made, native, 2)) as two:
        a, b = rounds.run(made, native, LocalEngine(), 2).w, rounds.run(made, native, two, 2).w
    c = rounds.run(made, plain, LocalEngine(), 2).w
    for name, v in a.items():
        assert torch.equal(v, b[name]), name
    assert any(not torch.equal(v, c[name]) for name, v in a.items())  # it was used
    apart = sum(float((v - c[name]).square().sum()) for name, v in a.items()) ** 0.5
    assert apart < 2e-2 * sum(float(v.square().sum()) for v in c.values()) ** 0.5


@needs_compiler
def test_a_run_continues_in_its_layout(tmp_path, worth, monkeypatch):
    given = {"data": data(), "model": "resnet8", **TASK, "checkpoint_seconds": 0}
    run = headway.run("scaffold", **given, out=tmp_path / "r")
    assert run.config["options"]["layout"] == "channels_last+native"
    whole, metrics = ((run.path / name).read_bytes() for name in ("model.safetensors", "metrics.jsonl"))
    max((run.path / "checkpoint").glob("round-*.json")).unlink()
    for name in ("summary.json", "model.safetensors"):
        (run.path / name).unlink()
    monkeypatch.setattr(defaults, "WORTH_COMPILING", 1e30)  # by the rule of another version it would not have it
    headway.resume(run.path, task=run.task)
    assert (run.path / "model.safetensors").read_bytes() == whole
    assert (run.path / "metrics.jsonl").read_bytes() == metrics


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match=r"native=on: .* use auto or off"):
        Options(native="on")

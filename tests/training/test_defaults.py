"""Layout, chunks and cohorts by fixed rules: good on every processor, recorded, and kept by a resumed run."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import headway
from headway.data import Dataset
from headway.training import defaults, probe
from headway.training.settings import settings
from headway.training.task import build

IMAGES = np.random.RandomState(0).randint(0, 255, (40, 3, 32, 32), dtype=np.uint8)


def task_of(model, x=IMAGES, **more):
    text = model if isinstance(model, str) else "own"
    s = settings({"data": "own", "model": text, "clients": 2, "partition": "iid", **more})
    made = None if isinstance(model, str) else model
    return build(s, dataset=Dataset.of(x, np.arange(len(x)) % 10), model=made)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("mcmahan_cnn", "channels_last"),
        ("resnet8", "channels_last"),
        ("resnet18", "channels_last"),  # its smallest maps are 4 x 4
        ("vgg11", "channels_first"),  # half of its weights work on 2 x 2
        ("mlp", "channels_first"),
    ],
)
def test_images_are_channels_last_unless_most_weights_work_on_tiny_maps(model, layout):
    assert defaults.by_rule(task_of(model), use_native=False).layout == layout


@pytest.mark.parametrize(
    ("filters", "side", "chunk"),
    [
        (8, 32, 204),  # input 3 x 32 x 32 and output 8 x 30 x 30 floats: 41,088 bytes an image; 8 MB hold 204
        (64, 32, 64),  # 242,688 bytes: 8 MB hold 34, which are too few
        (64, 100, 26),  # 2,578,624 bytes: 64 of them would be more than 64 MB
        (64, 200, 16),
        (1, 8, 512),
    ],
)
def test_a_chunk_fills_the_cache_at_the_widest_layer(filters, side, chunk):
    def conv():
        return nn.Sequential(nn.Conv2d(3, filters, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(filters, 10))

    images = np.random.RandomState(0).randint(0, 255, (40, 3, side, side), dtype=np.uint8)
    assert defaults.by_rule(task_of(conv, images)).chunk == chunk


def test_predictions_that_depend_on_the_chunk_keep_it():
    assert defaults.by_rule(task_of("cnn4", bn="batch")).chunk == 512
    assert defaults.by_rule(task_of("cnn4", bn="running")).chunk < 512


def test_tables_are_evaluated_in_whole_chunks():
    assert defaults.by_rule(task_of("mlp_small", np.random.RandomState(0).rand(40, 5).astype(np.float32))).chunk == 512


def refusing():
    """A network that a pass of zeros fails in."""

    class Refusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.dim = nn.Conv2d(3, 2, 32), 2

        def forward(self, x):
            raise ValueError("nothing to see")

    return Refusing()


def test_a_network_that_refuses_the_probe_keeps_the_ways_of_old(monkeypatch):
    task = task_of("mcmahan_cnn")
    assert len(probe.probed(task)) > 4
    refuses = task.net_of({})
    refuses.body = refusing()
    monkeypatch.setattr(type(task), "net_of", lambda self, spec: refuses)
    assert probe.probed(task) == []
    assert (defaults.layout_of([]), defaults.chunk_of([], refuses)) == ("channels_first", 512)


def test_chunks_of_another_size_predict_the_same():
    task = task_of("resnet8")
    net = task.net_of({}).eval()
    whole = net.logits_of(task.dataset.x)
    net.chunk = 7
    torch.testing.assert_close(net.logits_of(task.dataset.x), whole, rtol=1e-4, atol=1e-5)
    assert len(net.logits_of(task.dataset.x[:1])) == 1


def test_a_run_goes_on_in_the_ways_it_began_with(tmp_path, monkeypatch):
    s = {
        "data": Dataset.of(IMAGES, np.arange(40) % 10),
        "model": "resnet8",
        "clients": 2,
        "rounds": 2,
        "batch_size": 10,
    }
    run = headway.run("fedavg", **s, out=tmp_path / "r", checkpoint_seconds=0, partition="iid")
    how = run.config["options"]
    assert (how["layout"], how["chunk"], how["cohort"]) == ("channels_last", 64, 1)
    model, metrics = ((run.path / name).read_bytes() for name in ("model.safetensors", "metrics.jsonl"))
    max((run.path / "checkpoint").glob("round-*.json")).unlink()
    for name in ("summary.json", "model.safetensors"):
        (run.path / name).unlink()
    monkeypatch.setattr(defaults, "CACHE", 0)
    monkeypatch.setattr(defaults, "TINY_MAP", 10**6)  # another version has other rules
    headway.resume(run.path, task=run.task)
    assert (run.path / "model.safetensors").read_bytes() == model
    assert (run.path / "metrics.jsonl").read_bytes() == metrics


def test_a_run_of_old_has_no_record_and_goes_on_channels_first(tmp_path, monkeypatch):
    run = headway.run(
        "fedavg", data=Dataset.of(IMAGES, np.arange(40) % 10), model="resnet8", clients=2, rounds=1, out=tmp_path / "r"
    )
    config = json.loads((run.path / "config.json").read_text())
    for name in defaults.RECORD:
        del config["options"][name]
    (run.path / "config.json").write_text(json.dumps(config))
    shutil.rmtree(run.path / "checkpoint")
    for name in ("summary.json", "metrics.jsonl"):
        (run.path / name).unlink()
    headway.resume(run.path, task=run.task)
    monkeypatch.setattr(defaults, "by_rule", lambda task, *_: task)  # as before there were rules
    plain = headway.run(
        "fedavg", data=Dataset.of(IMAGES, np.arange(40) % 10), model="resnet8", clients=2, rounds=1, out=tmp_path / "p"
    )
    assert (run.path / "model.safetensors").read_bytes() == (plain.path / "model.safetensors").read_bytes()
    assert (run.path / "metrics.jsonl").read_bytes() == (plain.path / "metrics.jsonl").read_bytes()

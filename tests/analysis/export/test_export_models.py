"""Which model is exported: every kind of head, global, calibrated and of one client."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from calling import headway
from exported import stored_images

from headway.analysis.export.export import export
from headway.base.errors import CheckpointError
from headway.runs import posthoc as afterwards
from headway.runs.directory import read_model

# ---- every head
NEAREST = "protoalign(predict=nearest)+ownmodel"


HEADS = [
    ("fedetf", None),  # projection, unit features, a frozen frame, a learnable scale
    ("fedavg+cosine", None),
    ("fedtc", None),  # twin: the received classifier
    ("fedtc", "client:1"),  # twin: the client's own
    ("fedrod", None),
    ("fedrod", "client:2"),  # dual: generic + private
    ("fedrod(private=hyper)", "client:0"),  # the private part is made from the client's class frequencies
    (NEAREST, "client:1"),  # nearest prototype
    pytest.param("fedper", "client:0", marks=pytest.mark.slow),
    pytest.param("fednh", None, marks=pytest.mark.slow),
    ("fedavg+ccvr(epochs=3, transform=virtual, power=0.5)", None),
]


@pytest.mark.parametrize(("recipe", "model"), HEADS)
def test_every_head_predicts_as_headway_does(made, in_process, recipe, model):
    told = export(made(recipe).path, "torch", model, out="m.pt2", check=None)
    assert told["check"]["equal"] + told["check"]["ties"] == 80
    assert told["check"]["largest_difference"] < 1e-3


def test_the_nearest_prototype_in_onnx(made, in_process):
    told = export(made(NEAREST).path, "onnx", "client:1", out="m.onnx", check=None)
    assert told["check"]["equal"] + told["check"]["ties"] == 80


def test_the_heads_are_what_the_list_says(made):
    assert read_model(made("fedtc").path / "model.safetensors")[1]["head"]["kind"] == "twin"
    assert read_model(made("fedrod(private=hyper)").path / "model.safetensors")[1]["head"]["kind"] == "hyper"
    assert read_model(made(NEAREST).path / "clients" / "1.safetensors")[1]["head"]["kind"] == "nearest"
    assert read_model(made(HEADS[-1][0]).path / "model.safetensors")[1]["head"]["power"] == 0.5


def test_a_personal_file_answers_as_the_client_and_not_as_the_server(made, in_process):
    run, x = made("fedrod"), torch.from_numpy(stored_images())
    for model, wanted in (("client:2", run.personal(2).personal(x)), ("global", run.model()(x))):
        export(run.path, "torch", model, out="m.pt2")
        torch.testing.assert_close(torch.export.load("m.pt2").module()(x), wanted, atol=1e-5, rtol=1e-5)


# ---- which model
def test_global_of_a_calibrated_run_is_the_model_before_calibration(made, in_process):
    run, x = made("fedavg+ccvr(epochs=3)"), torch.from_numpy(stored_images())
    plain = made("fedavg")  # the same rounds, no calibration
    told = export(run.path, "torch", "global", out="before.pt2")
    assert told["model"] == "global"
    torch.testing.assert_close(torch.export.load("before.pt2").module()(x), plain.model()(x), atol=1e-5, rtol=1e-5)
    for model in (None, "calibrated@run"):
        told = export(run.path, "torch", model, out="after.pt2")
        assert told["model"] == "calibrated"
        torch.testing.assert_close(torch.export.load("after.pt2").module()(x), run.model()(x), atol=1e-5, rtol=1e-5)


def test_calibrations_made_later_newest_or_named(run, in_process):
    with pytest.raises(CheckpointError, match="was never calibrated"):
        export(run, "torch", "calibrated")
    first = read_model(Path(afterwards.calibrate(run, "ccvr(epochs=2)")["model"]))[0]
    second = read_model(Path(afterwards.calibrate(run, "ffc")["model"]))[0]

    def weight(model):
        export(run, "safetensors", model, out="m.safetensors", check=0)
        return read_model(Path("m.safetensors"))[0]["head.weight"]

    assert torch.equal(weight("calibrated"), second["head.weight"])
    assert torch.equal(weight("calibrated@ccvr"), first["head.weight"])
    assert torch.equal(weight("global"), read_model(run / "model.safetensors")[0]["head.weight"])
    with pytest.raises(CheckpointError, match="did you mean 'ffc'"):
        export(run, "torch", "calibrated@fcc")


def test_personal_models_made_later(run, in_process):
    with pytest.raises(CheckpointError, match=r"headway personalise .* --with ft"):
        export(run, "torch", "client:1")
    afterwards.personalise(run, "ft(epochs=1)")
    told = export(run, "torch", "client:1")
    assert told["model"].startswith("client 1 finetune")
    assert Path(told["file"]).parent == run / "exported"
    assert export(run, "torch", "client:1@ft")["check"]["equal"] == 80


def test_a_global_model_with_an_untrained_classifier_comes_with_a_note(made):
    end = headway("export", made("fedper").path, "--to", "safetensors", "--out", "m.safetensors", "--check=0")
    assert "note: clients of this recipe keep their classifiers" in end.out
    assert "not checked" in end.out

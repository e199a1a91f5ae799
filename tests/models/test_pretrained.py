"""Weights files: what fits is loaded whole, what does not is refused whole."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from headway.base.errors import ModelError
from headway.base.tree import stream
from headway.models import body
from headway.models.custom import split
from headway.models.pretrained import load_body


def small(seed: int = 0, bn: str = "running") -> nn.Module:
    return body("resnet8", (1, 8, 8), bn=bn, seed_stream=stream(seed))


def weights(seed: int = 1) -> dict[str, torch.Tensor]:
    """A state dict of another draw, its running statistics moved away from the start."""
    state = small(seed).state_dict()
    for name, v in state.items():
        if "running" in name:
            v.add_(0.5)
    return state


def same(b: nn.Module, state: dict[str, torch.Tensor]) -> bool:
    own = {k: v for k, v in b.state_dict().items() if "num_batches" not in k}
    return all(torch.equal(v, state[k]) for k, v in own.items())


@pytest.fixture
def write(tmp_path):
    def to_file(state: dict[str, torch.Tensor], name: str = "w.safetensors"):
        save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / name)
        return tmp_path / name

    return to_file


@pytest.mark.parametrize("prefix", ["", "body."])
def test_names_with_and_without_body_in_front_are_loaded(write, prefix):
    b, state = small(), weights()
    load_body(b, write({prefix + k: v for k, v in state.items()}))
    assert same(b, state)


def test_classifier_and_batch_counters_of_the_file_are_left_aside(write):
    b, state = small(), weights()
    extra = {f"{k}.weight": torch.ones(3) for k in ("fc", "classifier.1", "head", "linear")}
    path = write({k: v for k, v in state.items() if "num_batches" not in k} | extra)
    load_body(b, path)
    assert same(b, state)
    counters = {k: torch.tensor(9) for k in state if "num_batches" in k}
    load_body(b, write(state | counters, "counted.safetensors"))
    assert not any(v for k, v in b.state_dict().items() if "num_batches" in k)


def test_torchvision_weights_load_into_resnet18_tv(write):
    source = body("resnet18_tv", (3, 32, 32), seed_stream=stream(1))
    state = source.state_dict() | {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    b = body("resnet18_tv", (3, 32, 32), seed_stream=stream(2))
    load_body(b, write(state))
    assert same(b, state)


@pytest.mark.parametrize("bn", ["batch", "group"])
def test_running_statistics_are_left_aside_by_a_body_that_keeps_none(write, bn):
    b, state = small(bn=bn), weights()
    load_body(b, write(state))
    assert same(b, state)


def test_half_precision_weights_are_widened(write):
    b, state = small(), {k: v.half() if v.is_floating_point() else v for k, v in weights().items()}
    load_body(b, write(state))
    assert b.conv1.weight.dtype == torch.float32
    assert torch.equal(b.conv1.weight, state["conv1.weight"].float())


def test_parameters_stay_the_same_objects_and_trainable(write):
    b = small()
    before = list(b.parameters())
    load_body(b, write(weights()))
    assert all(p is q and p.requires_grad for p, q in zip(before, b.parameters(), strict=True))


def without(state, key):
    return {k: v for k, v in state.items() if k != key}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: without(s, "layer2.0.conv1.weight"), r"lacks 'layer2.0.conv1.weight' \(1 of 45 names\)"),
        (lambda s: without(s, "bn1.running_mean"), "lacks 'bn1.running_mean'"),
        (
            lambda s: {f"backbone.{k}": v for k, v in s.items()},
            r"45 of 45 names\), and has 27 .*'backbone.bn1",
        ),
        (
            lambda s: s | {"conv1.weight": torch.zeros(16, 3, 3, 3)},
            r"as float32\[16, 3, 3, 3\] where the model needs float32\[16, 1, 3, 3\] \(1 of 45 differ\)",
        ),
        (lambda s: s | {"conv1.weight": torch.zeros(16, 1, 3, 3, dtype=torch.int8)}, r"int8\[16, 1, 3, 3\]"),
        (
            lambda s: s | {"layer1.1.conv1.weight": torch.zeros(1)},
            r"has 'layer1.1.conv1.weight' \(1 names\)",
        ),
        (lambda s: s | {"body.bn1.bias": torch.zeros(16)}, "'bn1.bias' twice"),
        (lambda s: {"fc.weight": torch.zeros(2, 2)}, "45 of 45 names"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_and_nothing_is_loaded(write, change, says):
    b = small()
    before = {k: v.clone() for k, v in b.state_dict().items()}
    with pytest.raises(ModelError, match=says):
        load_body(b, write(change(weights())))
    assert same(b, before)


def test_a_deeper_network_of_the_same_family_is_refused(write):
    deeper = body("resnet20", (1, 8, 8), seed_stream=stream(0)).state_dict()
    with pytest.raises(ModelError, match="that the model lacks"):
        load_body(small(), write(deeper))


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.PTH"])
def test_pickles_are_refused_unopened_with_the_way_to_convert(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"never read")
    with pytest.raises(ModelError, match=r"safetensors\.torch\.save_file"):
        load_body(small(), path)


@pytest.mark.parametrize("content", [b"", b"not a weights file", b"\xff" * 64])
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        load_body(small(), path)


def test_a_truncated_file_is_refused(write):
    path = write(weights())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        load_body(small(), path)


def test_a_missing_file_or_a_directory_is_refused(tmp_path):
    for path in (tmp_path / "no.safetensors", tmp_path):
        with pytest.raises(ModelError, match="there is no such file; check the path"):
            load_body(small(), path)


@pytest.mark.parametrize("prefix", ["", "body.", "body.inner."])
def test_weights_of_the_users_own_network_load_without_their_classifier(write, prefix):
    b, _ = split(Own(), torch.zeros(2, 6))
    state = Own().state_dict()
    load_body(b, write({prefix + k: v for k, v in state.items()}))
    assert torch.equal(b.inner.body.weight, state["body.weight"])  # a part of its own called body is no prefix


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.classifier = nn.Linear(4, 2)

    def forward(self, x):
        return self.classifier(self.body(x).relu())

"""Networks of users' own: linear ones, ones with parts that are fixed, ones whose body has nothing to learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from run_files import DIGITS, net_of_width
from torch import nn

import headway
from headway.base.errors import HeadwayError
from headway.runs.run import Run


def clouds(n: int = 300) -> headway.Dataset:
    """Three clouds in eight dimensions."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = rng.normal(size=(n, 8)) + 2 * np.eye(3, 8)[y]
    return headway.Dataset.of(x[: n // 2], y[: n // 2], x[n // 2 :], y[n // 2 :])


def trained(recipe: str, net: nn.Module, tmp_path, **given) -> Run:
    return headway.run(recipe, data=clouds(), model=net, clients=3, out=tmp_path, **({"rounds": 3} | given))


@pytest.mark.parametrize("layers", [[], [nn.Flatten()]])
def test_a_linear_model_is_shared_and_judged(layers, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(*layers, nn.Linear(8, 3)) if layers else nn.Linear(8, 3)
    run = trained("fedavg", net, tmp_path / "a", lr=0.1, rounds=10)
    assert run.summary["global_acc"] > 0.6
    assert run.model()(clouds().x_test).shape == (150, 3)
    alone = trained("fedper", net, tmp_path / "b")  # which keeps the classifier, all there is
    assert alone.summary["global_acc"] is None


def test_a_body_that_only_drops_out_does_so(tmp_path):
    torch.manual_seed(0)
    line = nn.Linear(8, 3)
    plain = trained("fedavg", nn.Sequential(nn.Flatten(), line), tmp_path / "a")
    dropped = trained("fedavg", nn.Sequential(nn.Flatten(), nn.Dropout(0.9), line), tmp_path / "b")
    assert not torch.equal(plain.model().head.weight, dropped.model().head.weight)


def test_parameters_that_require_no_gradient_stay_as_they_are_and_are_saved(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    net[0].requires_grad_(False)
    run = trained("scaffold", net, tmp_path / "a", momentum=0.9, weight_decay=0.01, lr=0.05, rounds=8)
    after = run.model().body.inner
    assert torch.equal(after[0].weight, net[0].weight)
    assert not torch.equal(after[2].weight, net[2].weight)
    tensors = headway.runs.directory.read_model(tmp_path / "a" / "model.safetensors")[0]
    assert torch.equal(tensors["body.inner.0.weight"], net[0].weight)


def test_a_body_that_is_fixed_as_a_whole_trains_its_classifier_alone(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    net[0].requires_grad_(False)
    run = trained("fedavg", net, tmp_path / "a", lr=0.1, rounds=10)
    assert torch.equal(run.model().body.inner[0].weight, net[0].weight)
    assert run.summary["global_acc"] > 0.5


def test_a_classifier_that_requires_no_gradient_is_refused(tmp_path):
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    net[2].requires_grad_(False)
    with pytest.raises(HeadwayError, match=r"'2' of model Sequential requires no gradient.*such as fedavg\+babu"):
        trained("fedavg", net, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_instance_starts_from_its_own_classifier_bias_too(tmp_path):
    net = net_of_width(8)()
    run = headway.run("fedavg", model=net, lr=1e-12, out=tmp_path / "r", **DIGITS)
    assert torch.allclose(run.model().head.bias, net[-1].bias)

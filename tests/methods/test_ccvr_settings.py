"""CCVR's further settings: variances alone, counts in proportion, Tukey's transform, a replaced classifier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from run_files import DIGITS
from toy import OneWeight, assert_same, fixed, several, skewed, task_of

import headway
from headway.base.errors import HeadwayError
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.models.transforms import tukey
from headway.runs.directory import save_tensors
from headway.runs.run import Run
from headway.runs.runner import execute
from headway.training import rounds
from headway.training.settings import settings
from headway.training.task import build

X = [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [0.0, 4.0], [7.0, 7.0], [1.0, 1.0]]
Y = [0, 0, 0, 1, 1, 0]
PARTS = [[0, 3], [1, 2, 4, 5]]


def plane(x=X, y=Y, parts=PARTS, classes: int = 2, **given):
    """h = x in the plane; W starts at zero, no bias."""
    first = fixed([[0.0, 0.0]] * classes)
    return task_of(x, y, parts, classes=classes, body=lambda: OneWeight(1.0, 2), first=first, bias=False, **given)


def virtual(monkeypatch, text: str, task=None):
    """(e, y, net) that the retraining is given."""
    seen = {}

    def catch(net, e, y, rng, **how):
        seen.update(e=e, y=y, net=net)
        return net

    monkeypatch.setattr("headway.methods.ccvr.retrain", catch)
    recipe, task = parse(text), task or plane()
    rounds.finish(rounds.begin(recipe, task), recipe, task, LocalEngine())
    return seen["e"], seen["y"], seen["net"]


def test_diag_draws_features_without_correlation(monkeypatch) -> None:
    e, y, _ = virtual(monkeypatch, "ccvr(per_class=20000,diag=true,transform=none)")
    for c in (0, 1):
        real = np.array([x for x, label in zip(X, Y, strict=True) if label == c])
        drawn = np.cov(e[y == c].double().T)
        var = real.var(0, ddof=1)
        np.testing.assert_allclose(drawn.diagonal(), var, rtol=0.05)
        assert abs(drawn[0, 1]) < 0.04 * var.max()
        assert abs(np.cov(real.T)[0, 1]) > 0.5  # the full covariance has one


def test_proportional_counts_by_hand(monkeypatch) -> None:
    # N = (4, 2) of 6, 2 * 9 = 18 in all: 12 and 6
    e, y, _ = virtual(monkeypatch, "ccvr(per_class=9,proportional=true)")
    assert torch.bincount(y).tolist() == [12, 6]
    assert len(e) == 18


def test_a_class_rounded_to_nothing_keeps_its_weights() -> None:
    # N = (99, 1), 2 in all: 1.98 and 0.02 -> 2 and 0
    x = [[float(i), 1.0] for i in range(99)] + [[0.0, 3.0]]
    task = plane(x, [0] * 99 + [1], [list(range(100))], 2)
    recipe = parse("ccvr(per_class=1,proportional=true)")
    server = rounds.begin(recipe, task)
    net = rounds.finish(server, recipe, task, LocalEngine())
    assert torch.equal(net.head.weight[1], server.w["head.weight"][1])


@pytest.mark.parametrize(
    ("power", "expected"), [(0.5, [0.0, 2.0, 3.0]), (1.0, [0.0, 4.0, 9.0]), (2.0, [0.0, 16.0, 81.0])]
)
def test_tukeys_transform_by_hand(power: float, expected: list[float]) -> None:
    assert torch.allclose(tukey(torch.tensor([-5.0, 4.0, 9.0]), power), torch.tensor(expected))


def test_at_power_zero_it_is_the_logarithm() -> None:
    found = tukey(torch.tensor([1.0, 7.389056, -1.0]), 0.0)
    assert torch.allclose(found[:2], torch.tensor([0.0, 2.0]), atol=1e-5)
    assert found[2].isfinite()


def test_virtual_transforms_what_is_drawn_in_raw_space(monkeypatch) -> None:
    raw, _, plain = virtual(monkeypatch, "ccvr(per_class=500,transform=none)")
    e, _, net = virtual(monkeypatch, "ccvr(per_class=500,transform=virtual)")
    assert float(raw.min()) < 0  # Gaussian samples can be negative: relu first
    assert torch.equal(e, tukey(raw, 0.5))
    assert (net.head.power, plain.head.power) == (0.5, None)


def test_stats_transforms_real_features_before_eq2(monkeypatch) -> None:
    e, y, net = virtual(monkeypatch, "ccvr(per_class=20000,transform=stats,power=0.5)")
    for c in (0, 1):
        real = np.sqrt([x for x, label in zip(X, Y, strict=True) if label == c])
        np.testing.assert_allclose(e[y == c].double().mean(0), real.mean(0), atol=0.03)
        np.testing.assert_allclose(np.cov(e[y == c].double().T), np.cov(real.T), atol=0.05)
    assert float(e.min()) < 0  # drawn in the transformed space and not transformed again
    assert net.head.power == 0.5


@pytest.mark.parametrize("where", ["virtual", "stats"])
def test_test_features_go_through_the_transform_too(where: str) -> None:
    task, recipe = skewed(3, train_size=120), parse(f"ccvr(transform={where},epochs=3)")
    server, engine = several(recipe, task, 1)
    net = rounds.finish(server, recipe, task, engine)
    x = task.dataset.x_test[:7]
    h = net.features(x)
    expected = h.clamp(min=0).sqrt() @ net.head.weight.T + net.head.bias
    assert torch.allclose(net(x), expected, atol=1e-5)
    assert not torch.allclose(net(x), h @ net.head.weight.T + net.head.bias, atol=1e-2)


def test_the_power_is_the_settings(monkeypatch) -> None:
    raw, _, _ = virtual(monkeypatch, "ccvr(per_class=50,transform=none)")
    e, _, net = virtual(monkeypatch, "ccvr(per_class=50,transform=virtual,power=2)")
    assert torch.allclose(e, raw.clamp(min=0).square())
    assert net.head.power == 2.0


@pytest.mark.parametrize(
    "text",
    [
        "fedavg+ccvr(transform=virtual,epochs=2)",
        "fedavg+ccvr(transform=stats,power=0,epochs=2)",
        "fedfn+ccvr(transform=virtual,epochs=2)",
        "fedetf+ccvr(transform=virtual,replace_head=true,epochs=2)",
        "fedbabu+ccvr(replace_head=true,epochs=2)",
        "fednh+ccvr(replace_head=true,epochs=2)",
        "fedrod+ccvr(transform=virtual,epochs=2)",
        "fedtc+ccvr(transform=virtual,epochs=2)",
        "fedavg+ccvr(epochs=2,transform=none)",
    ],
)
def test_a_calibrated_model_predicts_the_same_after_saving_and_loading(text: str, tmp_path: Path) -> None:
    s = settings({"clients": 3, "rounds": 1, "train_size": 120, "test_size": 60, "model": "mlp_small"})
    run = execute(text, s, tmp_path / "run")
    loaded = Run(run.path).model()
    task, recipe = build(s), parse(text)
    server, engine = several(recipe, task, 1)
    net = rounds.finish(server, recipe, task, engine)
    x, y = task.dataset.x_test, task.dataset.y_test
    assert torch.equal(loaded(x), net(x))
    assert run.summary["calibrated"]["after"] == pytest.approx(float((loaded(x).argmax(1) == y).float().mean()))


def test_the_transform_is_in_the_file(tmp_path: Path) -> None:
    task, recipe = skewed(3, train_size=120), parse("ccvr(transform=virtual,epochs=1)")
    net = rounds.finish(rounds.begin(recipe, task), recipe, task, LocalEngine())
    save_tensors(net.tensors(), tmp_path / "m.safetensors", str(recipe), net.head_spec)
    again = task.net_of(net.head_spec).load(net.tensors()).eval()
    assert again.head.power == 0.5
    assert torch.equal(again(task.dataset.x_test), net(task.dataset.x_test))


@pytest.mark.parametrize("head", ["babu", "etf", "sphere(tau=5)", "etfproj", "proto"])
def test_a_replaced_classifier_starts_at_the_frozen_one(head: str, monkeypatch) -> None:
    # before any retraining the replacement predicts as the frozen head did
    task = skewed(3, train_size=120)
    _, _, net = virtual(monkeypatch, f"{head}+ccvr(replace_head=true,transform=none)", task)
    recipe = parse(head)
    frozen = rounds.global_net(rounds.begin(recipe, task), recipe, task)
    x = task.dataset.x_test[:9]
    assert torch.allclose(net(x), frozen(x), atol=1e-5)
    assert {"head.weight", "head.bias"} <= set(net.params())


def test_a_replaced_classifier_is_retrained_and_its_projection_is_not() -> None:
    task, recipe = skewed(3, train_size=120), parse("fedetf+ccvr(replace_head=true,epochs=3)")
    server, engine = several(recipe, task, 1)
    net = rounds.finish(server, recipe, task, engine)
    before = rounds.global_net(server, recipe, task)
    assert torch.equal(net.head.proj.weight, before.head.proj.weight)
    assert not torch.allclose(net.head.weight, before.head.weight * before.head.scale)
    assert_same(net.params().copy().only(lambda n: n.startswith("body.")),
                server.w.only(lambda n: n.startswith("body.")))  # fmt: skip


# ---- what the calibration starts from


def test_calibration_of_personal_heads_starts_from_their_mean(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="global_head=mean_of_personal"):
        headway.run("fedper+ccvr", out=tmp_path / "no", **DIGITS)
    run = headway.run("fedper+ccvr(global_head=mean_of_personal)", out=tmp_path / "yes", **DIGITS)
    assert run.summary["calibrated"]["before"] == run.summary["global_acc_mean_of_personal"]
    assert run.summary["calibrated"]["after"] > run.summary["calibrated"]["before"]

"""Inversion: PSNR, SSIM and total variation by hand, and an image that is found again from its feature."""

from __future__ import annotations

import math

import pytest
import torch
from diagnosed import blobs, check_whole, finished, task_on
from torch import nn

from headway.analysis.diagnostics.finding import NotApplicable
from headway.analysis.diagnostics.inversion import (
    Attack,
    Target,
    inversion,
    invert,
    nearest,
    nearest_mean,
    psnr,
    ssim,
    targets_of,
    total_variation,
    window_of,
)
from headway.base.tree import stream
from headway.models.heads import Head
from headway.models.net import Net, Normalise

IMAGE = torch.rand(3, 16, 16, generator=stream("image"))


def test_psnr_by_hand() -> None:
    """A constant error of 0.1 at a span of 1: 10 log10(1 / 0.01) = 20 dB; at a span of 10: 40 dB."""
    assert psnr(IMAGE, IMAGE + 0.1, 1.0) == pytest.approx(20.0, abs=1e-4)
    assert psnr(IMAGE, IMAGE + 0.1, 10.0) == pytest.approx(40.0, abs=1e-4)
    assert psnr(IMAGE, IMAGE, 1.0) == math.inf


def test_ssim_of_an_image_with_itself_is_one() -> None:
    assert ssim(IMAGE, IMAGE, 1.0) == pytest.approx(1.0, abs=1e-12)


def test_ssim_of_flat_images_by_hand() -> None:
    """No variance: (2 a b + c1) / (a^2 + b^2 + c1) with c1 = 0.0001: (0.24 + 0.0001) / (0.25 + 0.0001)."""
    a, b = torch.full((1, 12, 12), 0.3), torch.full((1, 12, 12), 0.4)
    assert ssim(a, b, 1.0) == pytest.approx(0.2401 / 0.2501, abs=1e-5)


def test_ssim_of_opposites_by_hand() -> None:
    """b = 1 - a around a mean of 1/2: covariance -v, so the second factor is (-2v + c2) / (2v + c2), near -1."""
    board = (torch.arange(16)[:, None] + torch.arange(16)) % 2
    a = board[None].float()
    assert -1 < ssim(a, 1 - a, 1.0) < -0.95
    assert ssim(a, 1 - a, 1.0) == ssim(1 - a, a, 1.0)


def test_window_is_11_wide_and_shrinks_with_the_image() -> None:
    assert [len(window_of(side)) for side in (32, 11, 8, 7, 1)] == [11, 11, 7, 7, 1]
    assert float(window_of(32).sum()) == pytest.approx(1.0)
    # neighbours of the middle: e^(-1 / (2 * 1.5^2)) = e^(-2/9) of it
    assert float(window_of(32)[5, 6] / window_of(32)[5, 5]) == pytest.approx(math.exp(-2 / 9))


def test_total_variation_by_hand() -> None:
    """[[0, 1], [3, 1]]: down 3 and 0, mean 1.5; across 1 and 2, mean 1.5."""
    x = torch.tensor([[[[0.0, 1.0], [3.0, 1.0]]], [[[5.0, 5.0], [5.0, 5.0]]]])
    assert total_variation(x).tolist() == [3.0, 0.0]


def test_nearest_mean_passes_over_classes_without_samples() -> None:
    means = torch.tensor([[0.0, 0.0], [math.nan, math.nan], [4.0, 4.0]])
    assert nearest(means, torch.tensor([[1.0, 1.0], [3.0, 3.0]])).tolist() == [0, 2]


def test_class_means_are_built_without_the_targets(tmp_path, monkeypatch) -> None:
    subject = finished("fedavg", tmp_path / "run")
    d = subject.task.dataset
    target = targets_of(subject)[0][-1]
    means = nearest_mean(subject, [Target(0, target.y, target.images[:3]), target])  # ten images, three named twice
    mine = d.x[d.y == target.y].double()
    wanted = (mine.sum(0) - target.images.double().sum(0)) / (len(mine) - 10)
    assert torch.allclose(means[target.y].double(), wanted, rtol=1e-5)
    other = (target.y + 1) % 10
    assert torch.allclose(means[other].double(), d.x[d.y == other].double().mean(0), rtol=1e-5)
    monkeypatch.setattr("headway.analysis.diagnostics.inversion.PART", 7)
    assert torch.allclose(nearest_mean(subject, [target]), means)


class Flat(nn.Module):
    dim = 16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


def test_a_feature_that_is_the_image_gives_the_image_back() -> None:
    net = Net(Flat(), Head(16, 2, stream("head")), 2, Normalise((0.5,), (0.25,), 1 / 255, 3))
    image = torch.randint(40, 200, (1, 1, 4, 4), generator=stream("x"), dtype=torch.uint8)
    low, high = torch.zeros(1, 4, 4), torch.full((1, 4, 4), 255.0)
    how = Attack(steps=400, lr=0.05, tv=0.0, l2=0.0)
    made, losses, _ = invert(net, net.features_of(image), low, high, stream("noise"), how)
    assert losses.max() < 1e-3
    assert psnr(made, image.float(), 255.0) > 30
    assert net.head.weight.requires_grad


def test_stored_values_stay_where_data_can_be() -> None:
    net = Net(Flat(), Head(16, 2, stream("head")), 2, Normalise((0.5,), (0.25,), 1.0, 3))
    z = torch.full((1, 16), 100.0)  # no pixel within [0, 1] gives this
    made, _, steps = invert(net, z, torch.zeros(1, 4, 4), torch.ones(1, 4, 4), stream("noise"), Attack(steps=1000))
    assert steps == 200  # at the border after a few steps: from the 100th on nothing gets better
    assert made.min() >= 0
    assert made.max() <= 1 + 1e-6


def test_on_a_run(tmp_path) -> None:
    subject = finished("fedavg", tmp_path / "run")
    found = inversion(subject, Attack(steps=40))
    check_whole(found, tmp_path)
    assert {r["features"] for r in found.tables["images"]} == {1, 3, 10}
    assert "nearest mean image" in found.about
    assert "window 7" in found.about
    assert found.summary["steps"] == 40
    single = [r for r in found.tables["images"] if r["features"] == 1]
    assert all(r["psnr"] == r["psnr_of_mean_image"] for r in single)
    assert inversion(subject, Attack(steps=40)).tables == found.tables


def test_targets_are_one_client_s_samples_of_one_class(tmp_path) -> None:
    subject = finished("fedavg", tmp_path / "run")
    for group in targets_of(subject):
        assert [len(t.images) for t in group] == [1, 3, 10]
        k, c = group[0].client, group[0].y
        assert subject.counts[k, c] == subject.counts[:, c].max()


def test_tables_and_personal_bodies_and_batch_statistics_are_refused(tmp_path) -> None:
    with pytest.raises(NotApplicable, match="rows of a table"):
        inversion(finished("fedavg", tmp_path / "table", task_on(blobs(3))))
    with pytest.raises(NotApplicable, match="bodies are personal"):
        inversion(finished("local", tmp_path / "local"))
    images = task_on(blobs(3, shape=(3, 8, 8)), model="resnet20", bn="batch", rounds=1, clients=2)
    with pytest.raises(NotApplicable, match="normalises by the batch"):
        inversion(finished("fedavg", tmp_path / "batch", images))

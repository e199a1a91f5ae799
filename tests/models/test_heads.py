"""Heads: the five choices one by one, the frames, and what is frozen."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import headway.methods  # noqa: F401  they register their kinds of heads
from headway.base.tree import stream
from headway.models.heads import CLASS_VECTORS, Head, PairHead, build, orthonormal, simplex_etf, uniform


def head(dim: int = 2, classes: int = 3, **spec: object) -> Head:
    return Head(dim, classes, stream("test"), **spec)


def set_to(h: Head, weight: list[list[float]], bias: list[float] | None = None) -> Head:
    with torch.no_grad():
        h.weight.copy_(torch.tensor(weight))
        if bias is not None:
            h.bias.copy_(torch.tensor(bias))
    return h


ROWS = [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]
H = torch.tensor([[3.0, 4.0], [0.0, -2.0]])


def test_linear_head_is_w_h_plus_b() -> None:
    z = set_to(head(), ROWS, [0.5, 0.0, -1.0])(H)
    # h = (3, 4): 3 + 0.5, 8, 25 - 1;  h = (0, -2): 0.5, -4, -8 - 1
    assert z.tolist() == [[3.5, 8.0, 24.0], [0.5, -4.0, -9.0]]


def test_l2_features_are_unit_and_weights_are_not() -> None:
    h = set_to(head(feat="l2", bias=False), ROWS)
    assert torch.allclose(h.embed(H), torch.tensor([[0.6, 0.8], [0.0, -1.0]]))
    assert torch.allclose(h(H), torch.tensor([[0.6, 1.6, 5.0], [0.0, -2.0, -4.0]]))


def test_wnorm_makes_the_rows_unit_in_the_forward_pass_only() -> None:
    h = set_to(head(wnorm="unit", bias=False), ROWS)
    # rows (1, 0), (0, 1), (0.6, 0.8)
    assert torch.allclose(h(H), torch.tensor([[3.0, 4.0, 5.0], [0.0, -2.0, -1.6]]))
    assert h.weight.tolist() == ROWS


def test_projection_comes_before_the_norm() -> None:
    h = set_to(head(feat="proj+l2", bias=False, classes=2), [[1.0, 0.0], [0.0, 1.0]])
    with torch.no_grad():
        h.proj.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
        h.proj.bias.copy_(torch.tensor([-4.0, 0.0]))
    # g(3, 4) = (7 - 4, 4) = (3, 4) -> (0.6, 0.8)
    assert torch.allclose(h(torch.tensor([[3.0, 4.0]])), torch.tensor([[0.6, 0.8]]))


@pytest.mark.parametrize(("given", "width"), [(None, 3), (7, 7)])
def test_projection_is_as_wide_as_the_classes_unless_told(given: int | None, width: int) -> None:
    h = head(dim=5, feat="proj+l2", proj_dim=given)
    assert h.proj.weight.shape == (width, 5)
    assert h.proj.bias.shape == (width,)
    assert h.weight.shape == (3, width)


def test_scale_multiplies_the_logits_and_not_the_bias() -> None:
    h = set_to(head(scale=2.0), ROWS, [1.0, 1.0, 1.0])
    assert h(H).tolist() == [[7.0, 17.0, 51.0], [1.0, -7.0, -15.0]]  # 2 W h + 1
    assert "scale" not in dict(h.named_parameters())


def test_learnable_scale_starts_at_one_and_has_a_gradient() -> None:
    h = set_to(head(scale="learnable", bias=False), ROWS)
    assert h.scale.item() == 1.0
    h(H)[0, 2].backward()
    assert float(h.scale.grad) == 25.0  # dz_2/dscale = w_2 . h


def test_a_dead_feature_gives_zero_logits_and_no_nan() -> None:
    h = head(feat="l2", wnorm="unit", bias=False)
    dead = torch.zeros(1, 2, requires_grad=True)
    z = h(dead)
    assert z.tolist() == [[0.0, 0.0, 0.0]]
    F.cross_entropy(z, torch.tensor([0])).backward()
    assert torch.isfinite(dead.grad).all()
    assert torch.isfinite(h.weight.grad).all()


@pytest.mark.parametrize("weights", ["frozen_random", "frozen_etf", "frozen_orth"])
def test_frozen_weights_and_their_bias_are_buffers(weights: str) -> None:
    h = head(dim=4, weights=weights)
    assert [name for name, _ in h.named_parameters()] == []
    assert {"weight", "bias", "scale"} == {name for name, _ in h.named_buffers()}


def test_trainable_weights_and_bias_are_parameters() -> None:
    assert [name for name, _ in head().named_parameters()] == ["weight", "bias"]
    assert [name for name, _ in head(bias=False).named_parameters()] == ["weight"]


def test_the_frozen_random_start_is_the_trainable_one() -> None:
    assert torch.equal(head(weights="frozen_random").weight, head().weight)
    assert torch.equal(head(weights="frozen_random").bias, head().bias)


def test_the_models_own_start_applies_to_linear_weights_only() -> None:
    def sevens(w: Tensor, rng: torch.Generator) -> Tensor:
        return torch.full_like(w, 7.0)

    assert (head(init=sevens).weight == 7).all()
    assert (head(init=sevens, weights="frozen_random").weight == 7).all()
    assert torch.equal(head(init=sevens, weights="frozen_etf").weight, head(weights="frozen_etf").weight)


def test_a_recipe_overrides_the_models_choices_and_leaves_the_rest() -> None:
    native = {"bias": True, "init": lambda w, rng: torch.ones_like(w)}
    assert build({}, 2, 3, stream("a"), **native).bias is not None
    fn = build({"feat": "l2", "bias": False}, 2, 3, stream("a"), **native)
    assert fn.bias is None
    assert (fn.weight == 1).all()
    assert build({}, 2, 3, stream("a"), bias=False, init=None).bias is None


def test_the_same_stream_gives_the_same_head() -> None:
    for weights in CLASS_VECTORS:
        assert torch.equal(head(dim=4, weights=weights).weight, head(dim=4, weights=weights).weight)
        assert not torch.equal(head(dim=4, weights=weights).weight, Head(4, 3, stream("b"), weights=weights).weight)


def test_linear_start_is_uniform_within_one_over_root_d() -> None:
    w = uniform(16, 5000, stream("u"))
    assert w.abs().max() <= 0.25
    assert w.abs().max() > 0.2499
    assert abs(float(w.mean())) < 0.002
    assert float(w.var()) == pytest.approx(0.5**2 / 12, rel=0.02)  # of U(-1/4, 1/4)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("extra", [-1, 0, 7])
def test_etf_gram_is_that_of_the_simplex(classes: int, extra: int) -> None:
    v = simplex_etf(classes + extra, classes, stream("etf")).double()  # [C, d]
    c = classes
    gram = c / (c - 1) * torch.eye(c) - torch.ones(c, c) / (c - 1)
    assert v.shape == (classes, classes + extra)
    assert torch.allclose(v @ v.T, gram.double(), atol=1e-6)
    assert torch.allclose(v.sum(0), torch.zeros(classes + extra, dtype=torch.float64), atol=1e-6)


def test_etf_angles_for_three_classes_are_120_degrees() -> None:
    v = simplex_etf(2, 3, stream("etf"))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert math.degrees(math.acos(float(v[a] @ v[b]))) == pytest.approx(120, abs=1e-3)


def test_etf_is_turned_by_its_stream_without_a_preferred_direction() -> None:
    # E[v_c] = 0 over rotations: an unfixed sign of the QR would leave a bias
    v = torch.stack([simplex_etf(3, 2, stream("turn", i))[0] for i in range(600)])  # [600, 3]
    assert v.mean(0).abs().max() < 0.1  # standard deviation of the mean: sqrt(1/3) / sqrt(600) = 0.024
    assert torch.allclose(v.T @ v / 600, torch.eye(3) / 3, atol=0.06)


@pytest.mark.parametrize("extra", [0, 5])
def test_orthonormal_rows(extra: int) -> None:
    w = orthonormal(4 + extra, 4, stream("o"))
    assert torch.allclose(w @ w.T, torch.eye(4), atol=1e-6)


def test_twin_starts_with_two_equal_classifiers_in_memory_of_their_own() -> None:
    twin = PairHead(2, 3, stream("t"), ("received", "own"), residual=False)
    assert torch.equal(twin.own.weight, twin.received.weight)
    assert torch.equal(twin.own.bias, twin.received.bias)
    assert twin.own.weight.data_ptr() != twin.received.weight.data_ptr()
    assert torch.equal(twin.received.weight, Head(2, 3, stream("t")).weight)


def test_twin_predicts_by_the_received_one_and_personally_by_its_own() -> None:
    twin = PairHead(2, 3, stream("t"), ("received", "own"), residual=False, bias=False)
    set_to(twin.received, ROWS)
    set_to(twin.own, [[0.0, 1.0]] * 3)
    assert twin(H).tolist() == [[3.0, 8.0, 25.0], [0.0, -4.0, -8.0]]
    assert twin.shared is twin.received  # the one a calibration retrains
    assert twin.personal(H).tolist() == [[4.0] * 3, [-2.0] * 3]


def test_twin_takes_the_choices_of_a_single_head() -> None:
    twin = build({"kind": "twin", "feat": "l2", "bias": False}, 2, 3, stream("t"))
    assert isinstance(twin, PairHead)
    assert twin.own.feat == twin.received.feat == "l2"
    assert twin.own.bias is None
    assert torch.allclose(twin.shared.embed(H), torch.tensor([[0.6, 0.8], [0.0, -1.0]]))

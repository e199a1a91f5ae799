"""The four factors: cosines of weights, prototypes and samples that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from headway.analysis.diagnostics.factors import factors_of
from headway.metrics.geometry import class_means, cosines, known_mean, mean_over, pairs, rows_of
from headway.models.heads import Head

NAN = float("nan")


def test_cosines_by_hand() -> None:
    # (3, 4).(4, 3) / (5 * 5) = 24 / 25; a zero vector has no direction
    found = cosines(torch.tensor([[3.0, 4.0], [4.0, 3.0], [0.0, 0.0]]))
    assert found.dtype == torch.float64
    assert found[0, 1].item() == pytest.approx(24 / 25)
    assert found[0, 0].item() == pytest.approx(1)
    assert found[2].isnan().all()


def test_pairs_are_counted_once_and_only_where_known() -> None:
    matrix = torch.tensor([[1.0, 0.2, NAN], [0.2, 1.0, 0.4], [NAN, 0.4, 1.0]])
    assert pairs(matrix).tolist() == pytest.approx([0.2, 0.4])
    assert known_mean(pairs(matrix)) == pytest.approx(0.3)
    assert known_mean([]) is None
    assert known_mean([1.0, None, 2.0]) == 1.5


def test_means_over_some_classes() -> None:
    # sums 6 and 4 over 3 and 1 samples: 10 / 4; nothing where no class is asked for
    total, count = torch.tensor([6.0, 4.0, 9.0]), torch.tensor([3, 1, 3])
    assert mean_over(total, count, torch.tensor([True, True, False])) == 2.5
    assert mean_over(total, count, torch.tensor([False] * 3)) is None


def test_a_class_without_samples_has_no_prototype() -> None:
    means = class_means(torch.tensor([[1.0, 0.0], [3.0, 2.0], [0.0, 5.0]]), torch.tensor([0, 0, 2]), 3)
    assert means[[0, 2]].tolist() == [[2.0, 1.0], [0.0, 5.0]]
    assert means[1].isnan().all()


def test_orthogonal_classes_that_meet_their_weights() -> None:
    h = torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 1.0]])
    found = factors_of(h, torch.tensor([0, 0, 1]), torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    assert found.inter[0, 1].item() == 0
    assert found.intra.tolist() == [1.0, 1.0]
    assert found.alignment.tolist() == [1.0, 1.0]


def test_intra_class_similarity_by_hand() -> None:
    # class 0: (1, 0) and (0, 1), mean (1/2, 1/2): each at 45 degrees, cos = 1/sqrt(2). Class 1: (1, 0) and (3, 0): 1.
    # prototype of class 1 is (2, 0): cos with class 0's is 1/sqrt(2); its weight (0, 1) is at a right angle
    h = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [3.0, 0.0]])
    found = factors_of(h, torch.tensor([0, 0, 1, 1]), torch.tensor([[2.0, 2.0], [0.0, 1.0]]))
    assert found.intra.tolist() == pytest.approx([1 / math.sqrt(2), 1.0])
    assert found.inter[0, 1].item() == pytest.approx(1 / math.sqrt(2))
    assert found.alignment.tolist() == pytest.approx([1.0, 0.0])


def test_a_dead_feature_and_an_absent_class_leave_the_others_known() -> None:
    h = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    found = factors_of(h, torch.tensor([0, 0, 1]), torch.eye(3)[:, :2])
    assert found.intra[:2].tolist() == [1.0, 1.0]  # of the one sample of class 0 that has a direction
    assert found.intra[2].isnan()
    assert found.alignment[:2].tolist() == [1.0, 1.0]


def test_alignment_is_unknown_across_spaces() -> None:
    found = factors_of(torch.eye(2), torch.tensor([0, 1]), torch.ones(2, 5))
    assert found.alignment.isnan().all()
    assert found.inter[0, 1].item() == 0


def test_rows_are_what_the_logits_use() -> None:
    rng = torch.Generator().manual_seed(0)
    plain, unit = (Head(4, 3, rng, wnorm=kind) for kind in ("none", "unit"))
    assert torch.equal(rows_of(plain), plain.weight.detach().double())
    assert rows_of(unit).norm(dim=1).tolist() == pytest.approx([1.0] * 3)

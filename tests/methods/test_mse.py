"""SphereFed's loss: the mean squared error to one-hot labels."""

from __future__ import annotations

import pytest
import torch
from toy import local_of, one_round, two_clients

from headway.core.local import Batch
from headway.methods.mse import MSE


def test_loss_by_hand_is_a_mean_over_batch_and_classes() -> None:
    # z = (2, 0, 1) of class 0: 1 + 0 + 1; z = (0, 0, 3) of class 2: 0 + 0 + 4; over 2 * 3 entries: 6/6 = 1
    z = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 3.0]])
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 2]), torch.zeros(2, 1), z)
    assert float(MSE().criterion(batch, local_of(two_clients(), "mse"))) == pytest.approx(1.0)


def test_the_true_class_alone_is_no_error() -> None:
    batch = Batch(torch.zeros(2, 1), torch.tensor([1, 0]), torch.zeros(2, 1), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert float(MSE().criterion(batch, local_of(two_clients(), "mse"))) == 0


def test_a_round_by_hand() -> None:
    # z = (h, -h), h = u x. Class 0: L = ((h - 1)^2 + h^2)/2, dL/du = x (2 h - 1); class 1: x (2 h + 1).
    # u = 0.5: client 0 (x = 2, h = 1): 2; client 1 (h = 0.5, 1): (2 + 6)/2 = 4
    server, reports, _ = one_round("mse+babu", two_clients(start=0.5))
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx([0.5 - 0.2, 0.5 - 0.4])
    assert float(server.w["body.u"]) == pytest.approx(0.3 / 3 + 2 * 0.1 / 3)

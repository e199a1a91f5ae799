"""clsnorm: rows of the classifier normalised in the forward pass, stored and averaged as they are."""

from __future__ import annotations

import pytest
import torch
from toy import OneWeight, fixed, one_round, slope, task_of, two_clients

from headway.methods import recipe as parse
from headway.training import rounds


def test_logits_by_hand_in_training_and_inference() -> None:
    # w = (3, 4) and (0, 2): unit (0.6, 0.8) and (0, 1); h = (1, 10): z = (8.6, 10)
    task = task_of([[1.0, 10.0]], [0], [[0]], body=lambda: OneWeight(1.0, 2), first=fixed([[3.0, 4.0], [0.0, 2.0]]))
    net = task.net(parse("clsnorm"))
    for mode in (net.train(), net.eval()):
        assert torch.allclose(mode(torch.tensor([[1.0, 10.0]])), torch.tensor([[8.6, 10.0]]))
    assert net.head.bias is None
    assert net.head.weight.tolist() == [[3.0, 4.0], [0.0, 2.0]]  # stored as it is


def test_the_length_of_a_row_carries_no_meaning() -> None:
    x = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    z = []
    for scale in (1.0, 7.0):
        rows = fixed([[3.0 * scale, 4.0 * scale], [0.5, -1.0]])
        task = task_of(x, [0, 1], [[0, 1]], body=lambda: OneWeight(1.0, 2), first=rows)
        z.append(task.net(parse("clsnorm"))(x))
    assert torch.allclose(z[0], z[1])


def test_a_round_by_hand() -> None:
    # in one dimension w / ||w|| is its sign: u moves as under (1, -1) and W not at all
    task = task_of(
        [2.0, 1.0, 2.0], [0, 1, 1], [[0], [1, 2]], body=lambda: OneWeight(0.5), first=fixed([[3.0], [-0.25]])
    )
    server, reports, _ = one_round("clsnorm", task)
    ends = [0.5 - 0.1 * slope(0.5, [2.0], 0), 0.5 - 0.1 * slope(0.5, [1.0, 2.0], 1)]
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx(ends, rel=1e-5)
    assert float(server.w["body.u"]) == pytest.approx(ends[0] / 3 + 2 * ends[1] / 3, rel=1e-5)
    assert server.w["head.weight"].flatten().tolist() == pytest.approx([3.0, -0.25])


def test_the_gradient_of_a_row_is_orthogonal_to_it() -> None:
    task = task_of(
        [[1.0, 10.0], [2.0, -1.0]], [0, 1], [[0, 1]], body=lambda: OneWeight(1.0, 2),
        first=fixed([[3.0, 4.0], [0.5, -2.0]]),
    )  # fmt: skip
    server, _, _ = one_round("clsnorm", task)
    first = torch.tensor([[3.0, 4.0], [0.5, -2.0]])
    moved = server.w["head.weight"] - first
    assert float(moved.abs().max()) > 1e-3
    assert torch.allclose((moved * first).sum(1), torch.zeros(2), atol=1e-5)


def test_stored_rows_are_averaged_unnormalised() -> None:
    task = two_clients(start=1.0)
    recipe = parse("clsnorm")
    server, reports, _ = one_round(recipe, task)
    stored = reports[0].w["head.weight"] / 3 + 2 * reports[1].w["head.weight"] / 3
    assert torch.allclose(server.w["head.weight"], stored)
    assert rounds.cast_of(server, recipe).w.keys() == {"body.u", "head.weight"}

"""The plain linear classifier, said out loud; and without its bias."""

from __future__ import annotations

import pytest
import torch
from toy import OneWeight, fixed, one_round, skewed, task_of

from headway.base.errors import RecipeError
from headway.methods import recipe as parse
from headway.training import rounds


def plane(**given):
    return task_of(
        [[3.0, 4.0]], [0], [[0]], body=lambda: OneWeight(1.0, 2), first=fixed([[1.0, 2.0], [0.0, -1.0]]), **given
    )


@pytest.mark.parametrize("text", ["fedavg", "linear"])
def test_logits_are_w_h_plus_b(text: str) -> None:
    # W h = (3 + 8, -4)
    net = plane().net(parse(text))
    assert torch.allclose(net(torch.tensor([[3.0, 4.0]])) - net.head.bias, torch.tensor([[11.0, -4.0]]))


def test_without_bias_logits_are_w_h() -> None:
    net = plane().net(parse("nobias"))
    assert net.head.bias is None
    assert torch.equal(net(torch.tensor([[3.0, 4.0]])), torch.tensor([[11.0, -4.0]]))


def test_without_bias_no_bias_is_trained_or_sent() -> None:
    server, reports, _ = one_round("nobias", skewed(2, train_size=40))
    assert "head.bias" not in server.w
    assert "head.bias" not in reports[0].w
    assert "head.weight" in reports[0].w


def test_nobias_starts_at_the_same_weights() -> None:
    task = skewed(2, train_size=40)
    with_bias, without = task.first_params(parse("fedavg")), task.first_params(parse("nobias"))
    assert torch.equal(with_bias["head.weight"], without["head.weight"])


@pytest.mark.parametrize("other", ["fn", "babu", "etf", "etfproj", "sphere(tau=2)", "clsnorm", "cosine", "proto"])
def test_linear_beside_another_head_is_refused(other: str) -> None:
    with pytest.raises(RecipeError, match=rf"linear.*{other.split('(')[0]}"):
        parse(f"linear+{other}")


@pytest.mark.parametrize("two", ["fedtc", "fedrod"])
def test_linear_is_what_two_classifiers_are_made_of(two: str) -> None:
    task = skewed(2, train_size=40)
    rounds.begin(parse(f"{two}+linear"), task)
    said, unsaid = one_round(f"{two}+linear", task)[0], one_round(two, task)[0]
    assert all(torch.equal(v, unsaid.w[name]) for name, v in said.w.items())

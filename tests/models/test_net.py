"""Net: features and logits, the views of it that methods use, and the teacher that looks batches up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from toy import Normed

from headway.base.tree import Tree, stream
from headway.models.heads import Head
from headway.models.net import Net, Normalise, chunks

X = torch.tensor([[1.0, 0.0], [3.0, 2.0], [0.0, 1.0], [4.0, 5.0]])


def net(body: nn.Module | None = None, **spec) -> Net:
    return Net(body or Normed(), Head(2, 3, stream("head"), **spec), 3)


def test_stored_values_are_normalised_before_the_body() -> None:
    # (128 - 0.5 * 255) / (0.25 * 255) for the first feature, (51 - 0.2 * 255) / ... = 0 for the second
    layer = Normalise(mean=(127.5, 51.0), std=(63.75, 2.0), scale=255.0, dims=1)
    assert layer(torch.tensor([[127.5 / 255, 51.0 / 255], [191.25 / 255, 53.0 / 255]])).tolist() == [
        pytest.approx([0.0, 0.0], abs=1e-5),
        pytest.approx([1.0, 1.0], abs=1e-4),
    ]


def test_features_of_a_whole_set_are_in_eval_mode_and_the_modes_come_back() -> None:
    made = net()
    made.train()
    made.head.eval()
    before = made.stats()
    made.chunk = 2
    h = made.features_of(X)
    assert [m.training for m in (made.body, made.body.bn, made.head)] == [True, True, False]
    assert all(torch.equal(v, before[name]) for name, v in made.stats().items())
    assert torch.allclose(h, made.eval().features(X))
    assert not h.requires_grad


def test_a_single_sample_is_doubled_and_answered_once() -> None:
    assert [len(part) for part in chunks(X[:1])] == [2]
    assert len(net().features_of(X[:1])) == 1
    assert [len(part) for part in chunks(X.repeat(3, 1), 5)] == [4, 4, 4]  # of nearly equal size


def test_loading_knows_parameters_and_buffers_and_nothing_else() -> None:
    made = net()
    made.load(
        Tree({"body.fc.bias": torch.tensor([5.0, 6.0])}), Tree({"body.bn.running_mean": torch.tensor([7.0, 8.0])})
    )
    assert made.body.fc.bias.tolist() == [5.0, 6.0]
    assert made.stats()["body.bn.running_mean"].tolist() == [7.0, 8.0]
    with pytest.raises(KeyError):
        made.load(Tree({"body.nobody": torch.zeros(1)}))


def test_a_parameter_without_gradient_has_a_gradient_of_zero() -> None:
    made = net(weights="frozen_random")
    made.body.fc.weight.grad = torch.ones(2, 2)
    g = made.gradient()
    assert set(g) == set(made.params())
    assert g["body.fc.weight"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert g["body.fc.bias"].tolist() == [0.0, 0.0]
    made.set_gradient(Tree({"body.fc.bias": torch.tensor([2.0, 3.0])}))
    assert made.body.fc.bias.grad.tolist() == [2.0, 3.0]


def test_a_frozen_classifier_is_a_buffer_until_it_thaws() -> None:
    made = net(weights="frozen_random", bias=False)
    assert "head.weight" in made.frozen()
    assert "head.weight" not in made.params()
    first = made.frozen()["head.weight"]
    made.thaw(lambda name: name == "head.weight")
    assert torch.equal(made.params()["head.weight"], first)
    assert "head.weight" not in made.frozen()


def test_parts_are_looked_up_again_once_the_head_is_another() -> None:
    made = net()
    assert made.parts() is made.parts()
    made.set_classifier(torch.ones(3, 2), feat="id")
    assert made.params()["head.weight"].tolist() == [[1.0, 1.0]] * 3
    assert made.head_spec["feat"] == "id"


def test_all_tensors_of_a_prediction_make_the_same_prediction() -> None:
    made = net(weights="frozen_random")
    made.train()(X)  # the statistics move
    again = net(weights="frozen_random").load(made.tensors()).eval()
    assert torch.equal(again(X), made.eval()(X))


# ---- teachers
class Counting(nn.Linear):
    """A body that counts its passes."""

    dim, passes = 2, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().forward(x)


def batch(rows: list[int] | None) -> SimpleNamespace:
    at = list(range(4)) if rows is None else rows
    return SimpleNamespace(x=X[at], rows=None if rows is None else torch.tensor(rows))


def test_a_teacher_computes_all_features_once_for_batches_that_know_their_rows() -> None:
    made = net(Counting(2, 2))
    teacher = made.teacher(made.params().copy(), X)
    expected = made.body(X)
    found = [teacher.features(batch(rows)) for rows in ([0, 1], [3, 2], [1])]
    assert teacher.net.body.passes == 1
    for rows, h in zip(([0, 1], [3, 2], [1]), found, strict=True):
        assert torch.allclose(h, expected[rows])
    assert torch.allclose(teacher.logits(batch([2])), made.head(expected[[2]]))
    teacher.features(batch(None))  # augmented: nobody has computed these
    assert teacher.net.body.passes == 2


def test_a_teacher_that_normalises_by_the_batch_looks_nothing_up() -> None:
    made = net(Normed(track=False))
    teacher = made.teacher(made.params().copy(), X)
    assert torch.allclose(teacher.features(batch([0, 1])), teacher.net.features(X[:2]))
    assert not torch.allclose(teacher.features(batch([0, 1])), teacher.net.features(X)[:2], atol=1e-2)


def test_a_teacher_is_a_copy_that_learns_nothing() -> None:
    made = net()
    teacher = made.teacher(made.params().copy(), X)
    with torch.no_grad():
        made.body.fc.weight.zero_()
    assert float(teacher.net.body.fc.weight.abs().sum()) > 0
    assert not any(p.requires_grad for p in teacher.net.parameters())
    assert not any(m.training for m in teacher.net.modules())

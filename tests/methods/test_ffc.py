"""Free-form calibration: ridge regression on pooled unit features, from sums that clients send."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toy
from toy import Normed, OneWeight, assert_same, several, skewed, task_of

from headway.base.names import in_body
from headway.base.tree import stream
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.methods.ffc import FFC
from headway.metrics.accuracy import global_score
from headway.training import rounds

X = [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [0.0, 4.0], [7.0, 7.0], [1.0, 1.0]]
Y = [0, 0, 2, 1, 1, 0]
SPLITS = [[[0, 1, 2, 3, 4, 5]], [[0, 3], [1, 2, 4, 5]], [[0], [1], [2, 3], [], [4], [5]]]


def calibrated(text: str, task):
    recipe = parse(text)
    return rounds.finish(rounds.begin(recipe, task), recipe, task, LocalEngine())


def ridge(x, y, classes: int, factor: float) -> np.ndarray:
    """argmin ||Z W^T - Y||^2 + lambda ||W||^2 by least squares on the stacked system, lambda = factor tr(Z'Z)/d."""
    z = np.asarray(x, dtype=np.float64)
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    lam = factor * len(z) / z.shape[1]  # tr(Z'Z) = n for unit rows
    stacked = np.vstack([z, np.sqrt(lam) * np.eye(z.shape[1])])
    target = np.vstack([np.eye(classes)[y], np.zeros((z.shape[1], classes))])
    return np.linalg.lstsq(stacked, target, rcond=None)[0].T


@pytest.mark.parametrize("parts", SPLITS, ids=str)
@pytest.mark.parametrize("factor", [1e-6, 0.5])
def test_equals_ridge_regression_on_pooled_data_for_any_split(parts, factor: float) -> None:
    task = task_of(X, Y, parts, classes=3, body=lambda: OneWeight(2.0, 2))
    net = calibrated(f"ffc(ridge={factor})", task)
    np.testing.assert_allclose(net.head.weight.detach().numpy(), ridge(X, Y, 3, factor), rtol=1e-5, atol=1e-6)


def test_by_hand() -> None:
    # unit features (1, 0) twice and (0, 1) once, labels 0, 1, 1: A = diag(2, 1), B = ((1, 1), (0, 1)), hardly a ridge:
    # W^T = ((1/2, 1/2), (0, 1))
    task = task_of([[3.0, 0.0], [1.0, 0.0], [0.0, 5.0]], [0, 1, 1], [[0, 1], [2]], body=lambda: OneWeight(1.0, 2))
    net = calibrated("ffc(ridge=1e-9)", task)
    assert torch.allclose(net.head.weight, torch.tensor([[0.5, 0.0], [0.5, 1.0]]), atol=1e-6)
    assert torch.allclose(net(torch.tensor([[0.0, 9.0]])), torch.tensor([[0.0, 1.0]]), atol=1e-6)


def test_clients_send_two_matrices() -> None:
    # Z = (0.6, 0.8): A = Z'Z, B = Z' onehot(1)
    task = task_of([[3.0, 4.0]], [1], [[0]], body=lambda: OneWeight(1.0, 2))
    sent = FFC().survey(task.net(parse("ffc")), *task.data[0])
    assert torch.allclose(sent["gram"].A, torch.tensor([[0.36, 0.48], [0.48, 0.64]], dtype=torch.float64), atol=1e-6)
    assert torch.allclose(sent["gram"].B, torch.tensor([[0.0, 0.6], [0.0, 0.8]], dtype=torch.float64), atol=1e-6)


def test_the_calibrated_model_classifies_unit_features() -> None:
    task = skewed(3, train_size=200)
    net = calibrated("ffc", task)
    x = task.dataset.x_test[:9]
    h = net.features(x)
    expected = h / h.norm(dim=1, keepdim=True) @ net.head.weight.T
    assert torch.allclose(net(x), expected, atol=1e-5)


@pytest.mark.parametrize("head", ["sphere", "fedetf", "fedbabu", "fedavg+etf", "fednh", "fedtc", "fedrod", "fedfn"])
def test_works_on_any_global_classifier_and_touches_nothing_else(head: str) -> None:
    task, recipe = skewed(4, train_size=400, lr=0.3), parse(f"{head}+ffc")
    server, engine = several(recipe, task, 2)
    net = rounds.finish(server, recipe, task, engine)
    assert_same(net.params().copy().only(in_body), server.w.only(in_body))
    assert global_score(net, engine, task).acc > 0.6


def test_under_a_projection_the_classifier_sees_the_projected_features() -> None:
    task, recipe = skewed(3, train_size=200), parse("fedetf+ffc")
    server, engine = several(recipe, task, 1)
    before = rounds.global_net(server, recipe, task)
    net = rounds.finish(server, recipe, task, engine)
    assert torch.equal(net.head.proj.weight, before.head.proj.weight)
    e = torch.cat([before.embedding_of(task.data[k][0]) for k in range(3)])
    y = torch.cat([task.data[k][1] for k in range(3)])
    expected = ridge(e.numpy(), y.numpy(), 10, 1e-6)
    np.testing.assert_allclose(net.head.weight.detach().numpy(), expected, rtol=1e-2, atol=1e-3)


def test_features_are_taken_in_eval_mode() -> None:
    task = task_of(X, Y, SPLITS[1], classes=3, body=Normed)
    recipe = parse("ffc")
    server, engine = several(recipe, task, 2)
    net = rounds.global_net(server, recipe, task).train()
    sent = next(engine.survey(recipe, task, net))["ffc"]
    z = rounds.global_net(server, recipe, task).features(task.data[0][0]).detach()
    z = (z / z.norm(dim=1, keepdim=True)).double()
    assert torch.allclose(sent["gram"].A, z.T @ z, atol=1e-6)
    assert_same(net.stats(), server.stats)


def test_dead_features_do_not_stop_it() -> None:
    # the second feature is zero everywhere: the ridge keeps A invertible
    task = task_of([[1.0, 0.0], [-2.0, 0.0]], [0, 1], [[0, 1]], body=lambda: OneWeight(1.0, 2))
    W = calibrated("ffc", task).head.weight
    assert torch.allclose(W, torch.tensor([[0.5, 0.0], [-0.5, 0.0]]), atol=1e-4)


def test_nothing_is_drawn_at_random() -> None:
    task = skewed(3, train_size=90)
    net, other = task.net(parse("ffc")), task.net(parse("ffc"))
    sent = [FFC().survey(net, *task.data[k]) for k in range(3)]
    one, two = (FFC().calibrate(n, sent, stream(s)).head.weight for n, s in ((net, "a"), (other, "b")))
    assert torch.equal(one, two)


def test_ffc_counts_half_of_its_symmetric_matrix():
    task = toy.skewed(2, train_size=40)
    net = task.net(parse("fedavg"))
    gram = FFC().survey(net, *task.data[0])["gram"]
    d, classes = task.dim, task.classes
    assert gram.nbytes() == 4 * (d * (d + 1) // 2 + d * classes)  # a symmetric matrix is sent as its upper half

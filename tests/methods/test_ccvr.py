"""CCVR: pooled class Gaussians, virtual features, a retrained classifier."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from toy import Normed, OneWeight, assert_same, assert_trains_like_fedavg, fixed, several, skewed, task_of

from headway.base.errors import RecipeError
from headway.base.tree import stream
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.methods.ccvr import CCVR
from headway.methods.parts.calibration import retrain
from headway.models.moments import Moments
from headway.training import rounds


def plane(x: list[list[float]], y: list[int], parts: list[list[int]], classes: int = 3, **given):
    """h = x in the plane; W starts at zero, no bias."""
    first = fixed([[0.0, 0.0]] * classes)
    return task_of(x, y, parts, classes=classes, body=lambda: OneWeight(1.0, 2), first=first, bias=False, **given)


X = [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [0.0, 4.0], [7.0, 7.0], [1.0, 1.0]]
Y = [0, 0, 0, 1, 1, 0]
SPLITS = [[[0, 1, 2, 3, 4, 5]], [[0, 3], [1, 2, 4, 5]], [[0], [1], [2, 3], [4], [5]], [[3, 4], [0, 1, 2, 5]]]


def surveys(task, recipe: str = "ccvr"):
    parsed = parse(recipe)
    net = rounds.global_net(rounds.begin(parsed, task), parsed, task)
    return [s["ccvr"] for s in LocalEngine().survey(parsed, task, net)]


def pooled(answers, c: int) -> Moments:
    return Moments.pool([s[str(c)] for s in answers if str(c) in s])


def virtual(monkeypatch, task, recipe: str = "ccvr", answers=None):
    """(e, y) of the virtual features that the retraining would be given."""
    caught = {}

    def catch(net, e, y, rng, **how):
        caught.update(e=e, y=y, how=how)
        return net

    monkeypatch.setattr("headway.methods.ccvr.retrain", catch)
    parsed = parse(recipe)
    net = task.net(parsed)
    piece = next(p for p in parsed.pieces if p.name == "ccvr")
    piece.calibrate(net, surveys(task, recipe) if answers is None else answers, stream("virtual"))
    return caught["e"], caught["y"], caught["how"]


@pytest.mark.parametrize("parts", SPLITS, ids=str)
def test_eq2_statistics_are_those_of_each_clients_class(parts: list[list[int]]) -> None:
    answers = surveys(plane(X, Y, parts))
    for s, part in zip(answers, parts, strict=True):
        mine = {c: np.array([X[i] for i in part if Y[i] == c]) for c in {Y[i] for i in part}}
        assert s.keys() == {str(c) for c in mine}  # a class without samples sends nothing
        for c, e in mine.items():
            assert s[str(c)].n == len(e)
            np.testing.assert_allclose(s[str(c)].mean, e.mean(0), rtol=1e-12)
            expected = np.cov(e.T, ddof=1) if len(e) > 1 else np.zeros((2, 2))
            np.testing.assert_allclose(s[str(c)].cov, expected, rtol=1e-12)


@pytest.mark.parametrize("parts", SPLITS, ids=str)
def test_eq3_mean_equals_pooled(parts: list[list[int]]) -> None:
    for c in (0, 1):
        e = np.array([x for x, y in zip(X, Y, strict=True) if y == c])
        np.testing.assert_allclose(pooled(surveys(plane(X, Y, parts)), c).mean, e.mean(0), rtol=1e-12)


@pytest.mark.parametrize("parts", SPLITS, ids=str)
def test_eq4_covariance_equals_pooled(parts: list[list[int]]) -> None:
    for c in (0, 1):
        e = np.array([x for x, y in zip(X, Y, strict=True) if y == c])
        np.testing.assert_allclose(pooled(surveys(plane(X, Y, parts)), c).cov, np.cov(e.T, ddof=1), rtol=1e-10)


def test_eq4_on_real_features_of_a_label_skewed_federation() -> None:
    task = skewed(6, train_size=300)
    answers = surveys(task)
    net = task.net(parse("ccvr"))
    used = torch.cat([task.data[k][0] for k in range(6)])
    labels = torch.cat([task.data[k][1] for k in range(6)])
    e = net.features_of(used).double()
    for c in labels.unique().tolist():
        np.testing.assert_allclose(pooled(answers, c).cov, np.cov(e[labels == c].T, ddof=1), rtol=1e-6, atol=1e-12)


def test_virtual_features_have_the_pooled_moments(monkeypatch) -> None:
    e, y, _ = virtual(monkeypatch, plane(X, Y, SPLITS[2]), "ccvr(per_class=20000)")
    for c in (0, 1):
        real = np.array([x for x, label in zip(X, Y, strict=True) if label == c])
        drawn = e[y == c].double().numpy()
        cov = np.cov(real.T, ddof=1)
        np.testing.assert_allclose(drawn.mean(0), real.mean(0), atol=0.15)
        np.testing.assert_allclose(np.cov(drawn.T), cov, atol=0.04 * cov.max())


def test_as_many_virtual_features_a_class_as_asked_for(monkeypatch) -> None:
    e, y, how = virtual(monkeypatch, plane(X, Y, SPLITS[0]), "ccvr(per_class=7,lr=0.2,epochs=3)")
    assert e.shape == (14, 2)
    assert y.tolist() == [0] * 7 + [1] * 7
    assert how == {"lr": 0.2, "epochs": 3}


def test_a_class_with_one_feature_borrows_the_mean_covariance(monkeypatch) -> None:
    # class 2 has a single sample at (50, 60); its spread is the mean of the others'
    task = plane([*X, [50.0, 60.0]], [*Y, 2], [[0, 1, 6], [2, 3, 4, 5]])
    e, y, _ = virtual(monkeypatch, task, "ccvr(per_class=20000)")
    real = [np.array([x for x, label in zip(X, Y, strict=True) if label == c]) for c in (0, 1)]
    cov = sum(np.cov(r.T, ddof=1) for r in real) / 2
    drawn = e[y == 2].double().numpy()
    np.testing.assert_allclose(drawn.mean(0), [50, 60], atol=0.15)
    np.testing.assert_allclose(np.cov(drawn.T), cov, atol=0.04 * cov.max())


def test_single_features_everywhere_are_their_own_virtual_ones(monkeypatch) -> None:
    e, _, _ = virtual(monkeypatch, plane([[2.0, 0.0], [0.0, 1.0]], [0, 1], [[0], [1]]), "ccvr(per_class=3)")
    assert e.tolist() == [[2.0, 0.0]] * 3 + [[0.0, 1.0]] * 3


def test_retraining_by_hand() -> None:
    # e = (2, 0) of class 0 and (0, 1) of class 1, W = 0: dW_0 = ((-1/2)(2, 0) + (1/2)(0, 1)) / 2 = (-1/2, 1/4)
    task = plane([[2.0, 0.0], [0.0, 1.0]], [0, 1], [[0], [1]], classes=2)
    recipe = parse("ccvr(per_class=1,lr=0.1,epochs=1)")
    net = rounds.finish(rounds.begin(recipe, task), recipe, task, LocalEngine())
    assert torch.allclose(net.head.weight, torch.tensor([[0.05, -0.025], [-0.05, 0.025]]))


def test_two_steps_of_retraining_have_momentum_and_weight_decay() -> None:
    # a batch of all samples twice: v = 0.9 v + g + 1e-5 W, with lr = 0.1
    task = plane([[2.0, 0.0], [0.0, 1.0]], [0, 1], [[0], [1]], classes=2)
    net = task.net(parse("ccvr"))
    e, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    retrain(net, e, y, stream("r"), lr=0.1, epochs=2)
    w, v = torch.zeros(2, 2), torch.zeros(2, 2)
    for _ in range(2):
        p = (e @ w.T).softmax(1) - torch.eye(2)
        v = 0.9 * v + p.T @ e / 2 + 1e-5 * w
        w = w - 0.1 * v
    assert torch.allclose(net.head.weight, w, atol=1e-7)


def test_a_missing_class_is_left_out_and_its_weights_stay() -> None:
    task = task_of(X, Y, SPLITS[1], classes=3, body=lambda: OneWeight(1.0, 2), first=fixed([[0.1, 0.2]] * 3))
    recipe = parse("ccvr(epochs=5)")
    server = rounds.begin(recipe, task)
    net = rounds.finish(server, recipe, task, LocalEngine())
    assert not torch.equal(net.head.weight[0], server.w["head.weight"][0])
    assert torch.equal(net.head.weight[2], server.w["head.weight"][2])
    assert torch.equal(net.head.bias[2], server.w["head.bias"][2])


def test_only_the_classifier_moves_and_the_server_keeps_its_model() -> None:
    task, recipe = skewed(3, train_size=90), parse("ccvr(epochs=2)")
    server, engine = several(recipe, task, 1)
    held = copy.deepcopy(server)
    net = rounds.finish(server, recipe, task, engine)
    assert_same(server, held)
    after = net.params().copy()
    changed = {name for name, v in after.items() if not torch.equal(v, server.w[name])}
    assert changed == {"head.weight", "head.bias"}
    assert not net.training


def test_retraining_starts_from_the_global_classifier() -> None:
    task = skewed(3, train_size=90)
    recipe = parse("ccvr(epochs=1,lr=1e-9)")
    server, engine = several(recipe, task, 2)
    assert torch.allclose(rounds.finish(server, recipe, task, engine).head.weight, server.w["head.weight"], atol=1e-6)


def test_all_clients_take_part_also_those_never_sampled() -> None:
    task = plane(X, Y, SPLITS[2], sampling=0.2)
    answers = surveys(task)
    assert len(answers) == 5
    assert sum(m.n for s in answers for m in s.values()) == 6


def test_an_empty_client_sends_nothing() -> None:
    assert len(surveys(plane(X, Y, [[0, 1, 2, 3, 4, 5], []]))) == 1


def test_statistics_are_taken_in_eval_mode_and_leave_batchnorm_alone() -> None:
    task = task_of(X, Y, SPLITS[1], body=Normed)
    recipe = parse("ccvr(epochs=1)")
    server, engine = several(recipe, task, 2)
    net = rounds.global_net(server, recipe, task).train()
    answers = list(engine.survey(recipe, task, net))
    assert_same(net.stats(), server.stats)
    x, y = task.data[0]
    e = rounds.global_net(server, recipe, task).features(x)[y == 0].detach()
    assert torch.allclose(answers[0]["ccvr"]["0"].mean, e.double().mean(0))
    assert net.training  # the mode is put back


def test_statistics_are_of_what_the_classifier_sees() -> None:
    # under FN the classifier sees unit features
    answers = surveys(plane([[3.0, 4.0], [0.0, 2.0]], [0, 1], [[0, 1]]), "fn+ccvr")
    assert torch.allclose(answers[0]["0"].mean, torch.tensor([0.6, 0.8], dtype=torch.float64))


def test_training_is_untouched() -> None:
    assert_trains_like_fedavg("fedavg+ccvr")


def test_the_same_seed_calibrates_alike() -> None:
    task, recipe = skewed(3, train_size=90), parse("ccvr(epochs=2)")
    server, engine = several(recipe, task, 1)
    first, again = (rounds.finish(server, recipe, task, engine).head.weight for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("etf+ccvr", r"etf freezes it; write ccvr\(replace_head=true\)"),
        ("babu+ccvr", r"babu freezes it; write ccvr\(replace_head=true\)"),
        ("fedetf+oracle", r"etfproj freezes it; write oracle\(replace_head=true\)"),
        ("fedper+ccvr", "fedper has none; drop ccvr, or write"),
        ("fedrep+ccvr", "fedrep has none; drop ccvr, or write"),
        ("lgfedavg+ffc", "lgfedavg has none; drop ffc, or write"),
    ],
)
def test_recipes_without_a_global_classifier_to_retrain_are_refused(text: str, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        rounds.begin(parse(text), skewed(2, train_size=30))


def test_defaults_are_the_papers() -> None:
    assert CCVR() == CCVR(per_class=100, lr=0.01, epochs=100)


def test_ccvr_pools_unbiased_covariances_under_the_n_minus_1_weights() -> None:
    # clients of 2 and 3: dividing by N at the client and weighing by N - 1 at the server loses a third and a half
    e = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 1.0], [9.0, 3.0], [4.0, 8.0]], dtype=torch.float64)
    parts = [e[:2], e[2:]]
    task = task_of(e, [0] * 5, [[0, 1], [2, 3, 4]], classes=2, body=lambda: OneWeight(1.0, 2))
    recipe = parse("ccvr")
    answers = list(LocalEngine().survey(recipe, task, task.net(recipe)))
    pooled = Moments.pool([a["ccvr"]["0"] for a in answers]).cov.numpy()
    np.testing.assert_allclose(pooled, np.cov(e.T.numpy(), ddof=1), rtol=1e-6)
    mu = e.mean(0)
    biased = sum((len(p) - 1) * torch.from_numpy(np.cov(p.T.numpy(), ddof=0)) for p in parts) / 4
    biased = biased + sum(len(p) * torch.outer(p.mean(0) - mu, p.mean(0) - mu) for p in parts) / 4
    assert float(np.abs(pooled - biased.numpy()).max()) > 0.5

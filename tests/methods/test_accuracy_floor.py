"""Every recipe learns label-skewed digits: a sign error cannot hide behind equations that agree with themselves."""

from __future__ import annotations

import pytest
from toy import skewed

from headway import rounds
from headway.diagnostics.accuracy import global_score, personal_ids, received_score
from headway.engine import LocalEngine
from headway.methods import recipe as parse

ROUNDS = 8


def scores(text: str, lr: float = 0.1) -> tuple[float, float]:
    """(global accuracy, mean personal accuracy on receiving) after 8 rounds of dir(0.1) over 10 clients."""
    recipe, engine = parse(text), LocalEngine()
    task = skewed(10, lr=lr, batch_size=64, rounds=ROUNDS)
    server = rounds.run(recipe, task, engine, ROUNDS)
    net = rounds.finish(server, recipe, task, engine)
    score = global_score(net, task.dataset.x_test, task.dataset.y_test)
    own = received_score(server, recipe, task, engine.store, net, score, personal_ids(task))
    assert own.mean is not None
    return score.acc, own.mean


@pytest.mark.parametrize(
    ("text", "lr"),
    [
        ("fedavg", 0.1),
        ("fedprox(mu=0.1)", 0.1),
        ("scaffold", 0.1),
        ("fedavgm", 0.1),
        ("fedfn", 0.5),
        ("fedbabu", 0.1),
        ("fedavg+etf", 0.1),
        ("fedetf", 0.1),
        ("fedavg+etf+gmv(warmup=3)", 0.1),
        ("moon", 0.1),
        ("fedavg+ccvr(epochs=20)", 0.1),
    ],
)
def test_global_model_learns(text: str, lr: float) -> None:
    assert scores(text, lr)[0] > 0.55  # chance is 0.1


@pytest.mark.parametrize("text", ["fedper", "fedrep", "fedtc(head_lr=1)"])
def test_personal_models_learn(text: str) -> None:
    assert scores(text)[1] > 0.8


def test_calibration_mends_the_classifier() -> None:
    before, after = scores("fedavg")[0], scores("fedavg+ccvr(epochs=20)")[0]
    assert after > before + 0.02


def test_momentum_on_the_server_gains() -> None:
    assert scores("fedavgm(beta=0.5)")[0] > scores("fedavg")[0]

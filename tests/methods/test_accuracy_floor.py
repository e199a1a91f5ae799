"""Every recipe learns label-skewed digits: a sign error cannot hide behind equations that agree with themselves."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from toy import skewed

from headway.engines import LocalEngine
from headway.methods import REGISTRY
from headway.methods import recipe as parse
from headway.metrics.accuracy import global_score, personal_ids, received_score
from headway.training import rounds

ROUNDS = 8


@cache
def federation(lr: float):
    """Digits over 6 clients by dir(0.1)."""
    return skewed(6, lr=lr, batch_size=64, rounds=ROUNDS)


def scores(text: str, lr: float = 0.1, n: int = ROUNDS) -> tuple[float, float, float]:
    """Accuracies after n rounds: global, personal on receiving, personal at the end."""
    return measured(text, lr, n)


@cache
def measured(text: str, lr: float, n: int) -> tuple[float, float, float]:
    torch.set_num_threads(1)
    recipe, engine = parse(text), LocalEngine()
    task = federation(lr).for_recipe(recipe)
    server = rounds.run(recipe, task, engine, n)
    net = rounds.finish(server, recipe, task, engine)
    score = global_score(net, engine, task)
    ids = personal_ids(task)
    own = received_score(server, recipe, task, engine, net, score, ids)
    assert own.mean is not None
    cast = rounds.cast_of(rounds.predicting(server, recipe), recipe)
    phases = rounds.personal_phases(recipe, task) if recipe.acting("personalise") else []
    last = [r.last / r.n for r in engine.personal(recipe, task, cast, ids, phases, False)] if phases else [own.mean]
    return score.acc, own.mean, sum(last) / len(last)


# recipe, learning rate, accuracy that a few points less of luck still reach; chance is 0.1
GLOBAL = [
    # bases
    ("fedavg", 0.1, 0.7),
    ("fedavgm", 0.1, 0.7),
    ("fedopt(server_lr=1,momentum=0.5)", 0.1, 0.8),
    ("fedadagrad", 0.1, 0.8),
    ("fedadam", 0.1, 0.75),
    ("fedyogi", 0.1, 0.75),
    ("scaffold", 0.1, 0.7),
    ("fednova", 0.1, 0.7),
    ("feddyn(alpha=0.1)", 0.1, 0.8),
    ("fedexp", 0.1, 0.8),
    ("perfedavg(alpha=0.01)", 0.1, 0.65),  # a start that is good after a long step is not good before it
    ("perfedavg(alpha=0.01,order=hf)", 0.1, 0.65),
    ("centralized", 0.1, 0.9),
    # heads
    ("linear", 0.1, 0.7),
    ("nobias", 0.1, 0.7),
    ("fedfn", 0.5, 0.6),
    ("fedbabu", 0.1, 0.55),
    ("fedavg_etf", 0.1, 0.7),
    ("fedetf", 0.1, 0.75),
    ("fedetf-nobalance", 0.1, 0.75),
    ("fedetf-noproj", 0.5, 0.75),
    ("fedetf-fixedtemp", 0.5, 0.75),
    ("spherefed-ce", 1.0, 0.8),
    ("sphere(tau=10)", 0.5, 0.8),
    ("spherefed-mse", 3.0, 0.75),
    ("clsnorm", 0.1, 0.8),
    ("cosine", 0.1, 0.85),
    ("fednh", 0.1, 0.75),
    ("ema_proto", 0.1, 0.75),
    # losses
    ("ce", 0.1, 0.7),
    ("balanced", 0.1, 0.6),
    ("fedrs", 0.1, 0.65),
    ("mse", 1.0, 0.75),
    ("sphere+dotreg", 2.0, 0.75),
    # regularisers, strong enough that a wrong sign would show
    ("fedprox(mu=1)", 0.1, 0.7),
    ("clsprox(mu=1)", 0.1, 0.7),
    ("fedfr(mu=0.05)", 0.1, 0.65),
    ("moon", 0.1, 0.7),
    ("fedmmd(weight=0.3)", 0.1, 0.65),
    ("fedntd", 0.1, 0.6),
    ("fedavg+protoalign(weight=3)", 0.1, 0.65),
    ("fedavg+etf+gmv(warmup=3)", 0.1, 0.55),
    ("fedaws(lr=0.5)", 0.1, 0.7),
    # sharing, two classifiers, turns
    ("all", 0.1, 0.7),
    ("dual", 0.1, 0.6),
    ("fedrod(private=hyper)", 0.1, 0.6),
    ("twin", 0.1, 0.55),
    ("fedtc(overwrite=true,head_lr=1)", 0.1, 0.7),
    ("alternate", 0.1, 0.6),
    # calibrations
    ("fedavg+ccvr(epochs=20)", 0.1, 0.85),
    ("fedavg+ccvr(epochs=20,transform=virtual)", 0.1, 0.85),
    ("fedavg+oracle(epochs=20)", 0.1, 0.88),
    ("fedavg+ffc", 0.1, 0.88),
]
RECEIVED = ["local", "body", "fedrep", "head", "fedproto", "phead", "fedrod(private=hyper)", "fedtc(head_lr=1)",
            "ditto"]  # fmt: skip
AFTERWARDS = ["fedbabu+ft", "fedavg+extra_epoch", "perfedavg+one_step", "fedetf+alg2(turns=2,epochs=1)"]


@pytest.mark.parametrize(("text", "lr", "floor"), GLOBAL)
def test_global_model_learns(text: str, lr: float, floor: float) -> None:
    assert scores(text, lr)[0] > floor


@pytest.mark.parametrize("text", RECEIVED)
def test_personal_models_learn(text: str) -> None:
    assert scores(text)[1] > 0.85


@pytest.mark.parametrize("text", AFTERWARDS)
def test_personalised_models_learn(text: str) -> None:
    glob, received, final = scores(text)
    assert final > 0.85
    assert final > max(glob, received) + 0.02
    assert final > scores(text, n=0)[2] + 0.05  # and the federation gave them a better start than none


def test_every_piece_and_every_alias_has_its_floor() -> None:
    texts = [text for text, _, _ in GLOBAL] + RECEIVED + AFTERWARDS
    pieces = {p.name for text in texts for p in parse(text).pieces}
    words = {word.split("(")[0] for text in texts for word in text.split("+")}
    assert {p.name for p in REGISTRY.pieces} <= pieces
    assert set(REGISTRY.aliases) <= words


def test_calibration_mends_the_classifier() -> None:
    before, after = scores("fedavg")[0], scores("fedavg+ccvr(epochs=20)")[0]
    assert after > before + 0.02


def test_momentum_on_the_server_gains() -> None:
    assert scores("fedavgm(beta=0.5)")[0] > scores("fedavg")[0]

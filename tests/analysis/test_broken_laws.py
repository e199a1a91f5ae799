"""Each law can be broken: a piece that breaks it is found, and the verdict says where."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import headway
from headway.analysis import laws
from headway.core import Batch, Piece, Tree, setting
from headway.methods import REGISTRY

SEEN: list[int] = []


@dataclass(frozen=True)
class Good(Piece):
    """Changes nothing that a law protects."""

    name, slot = "good", "reg"
    mu: float = setting(0.1, "mu, strength", ge=0, neutral=0.0)

    def penalty(self, batch, local):
        return self.mu * batch.z.square().mean()


class Misspelt(Good):
    """Its hook has another name."""

    def penality(self, batch, local):
        return torch.zeros(())


@dataclass(frozen=True)
class Undescribed(Good):
    """Has a setting without a meaning."""

    nu: float = 1.0


@dataclass(frozen=True)
class NotNeutral(Good):
    """Acts at its neutral setting too."""

    def penalty(self, batch, local):
        return 0.1 * batch.z.square().mean()


class Remembering(Good):
    """Keeps state outside of notes."""

    def penalty(self, batch, local):
        SEEN.append(1)
        return 1e-3 * len(SEEN) * batch.z.square().mean()


class ByRound(Good):
    """Depends on what is lost in a checkpoint."""

    def init_client(self, w):
        return {"n": torch.zeros(1)}

    def report(self, w, local):
        SEEN.append(local.round)
        return {}, {"n": torch.full((1,), float(len(SEEN)))}


class Writing(Good):
    """Writes into what it is given."""

    def absorb(self, arrived):
        arrived.reports[0].w["head.bias"].add_(1)
        return arrived.kept


class Sets(Good):
    """Keeps what cannot be stored."""

    def init_server(self, w, net):
        return {"seen": {1, 2}}


class Sending(Good):
    """Sends the frozen classifier."""

    def head(self):
        return {"weights": "frozen_etf", "bias": False}

    def report(self, w, local):
        return {"w": w | Tree({"head.weight": local.net.frozen()["head.weight"]})}, {}


class Thawing(Good):
    """Trains a frozen tensor."""

    def head(self):
        return {"weights": "frozen_etf", "bias": False}

    def report(self, w, local):
        dict(local.net.named_buffers())["head.weight"].mul_(0.9)
        return {}, {}


class Breaking(Good):
    """Fails beside a piece that has no bias."""

    def penalty(self, batch: Batch, local):
        return local.net.params()["head.bias"].sum() * 0


BREAKS = [
    (Misspelt, "hooks", "good.penality is no hook and is never called; did you mean 'penalty'?"),
    (Undescribed, "documented", "good.nu is not described"),
    (NotNeutral, "neutral", "good at {'mu': 0.0}: /0/body"),
    (Remembering, "repeatable", "the second run: "),
    (Remembering, "resume", "the resumed run: "),
    (ByRound, "machine", "clients on another machine: "),
    (ByRound, "workers", "two workers: "),
    (Remembering, "disk", "states on disk: "),
    (Remembering, "order", "the order good+fedavg: "),
    (Writing, "arguments", "a hook of the server changed the reports: /0/w/head.bias differs"),
    (Sets, "values", "what a piece keeps cannot be stored: "),
    (Sending, "unsent", "the frozen tensor head.weight is sent to the server"),
    (Thawing, "frozen", "a frozen tensor moved: /head.weight differs"),
    (Breaking, "composes", "refuse it with `requires` or in `check`"),
]


def verdict(law: str, *pieces: Piece) -> laws.Verdict:
    SEEN.clear()
    return laws.verdict(law, laws.LAWS[law], laws.Trial(REGISTRY.sum_of(pieces), laws.law_task()))


@pytest.mark.parametrize(("cls", "law", "said"), BREAKS, ids=lambda value: getattr(value, "__name__", "")[:20])
def test_a_piece_that_breaks_a_law_is_found(cls, law, said):
    assert said in verdict(law, cls()).broken


@pytest.mark.parametrize("law", laws.LAWS)
def test_a_good_piece_breaks_none(law):
    assert not verdict(law, Good()).broken


def test_every_law_but_one_has_a_piece_that_breaks_it():
    assert {*laws.LAWS} - {law for _, law, _ in BREAKS} == {"start"}  # no hook reaches the body's first weights


def test_a_law_that_says_nothing_here_is_not_tried():
    assert verdict("neutral", headway.recipe("fn").pieces[1]).untried == "none of its settings is declared neutral"


def test_differences_name_the_place():
    one = {"a": [torch.zeros(2), 1.0], "b": "x"}
    assert laws.difference(one, {"a": [torch.zeros(2), 1.0], "b": "x"}) is None
    assert laws.difference(one, {"a": [torch.ones(2), 1.0], "b": "x"}) == "/a/0 differs"
    assert laws.difference(one, {"a": [torch.zeros(2)], "b": "x"}) == "/a has 2 and 1 entries"
    assert laws.difference(float("nan"), float("nan")) is None

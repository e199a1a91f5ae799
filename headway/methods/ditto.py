"""Ditto: Fair and Robust Federated Learning Through Personalization (Li et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Local, Note, Piece, Tree, setting
from headway.methods.prox import Prox


@dataclass(frozen=True)
class Ditto(Piece):
    """Beside the federation each client trains a model of its own, v_k, pulled to the model it received."""

    name, slot, paper = "ditto", "personal", "li2021ditto"
    pull: float = setting(0.75, "lambda", ge=0, also="lambda")
    plain_sgd: bool = setting(False, "v without momentum and weight decay, as FedETF's code runs it")

    def requires(self) -> set[str]:
        return {"server"}

    def provides(self) -> set[str]:
        return {"own model"}

    def init_client(self, w: Tree) -> Note:
        return {"v": w}

    def prepare(self, local: Local) -> Note:  # before w trains: what v does not hold yet starts as received
        return {"received": local.net.params().copy() | local.net.stats()}

    def report(self, w: Tree, local: Local) -> tuple[Note, Note]:
        start = local.ready["received"] | local.kept["v"]
        v = local.fit(start, Prox(self.pull, self.plain_sgd))  # v <- v - eta (grad f(v) + lambda (v - w^t))
        return {}, {"v": v}

    def evaluated(self, w: Tree, kept: Note) -> Tree:  # a client predicts with v_k
        v: Tree = kept["v"]
        return v

"""Ditto: Fair and Robust Federated Learning Through Personalization (Li et al., 2021)."""

from dataclasses import dataclass
from typing import Any

from headway.local import Local
from headway.piece import Piece, setting
from headway.tree import Tree


@dataclass(frozen=True)
class Ditto(Piece):
    """Beside the federation each client trains a model of its own, v_k, pulled to the model it received."""

    name, slot, paper, needs_server = "ditto", "personal", "li2021ditto", True
    also = {"lambda": "pull"}  # noqa: RUF012
    pull: float = setting(0.75, "lambda", ge=0)
    plain_sgd: bool = setting(False, "v without momentum and weight decay, as FedETF's code runs it")

    def init_client(self, w: Tree) -> dict[str, Any]:
        return {"v": w}

    def prepare(self, local: Local) -> dict[str, Any]:  # before w trains: what v does not hold yet starts as received
        return {"received": local.net.params().copy() | local.net.stats()}

    def report(self, w: Tree, local: Local) -> tuple[dict[str, Any], dict[str, Any]]:
        start = local.ready["received"] | local.kept["v"]
        return {}, {"v": local.fit(start, self.pull, self.plain_sgd)}  # v <- v - eta (grad f(v) + lambda (v - w^t))

    def own_model(self, kept: dict[str, Any]) -> Tree:
        v: Tree = kept.get("v", Tree())
        return v

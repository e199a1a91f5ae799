"""Ditto: Fair and Robust Federated Learning Through Personalization (Li et al., 2021)."""

from dataclasses import dataclass
from typing import Any

from headway.local import Local
from headway.piece import Piece, setting
from headway.tree import Tree


@dataclass(frozen=True)
class Ditto(Piece):
    """Beside the federation each client trains a model of its own, v_k, pulled to the model it received."""

    name, slot, paper = "ditto", "personal", "li2021ditto"
    pull: float = setting(0.75, "lambda", ge=0)

    def init_client(self, w: Tree) -> dict[str, Any]:
        return {"v": w}

    def report(self, w: Tree, local: Local) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"v": local.fit(local.kept["v"], self.pull)}  # v <- v - eta (grad f(v) + lambda (v - w^t))

    def own_model(self, kept: dict[str, Any]) -> Tree:
        v: Tree = kept.get("v", Tree())
        return v

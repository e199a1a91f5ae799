"""Dot-regression loss: Inducing Neural Collapse in Imbalanced Learning (Yang et al., 2022)."""

from __future__ import annotations

from headway.base.errors import RecipeError
from headway.core import Batch, Local, Piece, Setup, Tensor


class DotReg(Piece):
    """Only attraction: the feature is drawn to its class vector, no other class pushes."""

    name, slot, paper = "dotreg", "loss", "yang2022dotreg"

    def check(self, setup: Setup) -> list[str]:
        head = setup.recipe.head()
        if head.get("weights") not in ("frozen_etf", "frozen_orth") or head.get("feat", "id") == "id":
            raise RecipeError(
                f"{setup.recipe.names}: dotreg needs unit features and a frozen unit classifier and this head has not "
                f"both; use it with etfproj or sphere"
            )
        return []

    def criterion(self, batch: Batch, local: Local) -> Tensor:  # 1/2 (v_y . e - 1)^2
        head = local.net.head
        seen = batch.h if batch.lifted is None else batch.lifted
        e, v = head.embed(seen), head.weight[batch.y]  # type: ignore[operator, index]  # [B, d] each
        return 0.5 * ((v * e).sum(1) - 1).square().mean()

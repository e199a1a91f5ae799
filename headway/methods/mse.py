"""SphereFed's loss: mean squared error to one-hot labels (Dong et al., 2022)."""

from __future__ import annotations

from headway.core import Batch, F, Local, Piece, Tensor


class MSE(Piece):
    """The mean over batch and classes: with C classes the gradient is C times smaller than under a sum."""

    name, slot, paper = "mse", "loss", "dong2022spherefed"

    def criterion(self, batch: Batch, local: Local) -> Tensor:  # 1/(B C) sum_{i,c} (z_ic - 1[c = y_i])^2
        return F.mse_loss(batch.z, F.one_hot(batch.y, batch.z.shape[1]).to(batch.z.dtype))

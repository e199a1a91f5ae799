"""The task whose runs the tests of export share."""

from __future__ import annotations

import numpy as np

from headway.training.settings import settings
from headway.training.task import build

SMALL = {"clients": 3, "rounds": 2, "train_size": 200, "test_size": 80, "model": "mlp_small", "local_test": "0.3"}


def stored_images() -> np.ndarray:
    """Test digits as they are stored, uint8 [N, 1, 8, 8]."""
    return build(settings(SMALL)).dataset.x_test.numpy()

"""One thread for all tests: bits depend on the number of threads."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)

"""For all tests: one thread, because bits depend on the number of threads; nothing a test registers stays known."""

import pytest
import torch

from headway.methods import plugins


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nothing_stays_registered():
    """Pieces, models, data sets, partitions and plugins of one test are unknown to the next."""
    before = plugins.known_names()
    yield
    plugins.remove_new(before)
    plugins.PLUGINS.clear()


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """The current directory is the test's own."""
    monkeypatch.chdir(tmp_path)

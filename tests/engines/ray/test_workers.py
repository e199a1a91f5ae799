"""Ray workers on a real cluster: one that dies is replaced, one that cannot work says why. `make ray` runs these."""

from __future__ import annotations

import time

import pytest
import toy
from processes import alive, wait_until

from headway.base.errors import EngineError
from headway.methods import recipe as parse

pytest.importorskip("ray", reason="Ray is not installed; `make ray` installs it and runs these tests")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(580)]


def quiet(done, total):
    pass


def test_work_whose_worker_dies_is_done_by_another(groups, tmp_path):
    said: list[str] = []
    group = groups(say=said.append)
    die = {1: str(tmp_path / "died once")}
    answers = dict(group.spread("work", [0, 1, 2, 3], lambda k: (k, die.get(k, "")), quiet, "number"))
    assert answers == {0: 0, 1: 2, 2: 4, 3: 6}
    assert group.deaths == len(said) == 1
    assert "died while working on number 1" in said[0]


def test_work_that_ends_three_workers_ends_the_run(groups):
    group = groups()
    with pytest.raises(EngineError, match="3 workers died while working on number 7"):
        list(group.spread("work", [7], lambda k: (k, "always"), quiet, "number"))
    assert group.deaths == 3


def test_an_error_in_the_work_is_no_death(groups):
    group = groups(1)
    with pytest.raises(ValueError, match="the work itself is wrong"):
        list(group.spread("work", ["wrong"], lambda k: (k, ""), quiet, "number"))
    assert group.deaths == 0


def test_work_that_is_called_off_is_stopped_at_once(groups):
    group = groups(1)
    group.wait_for_first()
    (pid,) = [worker.pid for worker in group.workers]
    start = time.monotonic()

    def tick(done, total):
        if time.monotonic() - start > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(group.spread("work", ["slow"], lambda k: (k, ""), tick, "number"))
    wait_until(lambda: not alive(pid), 15)
    assert dict(group.spread("work", [4], lambda k: (k, ""), quiet, "number")) == {4: 8}


def test_without_room_the_wait_ends_in_a_sentence(groups, monkeypatch):
    monkeypatch.setattr("headway.engines.ray.engine.PLACE_SECONDS", 2.0)
    group = groups(1, threads=64)
    with pytest.raises(EngineError, match=r"no worker could be started in 2 s; each needs 64 CPU .*fewer workers or"):
        group.wait_for_first()


def test_a_worker_that_cannot_work_says_why(groups):
    with pytest.raises(EngineError, match=r"node here cannot build this task: no file x.npz"):
        groups(1, fault="no file x.npz").wait_for_first()


def test_another_version_on_a_node_is_named(session):
    from headway.engines.ray.engine import WorkerGroup
    from headway.engines.ray.worker import ClientWorker, order_of

    order = order_of(parse("fedavg"), toy.skewed(3), 1)
    order["identity"]["headway"] = "another"
    group = WorkerGroup(session, ClientWorker, order, 1, "cpu", 1, print)
    with pytest.raises(EngineError, match=r"it differs in headway: [0-9.a-z]+ there, another here"):
        group.wait_for_first()
    group.close()

"""A private cluster, and engines and groups of workers on it that are closed when their test ends."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def session():
    """One private cluster for this module; engines find it and leave it up."""
    from headway.engines.ray.session import Session

    opened = Session(None, 3)
    yield opened
    opened.close()


@pytest.fixture
def engines(session):
    """RayEngine(...) that is closed when the test ends; what it says is kept in `said`."""
    from headway.engines.ray.engine import RayEngine

    made = []

    def make(recipe, task, workers=2, **more):
        made.append(RayEngine(recipe, task, workers, **more))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def groups(session):
    """Crews of a worker that ends its own process when it is told to."""
    from headway.engines.ray.engine import WorkerGroup

    class Fragile:  # no module of its own: it is sent whole
        def __init__(self, order):
            self.order = order

        def ready(self):
            import json
            import os

            return json.dumps({"pid": os.getpid(), "node": "here", "fault": json.loads(self.order)["fault"]})

        identify = ready

        def work(self, key, die):
            import os
            import time

            if die and (die == "always" or not os.path.exists(die)):
                open(die, "w").close() if die != "always" else None
                os._exit(3)
            if key == "slow":
                time.sleep(60)
            if key == "wrong":
                raise ValueError("the work itself is wrong")
            return 2 * key

    made = []

    def make(count=2, fault="", threads=1, say=lambda text: None):
        made.append(WorkerGroup(session, Fragile, {"fault": fault}, count, "cpu", threads, say))
        return made[-1]

    yield make
    for group in made:
        group.close()

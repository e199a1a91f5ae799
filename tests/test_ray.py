"""The Ray engine on real clusters: the local engine's bits, whoever dies. `make ray` runs these."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import raynodes
import torch
import toy
from calling import SMALL, SMALL_TASK, headway

from headway import Dataset, rounds, run
from headway.engine import LocalEngine
from headway.engine.transport import from_array, to_array
from headway.errors import EngineError
from headway.experiment import Options, Progress, Stopped, execute, resume
from headway.methods import recipe as parse
from headway.models.net import chunks
from headway.settings import settings
from headway.task import build
from headway.tree import Tree

pytest.importorskip("ray", reason="Ray is not installed; `make ray` installs it and runs these tests")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(580)]

MODEL, METRICS = "model.safetensors", "metrics.jsonl"


@pytest.fixture(scope="module")
def session():
    """One private cluster for this module; engines find it and leave it up."""
    from headway.engine.session import Session

    opened = Session(None, 3)
    yield opened
    opened.close()


@pytest.fixture
def engines(session):
    """RayEngine(...) that is closed when the test ends; what it says is kept in `said`."""
    from headway.engine.cluster import RayEngine

    made = []

    def make(recipe, task, workers=2, **more):
        made.append(RayEngine(recipe, task, workers, **more))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def crews(session):
    """Crews of a worker that ends its own process when it is told to."""
    from headway.engine.cluster import Crew

    class Fragile:  # no module of its own: it travels whole
        def __init__(self, order):
            self.order = order

        def ready(self):
            import json
            import os

            return json.dumps({"pid": os.getpid(), "node": "here", "fault": json.loads(self.order)["fault"]})

        present = ready

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
        made.append(Crew(session, Fragile, {"fault": fault}, count, "cpu", threads, say))
        return made[-1]

    yield make
    for crew in made:
        crew.close()


def quiet(done, total):
    pass


# ---- the engine
@pytest.mark.parametrize("text", raynodes.RECIPES)
def test_one_node_gives_the_bits_of_the_local_engine(text, engines):
    task, recipe = toy.skewed(6), parse(text)
    alone, engine = LocalEngine(), engines(recipe, task)
    ends = [rounds.run(recipe, task, e, 3) for e in (alone, engine)]
    toy.assert_same(toy.state_of(ends[1], engine), toy.state_of(ends[0], alone))
    server, phases = ends[0], rounds.personal_phases(recipe, task)
    finished = [rounds.finish(server, recipe, task, e).tensors() for e in (alone, engine)]  # surveys travel too
    toy.assert_same(finished[1], finished[0])
    args = (recipe, task, rounds.cast_of(server, recipe), range(6), phases, True)
    toy.assert_same(list(engine.personal(*args)), list(alone.personal(*args)))


def test_a_large_test_set_of_an_own_file_is_answered_in_parts(engines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the workers run elsewhere, and the file's name starts here
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2500, 4)).astype("float32"), np.arange(2500) % 3
    np.savez("own.npz", x=x[:90], y=y[:90], x_test=x, y_test=y)
    task = build(settings({"data": "own.npz", "clients": 3, "partition": "iid", "model": "mlp_small"}))
    recipe = parse("fedetf")
    net = rounds.global_net(rounds.begin(recipe, task), recipe, task)
    assert len(chunks(task.dataset.x_test)) > 1
    toy.assert_same(engines(recipe, task).logits(task, net), LocalEngine().logits(task, net))


def test_a_killed_worker_changes_no_bit_and_is_told_of(engines):
    task, recipe = toy.skewed(6, epochs=5), parse("scaffold")
    alone = LocalEngine()
    expected = toy.state_of(rounds.run(recipe, task, alone, 3), alone)
    said, killed = [], []
    engine = engines(recipe, task, say=said.append)

    def tick(done, total):
        if not killed and engine.store.ids() and engine.crew._busy:  # the second round or later
            killed.append(next(iter(engine.crew._busy.values()))[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    engine.tick = tick
    toy.assert_same(toy.state_of(rounds.run(recipe, task, engine, 3), engine), expected)
    assert engine.deaths == 1
    assert len(said) == 1
    assert f"worker {killed[0]}" in said[0]
    assert "died at client" in said[0]


def test_a_stopped_round_leaves_no_trace_and_the_engine_can_be_used_again(engines):
    task, recipe = toy.skewed(6), parse("scaffold")
    engine = engines(recipe, task)
    server = rounds.begin(recipe, task)

    def tick(done, total):
        if done == 2:
            raise KeyboardInterrupt

    engine.tick = tick
    with pytest.raises(KeyboardInterrupt):
        rounds.run_round(server, recipe, task, engine)
    assert engine.store.ids() == []
    assert engine.crew._busy == {}
    engine.tick = quiet
    alone = LocalEngine()
    expected = toy.state_of(rounds.run(recipe, task, alone, 1), alone)
    toy.assert_same(toy.state_of(rounds.run(recipe, task, engine, 1), engine), expected)


def test_a_model_that_cannot_be_built_from_its_name_is_refused(session):
    from headway.engine.cluster import RayEngine

    by_hand = toy.task_of([2.0, 1.0], [0, 1], [[0], [1]], body=toy.OneWeight)  # an object under a model's name
    with pytest.raises(EngineError, match=r"node .* cannot build this task: it differs in first_weights"):
        RayEngine(parse("fedavg"), by_hand, 1)


def test_another_version_on_a_node_is_named(session):
    from headway.engine.cluster import Crew
    from headway.engine.remote import Hand, order_of

    order = order_of(parse("fedavg"), toy.skewed(3), 1)
    order["identity"]["headway"] = "another"
    crew = Crew(session, Hand, order, 1, "cpu", 1, print)
    with pytest.raises(EngineError, match=r"it differs in headway: [0-9.a-z]+ there, another here"):
        crew.gather()
    crew.close()


# ---- shards
def test_data_handed_in_as_arrays_train_on_the_cluster(session, tmp_path):
    """No node could load them: a client's samples travel with its work."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    data = Dataset.of(rng.normal(size=(90, 4)) + np.eye(3, 4)[y], y)
    how = {"data": data, "model": "mlp_small", "clients": 4, "rounds": 2, "partition": "dir(0.3)", "augment": "none"}
    local = run("scaffold+ccvr", out=tmp_path / "local", **how).path
    spread = run("scaffold+ccvr", out=tmp_path / "ray", engine="ray", workers=2, **how).path
    for file in (MODEL, METRICS):
        assert (spread / file).read_bytes() == (local / file).read_bytes()


def test_samples_go_into_the_object_store_once_and_only_for_those_who_take_part(engines):
    task, recipe = toy.skewed(6, sampling=0.5), parse("fedavg")
    engine, put = engines(recipe, task), []
    real = engine.shards._put
    engine.shards._put = lambda parcel: put.append(parcel) or real(parcel)
    rounds.run(recipe, task, engine, 4)
    took_part = {k for t in range(4) for k in task.sampling(t)}
    assert len(put) == len(took_part)
    kept = [from_array(parcel)["y"] for parcel in put]
    assert sum(map(len, kept)) == sum(map(task.data.size, took_part))
    assert len(json.dumps(engine.crew._order)) < 10_000  # and no sample is in what workers are told


# ---- the crew
def test_work_whose_worker_dies_is_done_by_another(crews, tmp_path):
    said: list[str] = []
    crew = crews(say=said.append)
    die = {1: str(tmp_path / "died once")}
    answers = dict(crew.spread("work", [0, 1, 2, 3], lambda k: (k, die.get(k, "")), quiet, "number"))
    assert answers == {0: 0, 1: 2, 2: 4, 3: 6}
    assert crew.deaths == len(said) == 1
    assert "died at number 1" in said[0]


def test_work_that_ends_three_workers_ends_the_run(crews):
    crew = crews()
    with pytest.raises(EngineError, match="number 7 ended 3 workers"):
        list(crew.spread("work", [7], lambda k: (k, "always"), quiet, "number"))
    assert crew.deaths == 3


def test_an_error_in_the_work_is_no_death(crews):
    crew = crews(1)
    with pytest.raises(ValueError, match="the work itself is wrong"):
        list(crew.spread("work", ["wrong"], lambda k: (k, ""), quiet, "number"))
    assert crew.deaths == 0


def test_work_that_is_called_off_is_stopped_at_once(crews):
    crew = crews(1)
    crew.gather()
    (pid,) = [member.pid for member in crew.members]
    start = time.monotonic()

    def tick(done, total):
        if time.monotonic() - start > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(crew.spread("work", ["slow"], lambda k: (k, ""), tick, "number"))
    wait_until(lambda: not alive(pid), 15)
    assert dict(crew.spread("work", [4], lambda k: (k, ""), quiet, "number")) == {4: 8}


def test_without_room_the_wait_ends_in_a_sentence(crews, monkeypatch):
    monkeypatch.setattr("headway.engine.cluster.PLACE_SECONDS", 2.0)
    crew = crews(1, threads=64)
    with pytest.raises(EngineError, match=r"no worker found room in 2 s; each needs 64 CPU .*fewer --workers"):
        crew.gather()


def test_a_worker_that_cannot_work_says_why(crews):
    with pytest.raises(EngineError, match=r"node here cannot build this task: no file x.npz"):
        crews(1, fault="no file x.npz").gather()


# ---- values
def test_values_travel_as_bytes_and_arrive_in_memory_of_their_own():
    value = {
        "t": Tree(a=torch.arange(5.0), b=torch.ones(0), c=torch.tensor(3), d=torch.ones(2, 3, dtype=torch.bfloat16)),
        "flag": torch.tensor([True, False]), "n": 3, "loss": float("nan"), 7: [1.5, None, "text"],
    }  # fmt: skip
    array = to_array(value)
    array.flags.writeable = False  # as the object store hands it out
    first = from_array(array)
    toy.assert_same(first, value)
    first["t"]["a"].add_(1)
    toy.assert_same(from_array(array), value)


# ---- runs
def test_a_run_stopped_on_ray_ends_on_either_engine_with_the_same_bytes(session, tmp_path):
    class Stopping(Progress):
        def round(self, row):
            if row["round"] == 1:
                os.kill(os.getpid(), signal.SIGINT)

    s = settings(SMALL_TASK | {"rounds": 3})
    straight = execute("scaffold+ccvr", s, tmp_path / "local").path
    for name in ("local", "ray"):
        out = tmp_path / f"then-{name}"
        with pytest.raises(Stopped):
            execute("scaffold+ccvr", s, out, Options(engine="ray", workers=2, progress=Stopping()))
        assert json.loads((out / "config.json").read_text())["options"]["engine"] == "ray"
        resume(out, elsewhere={"engine": "local", "address": None} if name == "local" else None)
        for file in (MODEL, METRICS):
            assert (out / file).read_bytes() == (straight / file).read_bytes()


def test_a_comparison_spreads_its_runs_and_a_killed_one_is_made_again(session, tmp_path, monkeypatch):
    from headway.comparison import compare

    class Killing(Progress):
        def __init__(self):
            self.said = []

        def say(self, text):
            self.said.append(text)

    s, recipes, seeds = settings(SMALL_TASK | {"epochs": 20}), ["fedavg", "fedprox+ccvr"], [0, 1]
    compare(recipes, s, seeds, tmp_path / "local")
    progress, killed = Killing(), []

    def kill_one():
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                at_work = (path / "cmdline").read_bytes().startswith(b"ray::Runner.run")
                if at_work and not killed and descends(path, os.getpid()):
                    killed.append(int(path.name))
                    os.kill(killed[0], signal.SIGKILL)

    from headway.engine import jobs

    real = jobs.stopping

    @contextlib.contextmanager
    def stopping(total):
        with real(total) as tick:
            yield lambda done, of: (kill_one(), tick(done, of))

    monkeypatch.setattr(jobs, "stopping", stopping)
    compare(recipes, s, seeds, tmp_path / "ray", Options(engine="ray", workers=2, progress=progress))
    assert killed
    assert sum("died at run" in text for text in progress.said) == 1
    names = ("leaderboard.json", *(f"{folder}/seed-{k}/{f}" for folder in ("fedavg", "fedprox+ccvr") for k in seeds
             for f in (MODEL, METRICS, "partition.json", "sampling.json")))  # fmt: skip
    for name in names:
        ours, theirs = (without_times((tmp_path / side / name).read_bytes()) for side in ("ray", "local"))
        assert ours == theirs, name
    config = json.loads((tmp_path / "ray/fedavg/seed-1/config.json").read_text())
    assert config["options"]["engine"] == "ray"
    assert sorted(p.name for p in (tmp_path / "ray/fedavg/seed-0").iterdir() if not p.name.startswith(".")) == sorted(
        p.name for p in (tmp_path / "local/fedavg/seed-0").iterdir() if not p.name.startswith(".")
    )


def test_one_failed_run_loses_no_other_and_only_it_is_made_again(session, tmp_path, monkeypatch):
    from headway.comparison import compare
    from headway.engine import jobs

    real = jobs.order

    def order(job, threads, options):
        text = real(job, threads, options)
        return text.replace('"data_hash": "', '"data_hash": "x') if job.recipe.title == "fedprox" else text

    monkeypatch.setattr(jobs, "order", order)
    s, out, options = settings(SMALL_TASK), tmp_path / "out", Options(engine="ray", workers=2)
    with pytest.raises(EngineError, match=r"1 of 3 runs failed, the others are finished; fedprox seed 0: .*data_hash"):
        compare(["fedavg", "fedprox", "scaffold"], s, [0], out, options)
    assert sorted(p.parent.parent.name for p in out.rglob("summary.json")) == ["fedavg", "scaffold"]
    monkeypatch.undo()
    before = (out / "fedavg/seed-0/summary.json").stat().st_mtime_ns
    compare(["fedavg", "fedprox", "scaffold"], s, [0], out, options)  # one is left: its clients are spread
    assert (out / "fedavg/seed-0/summary.json").stat().st_mtime_ns == before
    alone = execute("fedprox", s, tmp_path / "alone").path
    assert (out / "fedprox/seed-0" / MODEL).read_bytes() == (alone / MODEL).read_bytes()


# ---- the command line
def test_addresses_that_lead_nowhere_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for address, way_out in [
        ("nonsense", "write HOST:PORT"), ("ray://h:10001", "write HOST:PORT"), ("h:0", "write HOST:PORT"),
        ("127.0.0.1:1", "nothing answers there (Connection refused)"),
    ]:  # fmt: skip
        end = headway("run", "fedavg", "--engine=ray", f"--address={address}")
        assert (end.code, end.out, end.err.count("\n")) == (2, "", 1)
        assert f"address={address}: " in end.err
        assert way_out in end.err
    assert list(tmp_path.iterdir()) == []


def test_a_private_cluster_keeps_to_loopback_and_leaves_nothing(tmp_path):
    """In a namespace whose machine has another address than loopback, which Ray would take by itself."""
    if not raynodes.namespaces_work():
        pytest.skip("needs a network namespace: root, or `unshare --user --net`")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    net = "ip link set lo up && ip addr add 10.9.8.7/32 dev lo && ip route add default dev lo src 10.9.8.7"
    script = f"""
import json, time, calling, raynodes
import headway.progress
from headway.experiment import Progress
seen = set()
class Looking(Progress):
    def client(self, done, total):
        seen.update(raynodes.listening())
headway.progress.progress_for = lambda console, quiet: Looking()
end = calling.headway("run", "fedavg", *{list(SMALL)!r}, "--engine=ray", "--out=a", "--json")
time.sleep(3)
left = sorted(raynodes.neighbours().values())
print(json.dumps({{"code": end.code, "out": end.out, "err": end.err, "seen": sorted(seen), "left": left}}))
"""
    end = subprocess.run(
        ["unshare", *user, "--net", "sh", "-c", f'{net} && exec "$@"', "sh", sys.executable, "-c", script],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )  # fmt: skip
    assert end.returncode == 0, end.stderr
    told = json.loads(end.stdout)
    assert (told["code"], told["err"], told["left"]) == (0, "", [])
    assert json.loads(told["out"])["run"] == "a"
    assert told["seen"]
    assert all(address.endswith("0100007F") for address in told["seen"])
    execute("fedavg", settings(SMALL_TASK), tmp_path / "local")
    assert (tmp_path / "a" / MODEL).read_bytes() == (tmp_path / "local" / MODEL).read_bytes()


def test_a_run_that_is_killed_outright_takes_its_private_cluster_with_it(tmp_path):
    words = ["run", "fedavg", "--rounds=100000", "--clients=4", "--engine=ray", f"--out={tmp_path / 'a'}"]
    code = "from headway.cli import main; main()"
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    run = subprocess.Popen([sys.executable, "-c", code, *words], env=env, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: (tmp_path / "a" / METRICS).exists(), 240)
        of_run = [int(p.name) for p in Path("/proc").glob("[0-9]*") if descends(p, run.pid)]
        lines = [line for pid, line in raynodes.neighbours().items() if pid in of_run]
        folders = {p for p in Path("/tmp").glob("hw-ray-*") if any(str(p) in line for line in lines)}
        assert len(of_run) > 3
        assert folders
    finally:  # also a run that came too late must not stay behind
        run.kill()
        run.wait()
    wait_until(lambda: not any(map(alive, of_run)), 90)
    wait_until(lambda: not any(p.exists() for p in folders), 90)


def test_two_nodes_with_a_token_and_a_killed_worker_give_the_same_bytes(tmp_path):
    if not raynodes.namespaces_work():
        pytest.skip("needs a network namespace: root, or `unshare --user --net`")
    end = raynodes.enter(tmp_path)
    assert end.returncode == 0, end.stderr
    told = json.loads(end.stdout)
    code, err = told["wrong token"]
    assert code == 2
    assert err.startswith("headway: address=127.0.0.1:26379: the cluster asks for a token, and ours is missing")
    assert [p.name for p in (tmp_path / "refused").iterdir()] == []
    assert err.count("\n") == 1
    assert told["left"] == []
    assert all(address.endswith("0100007F") for address in told["listening"])
    for recipe in raynodes.RECIPES:
        assert told[recipe]["nodes"] == 2
        assert told[recipe]["deaths"] == len(told[recipe]["said"]) == 1
        assert f"worker {told[recipe]['killed']}" in told[recipe]["said"][0]
        local = execute(recipe, settings(raynodes.TASK), tmp_path / f"local-{recipe}").path
        for file in (MODEL, METRICS):
            assert (tmp_path / recipe / file).read_bytes() == (local / file).read_bytes()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(true, seconds):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.1)
    assert true()


def descends(path: Path, ancestor: int) -> bool:
    """Whether a process comes from this one: other clusters on this machine are none of ours."""
    pid = int(path.name)
    with contextlib.suppress(OSError):
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if pid == ancestor:
                return True
    return False


def without_times(data: bytes) -> bytes:
    """leaderboard.json holds seconds, which differ."""
    if not data.startswith(b'[\n {\n  "recipe"'):
        return data
    return json.dumps([{k: v for k, v in row.items() if k != "seconds"} for row in json.loads(data)]).encode()

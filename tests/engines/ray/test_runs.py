"""Runs and comparisons on real Ray clusters end with the local engine's bytes. `make ray` runs these."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import raynodes
from calling import SMALL, SMALL_TASK, headway
from processes import alive, descends, wait_until

from headway import Dataset, run
from headway.base.errors import EngineError
from headway.runs.runner import Options, Progress, Stopped, execute, resume
from headway.training.settings import settings

pytest.importorskip("ray", reason="Ray is not installed; `make ray` installs it and runs these tests")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(580)]

MODEL, METRICS = "model.safetensors", "metrics.jsonl"


def test_data_handed_in_as_arrays_train_on_the_cluster(session, tmp_path):
    """No node could load them: a client's samples are sent with its work."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    data = Dataset.of(rng.normal(size=(90, 4)) + np.eye(3, 4)[y], y)
    how = {"data": data, "model": "mlp_small", "clients": 4, "rounds": 2, "partition": "dir(0.3)", "augment": "none"}
    local = run("scaffold+ccvr", out=tmp_path / "local", **how).path
    spread = run("scaffold+ccvr", out=tmp_path / "ray", engine="ray", workers=2, **how).path
    for file in (MODEL, METRICS):
        assert (spread / file).read_bytes() == (local / file).read_bytes()


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
        resume(out, engine="local" if name == "local" else None)
        for file in (MODEL, METRICS):
            assert (out / file).read_bytes() == (straight / file).read_bytes()


def test_a_comparison_spreads_its_runs_and_a_killed_one_is_made_again(session, tmp_path, monkeypatch):
    from headway.runs.compare import compare

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

    from headway.runs import cluster_jobs as jobs

    real = jobs.stopping

    @contextlib.contextmanager
    def stopping(total):
        with real(total) as tick:
            yield lambda done, of: (kill_one(), tick(done, of))

    monkeypatch.setattr(jobs, "stopping", stopping)
    compare(recipes, s, seeds, tmp_path / "ray", Options(engine="ray", workers=2, progress=progress))
    assert killed
    assert sum("died while working on run" in text for text in progress.said) == 1
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
    from headway.runs import cluster_jobs as jobs
    from headway.runs.compare import compare

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
import headway.cli.progress
from headway.runs.runner import Progress
seen = set()
class Looking(Progress):
    def client(self, done, total):
        seen.update(raynodes.listening())
headway.cli.progress.progress_for = lambda console, quiet: Looking()
end = calling.headway("run", "fedavg", *{list(SMALL)!r}, "--engine=ray", "--out=a", "--json")
time.sleep(3)
left = sorted(raynodes.neighbours().values())
print(json.dumps({{"code": end.code, "out": end.out, "err": end.err, "seen": sorted(seen), "left": left}}))
"""
    end = subprocess.run(
        ["unshare", *user, "--net", "sh", "-c", f'{net} && exec "$@"', "sh", sys.executable, "-c", script],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "helpers"), *sys.path])},
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
    code = "from headway.cli.app import main; main()"
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
    assert err.startswith("headway: address=127.0.0.1:26379: the cluster requires a token, and ours is missing")
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


def without_times(data: bytes) -> bytes:
    """leaderboard.json holds seconds, which differ."""
    if not data.startswith(b'[\n {\n  "recipe"'):
        return data
    return json.dumps([{k: v for k, v in row.items() if k != "seconds"} for row in json.loads(data)]).encode()

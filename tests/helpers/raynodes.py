"""A Ray cluster of real nodes in a network namespace of its own, and what is run on it.

    python tests/helpers/raynodes.py FOLDER            # enters a namespace where only loopback is up, and goes on there
    python tests/helpers/raynodes.py FOLDER --inside   # two nodes by `ray start`, token authentication, runs, a kill -9

Prints one JSON object. Every process it starts is its child and is ended by its id; `ray stop` is never called.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PORT = 26379
TASK = {"clients": 6, "rounds": 5}
RECIPES = ("scaffold+fn+ccvr", "fedtc")
NODE = ("--block", "--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=100000000")


def enter(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """This script again, in a network namespace where only loopback is up."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    inside = [sys.executable, str(Path(__file__).resolve()), str(folder), "--inside", *more]
    up = 'ip link set lo up && exec "$@"'
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}  # no token of another cluster
    return subprocess.run(
        ["unshare", *user, "--net", "sh", "-c", up, "sh", *inside], capture_output=True, text=True, timeout=560, env=env
    )


def namespaces_work() -> bool:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    try:
        return not subprocess.run(
            ["unshare", *user, "--net", "ip", "link", "set", "lo", "up"], capture_output=True
        ).returncode
    except OSError:
        return False


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[dict[str, str]]:
    """A head and a second node, one CPU each, behind a token; gives the environment that opens them."""
    token = folder / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    private = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | private | {"OMP_NUM_THREADS": "1"}
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", *NODE]
    short = tempfile.mkdtemp(prefix="hw-", dir="/tmp")  # sockets live there, and their names must be short
    temp = f"--temp-dir={short}"
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for number, words in enumerate(
            (["--head", f"--port={PORT}", "--include-dashboard=false", temp], [f"--address=127.0.0.1:{PORT}"])
        ):
            log = open(folder / f"node-{number}.log", "wb")  # noqa: SIM115  the child holds it open
            nodes.append(subprocess.Popen([*ray, *words], env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
            if number == 0:
                answered(PORT, nodes[0])
        yield private
    finally:
        for node in reversed(nodes):
            node.terminate()
        for node in nodes:
            try:
                node.wait(30)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
        shutil.rmtree(short, ignore_errors=True)


def answered(port: int, process: subprocess.Popen[bytes], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.2)
    raise RuntimeError("the head did not start")


def wait_for_second_node(seconds: float = 90) -> None:
    from headway.engines.ray.session import Session

    session = Session(f"127.0.0.1:{PORT}", 1)
    end = time.monotonic() + seconds
    while session.cpus() < 2 and time.monotonic() < end:
        time.sleep(0.5)
    found = session.cpus()
    session.close()
    if found < 2:
        raise RuntimeError("the second node did not join")


def neighbours() -> dict[int, str]:
    """The processes of this network namespace besides this one: id -> command line."""
    here = os.readlink("/proc/self/ns/net")
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(path / "ns/net") == here and int(path.name) != os.getpid():
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return {pid: line for pid, line in found.items() if line}


def listening() -> list[str]:
    """Addresses with a listener, as the kernel writes them; loopback ends in 0100007F, or in ...01 for IPv6."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return sorted({words[1].rpartition(":")[0] for words in lines if words[3] == "0A"})


def killing() -> Any:
    """A progress that ends one worker with kill -9, once, while it trains a client of the third round."""
    from headway.runs.runner import Progress

    class Killing(Progress):
        def __init__(self) -> None:
            self.said: list[str] = []
            self.rounds, self.killed = 0, 0
            self.raylets: set[str] = set()  # the parents of the workers: one a node

        def round(self, row: Any) -> None:
            self.rounds = row["round"]

        def client(self, done: int, total: int) -> None:
            workers = [pid for pid, line in neighbours().items() if line.startswith("ray::ClientWorker")]
            with contextlib.suppress(OSError):
                self.raylets |= {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] for pid in workers}
            if self.rounds >= 2 and not self.killed:
                at_work = [pid for pid, line in neighbours().items() if line.startswith("ray::ClientWorker.train")]
                if at_work:
                    os.kill(at_work[0], signal.SIGKILL)
                    self.killed = at_work[0]

        def say(self, text: str) -> None:
            self.said.append(text)

    return Killing()


def inside(folder: Path) -> dict[str, Any]:
    from headway.runs.runner import Options, execute
    from headway.training.settings import settings

    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(143))  # the nodes are ended on the way out
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: nor do they outlive whoever started this
    told: dict[str, Any] = {"before": sorted(neighbours().values())}
    with two_nodes(folder) as private:
        wrong = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
        headway = [sys.executable, "-c", "from headway.cli.app import main; main()", "run", "fedavg", "--quiet"]
        where = ["--engine=ray", f"--address=127.0.0.1:{PORT}", f"--out={folder / 'refused'}"]
        refused = subprocess.run([*headway, *where], env=wrong, capture_output=True, text=True)
        told["wrong token"] = [refused.returncode, refused.stderr]
        os.environ.update(private)
        wait_for_second_node()
        for recipe in RECIPES:
            out = folder / recipe
            progress = killing()
            options = Options(engine="ray", address=f"127.0.0.1:{PORT}", workers=2, progress=progress)
            run = execute(recipe, settings(TASK), out, options)
            told[recipe] = {
                "model": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
                "nodes": len(progress.raylets),
                "killed": progress.killed,
                "said": [text for text in progress.said if "died" in text],
                "deaths": sum(row.get("worker_deaths", 0) for row in run.timings),
                "seconds": [row["train_seconds"] for row in run.timings],
            }
        told["listening"] = listening()
    time.sleep(3)
    told["left"] = sorted(neighbours().values())
    return told


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    if "--inside" in sys.argv:
        print(json.dumps(inside(place)))
    else:
        done = enter(place)
        sys.stderr.write(done.stderr)
        sys.stdout.write(done.stdout)
        sys.exit(done.returncode)

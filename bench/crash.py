"""Kill runs at random moments with SIGKILL, resume them, compare bytes with runs that were left alone.

    .venv/bin/python bench/crash.py --kills 20

Every fourth kill falls inside a checkpoint write: after the temporary file is written, before it is renamed.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECIPES = ("fedavg", "scaffold", "moon", "fedrep")
TASK = [
    "--clients",
    "8",
    "--rounds",
    "12",
    "--sampling",
    "0.5",
    "--threads",
    "1",
    "--checkpoint-seconds",
    "0",
    "--quiet",
]
HEADWAY = [sys.executable, "-c", "from headway.cli.app import main; main()"]
DIES_IN_WRITE = """
import os, signal, sys
calls, real, last = 0, os.replace, int(sys.argv.pop(1))
def replace(a, b):
    global calls
    calls += '/checkpoint/' in str(b)
    if calls == last:
        os.kill(os.getpid(), signal.SIGKILL)
    real(a, b)
os.replace = replace
from headway.cli.app import main
main()
"""


def command(recipe: str, out: Path) -> list[str]:
    return ["run", recipe, *TASK, "--out", str(out)]


def digest(out: Path) -> tuple[str, str]:
    return tuple(hashlib.sha256((out / f).read_bytes()).hexdigest() for f in ("model.safetensors", "metrics.jsonl"))


def straight(recipe: str, out: Path) -> tuple[tuple[str, str], float]:
    """Digests of an undisturbed run, and how long it works after its directory is open."""
    process = subprocess.Popen([*HEADWAY, *command(recipe, out)], stdout=subprocess.DEVNULL)
    opened = wait_for(out / "config.json", process)
    if process.wait():
        raise SystemExit(f"{recipe}: the undisturbed run failed")
    return digest(out), time.monotonic() - opened


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> float:
    while not path.exists() and process.poll() is None:
        time.sleep(0.005)
    return time.monotonic()


def killed_at_random(recipe: str, out: Path, seconds: float, rng: random.Random) -> str:
    process = subprocess.Popen([*HEADWAY, *command(recipe, out)], stdout=subprocess.DEVNULL)
    wait_for(out / "config.json", process)
    delay = rng.uniform(0, seconds)
    time.sleep(delay)
    process.kill()
    if process.wait() == 0:  # it was faster than the undisturbed run: once more, earlier
        shutil.rmtree(out)
        return killed_at_random(recipe, out, 0.7 * seconds, rng)
    return f"{delay:.2f} s after the start"


def killed_in_write(recipe: str, out: Path, rng: random.Random) -> str:
    """The n-th rename inside checkpoint/ never happens: two or three files a checkpoint, twelve checkpoints."""
    nth = rng.randint(1, 20)
    code = subprocess.run(
        [sys.executable, "-c", DIES_IN_WRITE, str(nth), *command(recipe, out)], stdout=subprocess.DEVNULL
    ).returncode
    if code != -signal.SIGKILL:
        raise SystemExit(f"{recipe}: expected to die in write {nth}, ended with {code}")
    return f"inside checkpoint write {nth}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)  # noqa: S311
    equal = 0
    with tempfile.TemporaryDirectory() as folder:
        expected = {recipe: straight(recipe, Path(folder) / f"{recipe}-straight") for recipe in RECIPES}
        for number in range(args.kills):
            recipe = RECIPES[number % len(RECIPES)]
            out = Path(folder) / f"{recipe}-{number}"
            wanted, seconds = expected[recipe]
            if number % 4 == (number // 4) % 4:
                when = killed_in_write(recipe, out, rng)
            else:
                when = killed_at_random(recipe, out, seconds, rng)
            at = len((out / "metrics.jsonl").read_text().splitlines()) if (out / "metrics.jsonl").exists() else 0
            subprocess.run([*HEADWAY, "resume", str(out), "--quiet"], check=True, stdout=subprocess.DEVNULL)
            same = digest(out) == wanted
            equal += same
            verdict = "equal" if same else "DIFFERENT"
            print(f"{number + 1:3d} {recipe:9s} killed {when}, {at} lines written: {verdict}", flush=True)
    print(f"{equal} of {args.kills} equal")
    sys.exit(equal != args.kills)


if __name__ == "__main__":
    main()

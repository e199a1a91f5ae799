"""Where a round's time goes: py-spy looks at all processes of a workload a hundred times a second.

    .venv/bin/python -m pip install py-spy
    .venv/bin/python bench/profiles.py w1 w2 w3

Samples of processes that wait are left out, so shares are shares of processor time. Below forward, backward and step is
torch's or our own native code; everything else is what the federation adds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

PLACES = (  # innermost first: a stack belongs to the first of these that any of its frames names
    ("step", ("step (headway/steps.py",)),
    ("backward", ("grad (torch/autograd/__init__.py", "backward (torch/")),
    ("forward", ("_loss (headway/client.py",)),
    ("batches", ("batch (headway/client.py", "randperm")),
    ("aggregation", ("aggregate (headway/", "mean (headway/tree.py", "add (headway/tree.py")),
    ("moving values", ("pack (headway/", "unpack (headway/", "load (headway/models/net.py", "_recv", "_send", "dumps")),
)
OUTSIDE = ("batches", "aggregation", "moving values", "the rest")
TURNS = {"w1": 12, "w2": 6, "w3": 12}
WORK = """
import sys
from headway.bench.subject import subject
made = subject(f"headway:{sys.argv[1]}:fedavg", "cifar10", None)
for _ in range(int(sys.argv[2])):
    made.turn()
made.close()
"""


def spy() -> str:
    """py-spy beside this Python, or wherever the shell finds it."""
    found = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if found is None:
        sys.exit(f"py-spy is not installed; {sys.executable} -m pip install py-spy")
    return found


def stacks(name: str) -> Counter[str]:
    """Samples by stack, frames from the outermost to the innermost, of the rounds alone."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        call = [spy(), "record", "-f", "raw", "-o", str(raw), "-r", "100", "--subprocesses", "--"]
        subprocess.run([*call, sys.executable, "-c", WORK, name, str(TURNS[name])], check=True, capture_output=True)
        found: Counter[str] = Counter()
        for line in raw.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            if "run_round" in stack or "(headway/engine/pool.py" in stack:
                found[stack] += int(count)
    return found


def place(stack: str) -> str:
    short = stack.replace("site-packages/", "")
    for name, marks in PLACES:
        if any(mark in short for mark in marks):
            return name
    return "the rest"


def main() -> None:
    asked = sys.argv[1:] or list(TURNS)
    print("workload  " + "".join(f"{name:>15}" for name, _ in PLACES) + f"{'the rest':>15}{'outside':>10}  samples")
    for name in asked:
        shares: Counter[str] = Counter()
        for stack, count in stacks(name).items():
            shares[place(stack)] += count
        total = sum(shares.values())
        cells = "".join(f"{shares[where] / total:15.1%}" for where in (*(n for n, _ in PLACES), "the rest"))
        print(f"{name:<10}{cells}{sum(shares[where] for where in OUTSIDE) / total:10.1%}  {total}", flush=True)


if __name__ == "__main__":
    main()

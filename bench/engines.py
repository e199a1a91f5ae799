"""The same runs on every engine: SHA-256 of the final weights, and what a round costs.

    .venv/bin/python bench/engines.py            # local with 1 and 2 workers, Ray on one node, Ray on two nodes
    .venv/bin/python bench/engines.py --rounds 20 --no-nodes

Two nodes need a network namespace (root, or `unshare --user --net`); a worker there is ended with kill -9 in mid-round.
The hash is of model.safetensors: the model the run ends with, calibrated where the recipe calibrates.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))
import raynodes

from headway.runs.options import Options
from headway.runs.runner import execute
from headway.training.settings import settings


def sha(out: Path) -> str:
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def measured(recipe: str, rounds: int, out: Path, options: Options) -> tuple[str, list[float]]:
    """The hash of the final model; seconds a round without the first, in which everything is still cold."""
    run = execute(recipe, settings({**raynodes.TASK, "rounds": rounds}), out, options)
    return sha(out), [row["train_seconds"] for row in run.timings][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=raynodes.TASK["rounds"])
    parser.add_argument("--no-nodes", action="store_true", help="leave out the two nodes")
    args = parser.parse_args()
    ways = {
        "local, 1 worker": Options(workers=1),
        "local, 2 workers": Options(workers=2),
        "ray, one node, 2 workers": Options(engine="ray", workers=2),
    }
    rows: list[tuple[str, str, str, list[float], str]] = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for way, options in ways.items():
            for recipe in raynodes.RECIPES:
                digest, seconds = measured(recipe, args.rounds, folder / f"{way}-{recipe}", options)
                rows.append((recipe, way, digest, seconds, "0" if "ray" in way else ""))
        if not args.no_nodes and args.rounds == raynodes.TASK["rounds"] and raynodes.namespaces_work():
            end = raynodes.enter(folder)
            if end.returncode:
                raise SystemExit(end.stderr)
            told = json.loads(end.stdout)
            for recipe in raynodes.RECIPES:
                one = told[recipe]
                way = "ray, two nodes, kill -9"
                rows.append((recipe, way, one["model"], one["seconds"][1:], str(one["deaths"])))
    print(f"{'recipe':17s} {'engine':25s} {'SHA-256 of the final weights':64s} deaths  s a round: median, fastest")
    for recipe in raynodes.RECIPES:
        for name, way, digest, seconds, deaths in rows:
            if name == recipe:
                print(
                    f"{recipe:17s} {way:25s} {digest} {deaths:>6s}  {statistics.median(seconds):.3f} {min(seconds):.3f}"
                )
    for recipe in raynodes.RECIPES:
        digests = {digest for name, _, digest, _, _ in rows if name == recipe}
        print(f"{recipe}: {'all equal' if len(digests) == 1 else 'DIFFERENT'}")
        by_way = {way: seconds for name, way, _, seconds, _ in rows if name == recipe}
        ray, pool = by_way["ray, one node, 2 workers"], by_way["local, 2 workers"]
        median, fastest = (1000 * (figure(ray) - figure(pool)) for figure in (statistics.median, min))
        print(f"{recipe}: Ray - local with 2 workers = {median:+.0f} ms a round, {fastest:+.0f} ms in the fastest")
    sys.exit(any(len({r[2] for r in rows if r[0] == recipe}) != 1 for recipe in raynodes.RECIPES))


if __name__ == "__main__":
    main()

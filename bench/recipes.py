"""Every recipe, and every combination of pieces, on skewed digits.

.venv/bin/python bench/recipes.py every      # each piece and alias for two rounds: accuracy, seconds, bytes
.venv/bin/python bench/recipes.py product    # base x head x loss or regulariser x last step, one round each
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import tempfile
import time
from pathlib import Path

import torch

from headway.base.errors import RecipeError
from headway.engines import LocalEngine
from headway.methods import REGISTRY
from headway.methods import recipe as parse
from headway.runs.runner import execute
from headway.training import rounds
from headway.training.client import personal_net
from headway.training.settings import settings
from headway.training.task import Task, build

COMPANY = {  # where a piece means nothing alone
    "dotreg": "sphere+dotreg",
    "algorithm2": "fedetf+algorithm2(turns=2)",
    "alg2": "fedetf+alg2(turns=2)",
    "gmv": "gmv(warmup=1)",
}


def every(task: Task) -> int:
    """Each piece and each alias for two rounds; a table."""
    names = [p.name for p in REGISTRY.pieces] + list(REGISTRY.aliases)
    failed = 0
    print(f"{'recipe':32s} {'global %':>9s} {'personal %':>11s} {'s':>6s} {'kB up':>9s} {'kB down':>9s}")
    for name in names:
        text = COMPANY.get(name, name)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                s = execute(text, task.settings, Path(folder) / "run", task=task).summary
            except Exception as error:
                failed += 1
                print(f"{text:32s} FAILED {type(error).__name__}: {error}")
                continue
        acc = "n/a" if s["global_acc"] is None else f"{100 * s['global_acc']:.2f}"
        own = f"{100 * s['personal']['mean']:.2f}" if s["personal"] else "n/a"
        seconds = time.monotonic() - begun
        up, down = s["bytes_up"] / 1e3, s["bytes_down"] / 1e3
        print(f"{text:32s} {acc:>9s} {own:>11s} {seconds:6.2f} {up:9.1f} {down:9.1f}", flush=True)
    print(f"{len(names) - failed} of {len(names)} ran")
    return failed


def one_round(text: str, task: Task) -> None:
    """A round, the calibration and one client's personalisation, where the recipe has them."""
    recipe = parse(text)
    task = task.for_recipe(recipe)
    engine = LocalEngine()
    server = rounds.run(recipe, task, engine, 1)
    if recipe.acting("calibrate"):
        rounds.finish(server, recipe, task, engine)
    if recipe.acting("personalise"):
        cast = rounds.cast_of(rounds.predicting(server, recipe), recipe)
        phases = recipe.personalise(1, 0.05)
        for _ in personal_net(recipe, task, cast, engine.client(recipe, task, cast, 0), phases):
            pass


def product(task: Task) -> int:
    """The full cross product; how many run, how many are refused, and the distinct reasons."""
    bases = [p.name for p in REGISTRY.pieces if p.slot == "base"]
    heads = [p.name for p in REGISTRY.pieces if p.slot == "head"] + ["fedrod", "fedtc"]
    middles = ["", "moon", "gmv(warmup=1)", "balanced"]
    ends = ["", "ccvr(epochs=1)", "ft(epochs=1)"]
    ran, refused, broken = 0, collections.Counter(), []
    for parts in itertools.product(bases, heads, middles, ends):
        text = "+".join(filter(None, parts))
        try:
            one_round(text, task)
            ran += 1
        except RecipeError as error:
            reason = str(error).partition(": ")[2]
            refused[reason] += 1
        except Exception as error:
            broken.append(f"{text}: {type(error).__name__}: {error}")
    sizes = " x ".join(str(len(part)) for part in (bases, heads, middles, ends))
    print(f"{sizes} combinations: {ran} ran one round, {sum(refused.values())} were refused, {len(broken)} broke")
    for reason, count in sorted(refused.items(), key=lambda item: -item[1]):
        print(f"{count:5d}  {reason}")
    for line in broken[:20]:
        print("BROKEN", line)
    return len(broken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("every", "product"))
    what = parser.parse_args().what
    torch.set_num_threads(1)
    common = {"clients": 20, "partition": "dir(0.1)", "rounds": 2}
    task = build(settings(common if what == "every" else common | {"train_size": 300, "model": "mlp_small"}))
    sys.exit(bool({"every": every, "product": product}[what](task)))


if __name__ == "__main__":
    main()

"""The rows of the table: the subjects to measure, the figures computed from them, and their targets."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.bench.peak import share
from headway.bench.runner import PYTHON, Measured, Say, alternate, ratio, same_package
from headway.bench.workloads import WORKLOADS
from headway.models.net import COMPILED

METHODS = {  # gmv during its warm-up; then active, with the features of the last epoch, and with a pass of its own
    "scaffold": 1.10, "fedprox": 1.10, "moon": 1.8, "fedetf": 1.08, "gmv": 1.10,
    "gmv(warmup=1,collect=last_epoch)": 1.10, "gmv(warmup=1)": 1.10,
}  # fmt: skip
LOOP = {"w1": 0.67, "w2": 0.82, "w3": 0.62}
COMPILED_LOOP = LOOP | {"w2": 0.70}  # with torch.compile
CLIENTS = (100, 1000, 10_000, 100_000)


@dataclass(frozen=True)
class Row:
    """One row: a figure, its target, and the measurements it is computed from."""

    name: str
    about: str
    value: float
    target: float | None = None
    unit: str = "x"
    at_least: bool = False  # the target is a lower bound
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


@dataclass(frozen=True)
class How:
    """The options of a measurement, the same for every group of rows."""

    repeats: int
    data: str = "cifar10"
    workers: str = "auto"
    say: Say = print

    def alternate(self, *names: str, watched: bool = True) -> dict[str, Measured]:
        return alternate(names, self.repeats, data=self.data, workers=self.workers, say=self.say, watched=watched)


def against_loop(name: str, how: How) -> list[Row]:
    """Seconds per round divided by the plain loop's; for W3 also the memory of all processes."""
    loop, ours, peak = (f"anchor:{name}", f"headway:{name}:fedavg", "peak")
    alone = f"anchor:{name}:1"
    found = how.alternate(loop, ours, alone, peak)
    cores = found[loop].about["threads"]
    best = min(found[loop], found[alone], key=lambda m: m.per_round)  # several threads may be slower than one
    flop = found[loop].about["flop_per_sample"]
    details = peaks(found[peak]) | {"mflop_per_sample": flop / 1e6, "data": found[ours].about["data"]}
    for label, side in (("loop", best), ("headway", found[ours])):
        details[label] = side.record() | shares(side.samples_per_second, flop, details)
    threads = f"{best.about['threads']} thread{'s' if best.about['threads'] > 1 else ''}"
    against = f"s/round ({found[ours].about['layout']}) against the plain loop at its best, {threads}"
    about = f"{WORKLOADS[name].about}: {against}"
    target = (COMPILED_LOOP if found[ours].about["layout"].endswith(COMPILED) else LOOP)[name]
    rows = [Row(name, about, ratio(found[ours], best), target, details=details)]
    floor = found[alone].per_round / cores / best.per_round
    about = f"{cores} one-thread loops without any federated work, channels first: what processes could reach here"
    rows.append(Row(f"{name} floor", about, floor))
    ready = found[ours].about["workers_ready"]
    rows.append(Row(f"{name} workers", "from asking for workers until all of them answer", ready, 2.0, unit="s"))
    if name == "w3":
        megabytes = found[ours].peak_bytes / 1e6
        rows.append(Row("w3 memory", "peak memory of all processes", megabytes, 900.0, unit="MB"))
    return rows


def peaks(measured: Measured) -> dict[str, Any]:
    """The best matrix product, as in older records, and the FMA peak, or the reason why it is missing."""
    missing = measured.about["fma_missing"]
    return {
        "peak_gflops": measured.median("gflops"),
        "fma_gflops": None if missing else max(turn["fma_gflops"] for turn in measured.turns),
        "fma_missing": missing,
    }


def shares(samples_per_second: float, flop_per_sample: float, known: dict[str, Any]) -> dict[str, float | None]:
    return {
        "share_of_peak": share(samples_per_second, flop_per_sample, known["peak_gflops"]),
        "share_of_fma_peak": share(samples_per_second, flop_per_sample, known["fma_gflops"]),
    }


def methods(how: How) -> list[Row]:
    """The time of a round of other methods on W2 divided by FedAvg's."""
    found = how.alternate(*(f"headway:w2:{recipe}" for recipe in ("fedavg", *METHODS)))
    base = found["headway:w2:fedavg"]
    return [
        Row(recipe, "s/round on W2 against fedavg", ratio(mine, base), target,
            details={recipe: mine.record(), "fedavg": base.record()})
        for recipe, target in METHODS.items()
        if (mine := found[f"headway:w2:{recipe}"])
    ]  # fmt: skip


def heads(how: How) -> list[Row]:
    """Ten epochs of the head alone: how much faster it is to compute the features only once."""
    about = {
        "fedrep": "ten head epochs, ResNet20: times faster than without cached features",
        "fedetf": "stages A and B five times, one epoch each: times faster than without cached features",
    }
    rows = []
    for recipe, text in about.items():
        cached, uncached = how.alternate(f"cached:{recipe}", f"uncached:{recipe}").values()
        details = {"cached": cached.record(), "uncached": uncached.record()}
        rows.append(Row(f"{recipe} head", text, ratio(uncached, cached), 8.0, at_least=True, details=details))
    return rows


def ccvr(how: How) -> list[Row]:
    """The time of the calibration; the limit is 1.5 passes over the data, and 20 s for the retraining."""
    passed, ours = how.alternate("forward", "ccvr", watched=False).values()
    limit = 1.5 * passed.per_round + 20
    about = f"20 clients, ResNet20, M_c=2000, 100 epochs; limit: 1.5 x one pass ({passed.per_round:.1f} s) + 20 s"
    details = {"forward": passed.record(), "ccvr": ours.record()}
    return [Row("ccvr", about, ours.per_round, limit, unit="s", details=details)]


def growth(how: How) -> list[Row]:
    """Time and memory of a round with ten participants, for a growing number of clients."""
    found = dict(zip(CLIENTS, how.alternate(*(f"growth:{n}" for n in CLIENTS)).values(), strict=True))
    first = found[CLIENTS[0]]
    rows = []
    for n, mine in found.items():
        last = n == CLIENTS[-1]
        seconds, size = ratio(mine, first), mine.round_bytes / max(first.round_bytes, 1)
        rows += [
            Row(f"time N={n:,}", f"{mine.per_round:.3f} s/round, ten participants; against N=100", seconds,
                1.10 if last else None, details=mine.record()),
            Row(f"memory N={n:,}", f"{mine.round_bytes / 1e6:.0f} MB in all during rounds; against N=100", size,
                1.05 if last else None),
        ]  # fmt: skip
    return rows


def start(how: How) -> list[Row]:
    """The time from the start of the process to the first line of progress."""
    seconds = [first_line(how) for _ in range(how.repeats)]
    about = "`headway run fedavg --data digits`, from process start to the first progress line"
    return [Row("start", about, statistics.median(seconds), 3.0, unit="s", details={"turns": seconds})]


def first_line(how: How) -> float:
    call = [*PYTHON, "-c", "from headway.cli.app import main; main()", "run", "fedavg", "--data", "digits"]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        process = subprocess.Popen(  # noqa: S603  this very interpreter and package
            [*call, "--rounds", "1", "--out", str(Path(folder) / "run")],
            env=same_package(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        with process.stderr as lines:
            first = next((line for line in lines if not line.startswith("note:")), None)
            seconds = time.perf_counter() - began
            rest = lines.read()
        if process.wait() or first is None:
            raise RuntimeError(f"bench: `headway run` failed:\n{first or ''}{rest}")
    how.say(f"start: {seconds:.2f} s to '{first.strip()}'")
    return seconds


GROUPS: dict[str, Callable[[How], list[Row]]] = {
    "w1": lambda how: against_loop("w1", how),
    "w2": lambda how: against_loop("w2", how),
    "w3": lambda how: against_loop("w3", how),
    "methods": methods,
    "heads": heads,
    "ccvr": ccvr,
    "growth": growth,
    "start": start,
}

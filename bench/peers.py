"""headway beside fluke, pfl-research, Flower and a plain loop: the same data, clients and batches, in turn.

    .venv/bin/python bench/peers.py --envs DIR                  # everything; DIR keeps environments and data
    .venv/bin/python bench/peers.py --envs DIR --only W3,T --subjects plain,headway,fluke --repeats 5 --json FILE

Every subject is a script of bench/peers/ and runs in a process of its own; a peer has its own virtual environment, made
here. E is the time of a whole run with an evaluation after every round; W1, W3 and T are seconds a round without one,
the first round left out. The threads of plain, fluke and pfl are those that are faster, 1 or all cores. Imports and
reading the data are not timed, nor is choosing a layout (tune=True). Every subject counts samples and steps; a row with
other work than the plain loop's says so. Flower's clients are one a core; a Ray actor reads the data with its first
client, which is in E. headway evaluates once more at the end of a run, which is in E too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
SCRIPTS, CONSTRAINTS = HERE / "peers", HERE.parent / "constraints.txt"
PINNED = ("torch", "numpy")  # the peers' other needs differ from headway's
CLASSES, SEED, MOST_ROUNDS = 10, 0, 200
SLOW = 1.5  # times the seconds with another number of threads
SIGNAL = 0.5  # of the classes' means, where the noise is 1


@dataclass(frozen=True)
class Workload:
    about: str
    model: str  # bench/peers/shared.py
    shape: tuple[int, ...]
    train: int
    clients: int
    partition: str
    sampling: float
    batch: int
    rounds: int
    most: int = 10**9  # samples of a client
    test: int = 1000
    evaluate: bool = False
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4


IMAGE = (3, 32, 32)
WORKLOADS = {
    "E": Workload(
        "CNN, 10 of 100 clients of dir(0.1), batch 32, 20 rounds, each evaluated on 10,000: s for all",
        "cnn", IMAGE, 10_000, 100, "dir(0.1)", 0.1, 32, 20, test=10_000, evaluate=True, lr=0.05, weight_decay=0.0,
    ),
    "W1": Workload(
        "CNN, 20 clients of at most 256, batch 64: s/round", "cnn", IMAGE, 50_000, 20, "dir(0.1)", 1.0, 64, 4, most=256
    ),
    "W3": Workload(
        "MLP 3072-200-10, 100 of 1000 clients of 50, batch 10: s/round",
        "wide", IMAGE, 50_000, 1000, "iid", 0.1, 10, 6,
    ),
    "T": Workload(
        "MLP 30-200-200-10, 100 of 5000 clients of 20, batch 10: s/round",
        "table", (30,), 100_000, 5000, "iid", 0.02, 10, 11,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    script: str
    about: str
    packages: tuple[str, ...] = ()  # installed with what they need
    alone: tuple[str, ...] = ()  # installed with --no-deps
    stand_in: str = ""  # a module that a peer imports and no workload calls
    one_process: bool = False  # so the number of threads is chosen
    tune: bool = False
    environment: dict[str, str] = field(default_factory=dict)


FLUKE_NEEDS = (
    "torchmetrics", "rich", "psutil", "pandas", "scikit-learn", "matplotlib", "seaborn", "diskcache", "cerberus",
    "omegaconf", "pyyaml", "requests", "typer", "wandb", "clearml", "tensorboard", "networkx",
)  # fmt: skip
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
SUBJECTS = {
    "plain": Subject("run_plain.py", "plain loop", one_process=True),
    "headway": Subject("run_headway.py", "headway"),
    "headway+tune": Subject("run_headway.py", "headway, tune=True", tune=True),
    "fluke": Subject(
        "run_fluke.py", "fluke 0.8.1", FLUKE_NEEDS, ("fluke-fl==0.8.1",), stand_in="torchvision", one_process=True
    ),
    "pfl": Subject("run_pfl.py", "pfl-research 0.6.0", ("pfl[pytorch]==0.6.0",), one_process=True),
    "flower": Subject("run_flower.py", "Flower 1.41.0, Ray", ("flwr[simulation]==1.41.0",), environment=QUIET),
}
STAND_IN = '''"""A stand-in for torchvision from headway's bench/peers.py: a peer imports it, no workload calls it."""
import importlib.machinery
import sys
import types


class _Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for _name in ("datasets", "datasets.utils", "models", "transforms", "transforms.functional", "transforms.v2", "utils"):
    _full = f"torchvision.{_name}"
    sys.modules[_full] = _Module(_full)
    sys.modules[_full].__spec__ = importlib.machinery.ModuleSpec(_full, None, is_package=True)
    _parent, _, _child = _full.rpartition(".")
    if _parent in sys.modules:
        setattr(sys.modules[_parent], _child, sys.modules[_full])
'''


class Failed(Exception):
    """A peer that cannot be installed or run; the message is one line."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """The last line of an output that says what was wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "ERROR" in line]
    return (errors or lines or ["no output"])[-1][:300]


# ---- environments
def python_of(name: str, envs: Path) -> str:
    """The interpreter that has the subject's packages; its environment is made where it is missing."""
    subject = SUBJECTS[name]
    if not subject.packages:
        return sys.executable
    folder = envs / name
    python, stamp = folder / "bin" / "python", folder / "ready.json"
    stood = {"stand_in": STAND_IN} if subject.stand_in else {}
    wanted = json.dumps({"packages": subject.packages, "alone": subject.alone, "pins": pins()} | stood)
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    say(f"making the environment of {subject.about} in {folder}")
    envs.mkdir(parents=True, exist_ok=True)
    (envs / "constraints.txt").write_text("\n".join(pins()) + "\n")
    install = [str(python), "-m", "pip", "install", "-q", "--no-compile", "-c", str(envs / "constraints.txt")]
    called([sys.executable, "-m", "venv", "--clear", str(folder)])
    called([*install, *pins()])  # torch first: nothing later may choose another build
    called([*install, *subject.packages])
    if subject.alone:
        called([*install, "--no-deps", *subject.alone])
    if subject.stand_in:
        where = called([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
        (Path(where) / subject.stand_in).mkdir(exist_ok=True)
        (Path(where) / subject.stand_in / "__init__.py").write_text(STAND_IN)
    stamp.write_text(wanted)
    return str(python)


def pins() -> list[str]:
    """The lines of constraints.txt for what every environment has in the same version."""
    lines = CONSTRAINTS.read_text().splitlines()
    return [line for line in lines if line.partition("==")[0] in PINNED]


def called(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(one_line(done.stderr or done.stdout))
    return done.stdout


# ---- data
def prepare(name: str, w: Workload, root: Path) -> Path:
    """The workload's folder: data.npz, partition.json for headway, clients.json for all others."""
    folder = root / "data" / name
    wanted = json.dumps(asdict(replace(w, rounds=0)) | {"signal": SIGNAL}, sort_keys=True)
    if (folder / "ready.json").exists() and (folder / "ready.json").read_text() == wanted:
        return folder
    say(f"making the data of {name} in {folder}")
    from headway.bench.workloads import capped
    from headway.data import Dataset
    from headway.data.partitions.partition import draw, lists_of
    from headway.training.settings import settings
    from headway.training.task import build

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    labels = rng.integers(0, CLASSES, w.train)
    parts = capped(draw(w.partition, labels, w.clients, SEED, classes=CLASSES), w.most, w.batch)
    index, sizes = np.concatenate(list(parts)), parts.sizes()
    centres = rng.standard_normal((CLASSES, *w.shape), dtype=np.float32)
    if len(w.shape) == 3:  # blocks of 8 x 8 pixels, which a convolution can learn
        centres = centres[..., ::8, ::8].repeat(8, -1).repeat(8, -2)
    y, y_test = labels[index], rng.integers(0, CLASSES, w.test)  # only samples that a client has, client after client
    x, x_test = (rng.standard_normal((len(v), *w.shape), dtype=np.float32) for v in (y, y_test))
    for made, classes in ((x, y), (x_test, y_test)):
        made += SIGNAL * centres[classes]
    np.savez(folder / "data.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    lists = lists_of(np.arange(len(y)), np.repeat(np.arange(w.clients), sizes), w.clients)
    whole = draw("iid", y, w.clients, SEED, classes=CLASSES)
    saved = replace(whole, spec=parts.spec, index=lists.index, offsets=lists.offsets)
    saved.save(folder / "partition.json")
    data = Dataset.of(x, y, x_test, y_test)
    s = settings({"partition": str(folder / "partition.json"), "sampling": w.sampling, "local_test": "none",
                  "model": "mlp_small", "seed": SEED})  # fmt: skip
    task = build(s, dataset=data)
    body = {
        "clients": [part.tolist() for part in lists],
        "participants": [task.sampling(t) for t in range(MOST_ROUNDS)],
    }
    (folder / "clients.json").write_text(json.dumps(body))
    (folder / "ready.json").write_text(wanted)
    return folder


# ---- runs
@dataclass(frozen=True)
class Variant:
    """A subject with a number of threads."""

    name: str
    threads: int


def variants(names: Sequence[str], cores: int) -> list[Variant]:
    each = {name: sorted({1, cores}) if SUBJECTS[name].one_process else [1] for name in names}
    return [Variant(name, threads) for name, counts in each.items() for threads in counts]


def measured(v: Variant, python: str, w: Workload, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One run of one subject: {seconds, rounds, samples, steps, accuracy}."""
    subject = SUBJECTS[v.name]
    job = {
        "folder": str(folder), "model": w.model, "rounds": w.rounds, "batch": w.batch, "lr": w.lr,
        "momentum": w.momentum, "weight_decay": w.weight_decay, "evaluate": w.evaluate, "threads": v.threads,
        "tune": subject.tune, "fused": args.fused,
    }  # fmt: skip
    environment = os.environ | subject.environment
    if args.avx2:
        environment |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    if not subject.packages:
        environment["PYTHONPATH"] = str(HERE.parent)
    process = subprocess.Popen(
        [python, str(SCRIPTS / subject.script), json.dumps(job)], env=environment, cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=args.timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"no result after {args.timeout:g} s") from None
    finally:
        if process.poll() is None:
            end(process)
    lines = [line for line in out.splitlines() if line.startswith('{"seconds"')]
    if process.returncode or not lines:
        raise Failed(one_line(err or out))
    return json.loads(lines[-1])


def end(process: subprocess.Popen[str]) -> None:
    """End a subject and its workers: they are in the session made for it. Ray ends its own at the first signal."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, number)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            continue
        return


def compared(name: str, w: Workload, pythons: dict[str, str], args: argparse.Namespace) -> dict[str, Any]:
    """All subjects of a workload in turn, `repeats` times."""
    folder = prepare(name, w, args.envs)
    runs: dict[Variant, list[dict[str, Any]]] = {v: [] for v in variants(list(pythons), len(os.sched_getaffinity(0)))}
    failed: dict[Variant, str] = {}
    for v in [v for v in runs if SUBJECTS[v.name].tune]:
        say(f"{name}: {v.name} chooses its layout, once a machine; this is not timed")
        try:
            measured(v, pythons[v.name], replace(w, rounds=1), folder, args)
        except Failed as error:
            failed[v] = str(error)
    slow: set[Variant] = set()
    for repeat in range(args.repeats):
        for v in runs:
            if v in failed or v in slow:
                continue
            try:
                runs[v].append(measured(v, pythons[v.name], w, folder, args))
                say(f"{name} {repeat + 1} of {args.repeats}: {v.name}, threads {v.threads}: {runs[v][-1]}")
            except Failed as error:
                failed[v] = str(error)
                say(f"{name}: {v.name}, threads {v.threads}, failed: {error}")
        if not repeat:
            slow = {v for v in runs if any(hopeless(v, u, runs) for u in runs)}
    best: dict[str, Variant] = {}
    for v, made in runs.items():
        if v not in failed and v not in slow and (v.name not in best or middle(made) < middle(runs[best[v.name]])):
            best[v.name] = v
    rows = {n: {"threads": v.threads, "runs": runs[v]} for n, v in best.items()}
    errors = {v.name: error for v, error in failed.items() if v.name not in best}
    every = {f"{v.name}, threads {v.threads}": made for v, made in runs.items()}
    return {"about": w.about, "rows": rows, "every": every, "errors": errors}


def hopeless(v: Variant, other: Variant, runs: dict[Variant, list[dict[str, Any]]]) -> bool:
    """Whether the first repeat shows a number of threads to be so slow that it is not run again."""
    return v.name == other.name and bool(runs[v] and runs[other]) and middle(runs[v]) > SLOW * middle(runs[other])


def middle(made: Sequence[dict[str, Any]]) -> float:
    return statistics.median(run["seconds"] for run in made)


# ---- the table
def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def ratios(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> str:
    """The ratio of the seconds, repeat by repeat."""
    return spread([a["seconds"] / b["seconds"] for a, b in zip(ours, theirs, strict=True)])


def table(name: str, found: dict[str, Any]) -> str:
    rows = found["rows"]
    lines = [f"{name}: {found['about']}"]
    head = ("subject", "seconds", "x plain", "x headway", "samples", "steps", "accuracy")
    lines.append(
        f"{head[0]:28s} {head[1]:>24s} {head[2]:>24s} {head[3]:>24s} {head[4]:>8s} {head[5]:>7s} {head[6]:>8s}"
    )
    for key, row in rows.items():
        runs, last = row["runs"], row["runs"][-1]
        against = [ratios(runs, rows[other]["runs"]) if other in rows else "" for other in ("plain", "headway")]
        threads = f", {row['threads']} threads" if SUBJECTS[key].one_process else ""
        work = {(run["samples"], run["steps"]) for run in runs}
        same = "plain" not in rows or work == {(run["samples"], run["steps"]) for run in rows["plain"]["runs"]}
        lines.append(
            f"{SUBJECTS[key].about + threads:28s} {spread([r['seconds'] for r in runs]):>24s} {against[0]:>24s} "
            f"{against[1]:>24s} {last['samples']:8,d} {last['steps']:7,d} {last['accuracy']:8.3f}"
            + ("" if same else "  OTHER WORK THAN THE PLAIN LOOP")
        )
    lines += [f"{SUBJECTS[key].about}: not measured: {error}" for key, error in found["errors"].items()]
    return "\n".join(lines)


def chosen(text: str | None, known: Sequence[str]) -> list[str]:
    names = text.split(",") if text else list(known)
    if odd := [name for name in names if name not in known]:
        raise SystemExit(f"'{odd[0]}' is unknown; there are {', '.join(known)}")
    return [name for name in known if name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=Path, required=True, help="folder that keeps environments and data")
    parser.add_argument("--only", help=f"workloads: {', '.join(WORKLOADS)}")
    parser.add_argument("--subjects", help=", ".join(SUBJECTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="rounds of every workload, for a trial")
    parser.add_argument("--json", type=Path, help="file for all measurements")
    parser.add_argument("--avx2", action="store_true", help="torch and oneDNN use AVX2 in every subject")
    parser.add_argument("--fused", action="store_true", help="the peers use torch's fused optimiser too")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds after which a run is given up")
    args = parser.parse_args()
    args.envs = args.envs.resolve()
    pythons, lost = {}, {}
    for name in chosen(args.subjects, list(SUBJECTS)):
        try:
            pythons[name] = python_of(name, args.envs)
        except Failed as error:
            lost[name] = f"cannot be installed: {error}"
    results = {}
    for name in chosen(args.only, list(WORKLOADS)):
        w = WORKLOADS[name]
        results[name] = compared(name, replace(w, rounds=args.rounds) if args.rounds else w, pythons, args)
        results[name]["errors"] |= lost
        print(table(name, results[name]), "", sep="\n", flush=True)
    for name, subject in SUBJECTS.items():
        if name in pythons and subject.stand_in:
            print(
                f"{subject.about} ran with a stand-in for {subject.stand_in}, which it imports and no workload calls."
            )
    if args.json:
        args.json.write_text(
            json.dumps({"avx2": args.avx2, "fused": args.fused, "workloads": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()

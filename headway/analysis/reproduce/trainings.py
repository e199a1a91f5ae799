"""The runs behind a table: each training runs once, and all cells that need it read from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.analysis.reproduce.plan import Cell
from headway.analysis.reproduce.protocols import PROTOCOLS
from headway.base.errors import DataError, HeadwayError
from headway.base.text import digest, slug
from headway.metrics.accuracy import global_score, personal_ids, received_score, right_answers
from headway.runs import posthoc
from headway.runs.compare import compare, same_data
from headway.runs.directory import is_done, read_json, read_model
from headway.runs.options import Options
from headway.runs.run import Run
from headway.training import rounds
from headway.training.settings import Settings
from headway.training.task import Task


@dataclass(frozen=True)
class Ours:
    """What we measured for one published number: a value a seed, in percent, or why there is none."""

    values: tuple[float | None, ...]
    failed: tuple[str | None, ...] = ()
    missing: str | None = None  # why it was not run


def measure(cells: Sequence[Cell], seeds: Sequence[int], out: Path, options: Options) -> list[Ours]:
    """Train what the cells need, then read every cell. A data set that cannot be read leaves its cells empty."""
    makers: dict[str, Callable[[Settings], Task]] = {}
    refused: dict[str, str] = {}
    trained: dict[str, list[tuple[Run, Task]]] = {}
    names = list(dict.fromkeys(folder_of(cell) for cell in cells))
    first = {folder_of(cell): cell for cell in reversed(cells)}
    for number, name in enumerate(names, 1):
        cell = first[name]
        if why := refused.get(cell.settings.data) or not_possible(cell):
            refused.setdefault(name, why)
            continue
        make = makers.setdefault(cell.settings.data, same_data(options))
        there = sum(is_done(out / "runs" / name / f"seed-{seed}") for seed in seeds) if not options.overwrite else 0
        reused = f"; {there} of {len(seeds)} seeds finished before, taken as they are" if there else ""
        options.progress.say(f"training {number} of {len(names)}: {cell.training}, {cell.settings.partition}{reused}")
        try:
            trained[name] = train(cell, seeds, out / "runs" / name, options, make)
        except DataError as error:
            refused[cell.settings.data] = refused[name] = str(error)
    if not trained and refused:
        raise DataError(next(iter(refused.values())))
    later = [cell for cell in cells if needs_state(cell)]
    where = {id(cell): f"after training, {number} of {len(later)}" for number, cell in enumerate(later, 1)}

    def say(cell: Cell, run: Run) -> None:
        if id(cell) in where:  # the others are read off a file
            options.progress.say(f"{where[id(cell)]}: {cell.row.method}, {run.path.name}")

    return [reading(cell, trained.get(folder_of(cell)), refused, say, options.workers) for cell in cells]


def train(
    cell: Cell, seeds: Sequence[int], folder: Path, options: Options, make: Callable[[Settings], Task]
) -> list[tuple[Run, Task]]:
    tasks: dict[int, Task] = {}

    def remembered(s: Settings) -> Task:
        tasks[s.seed] = make(s)
        return tasks[s.seed]

    result = compare(
        [cell.training], cell.settings, seeds, folder, options, remembered, lambda recipe, seed: Path(f"seed-{seed}")
    )
    return [(run, tasks[seed]) for run, seed in zip(result.rows[0].runs, seeds, strict=True)]


def not_possible(cell: Cell) -> str | None:
    if cell.row.model == "resnet18-pretrained" and not cell.settings.weights:
        return "it starts from ImageNet weights; give them with --set weights=FILE.safetensors"
    return None


def folder_of(cell: Cell) -> str:
    """Named by what is trained: cells that differ only after training, and later commands, share it."""
    return f"{slug(cell.training)[:60]}-{digest([cell.training, cell.settings.model_dump()])}"


def reading(
    cell: Cell, runs: Sequence[tuple[Run, Task]] | None, refused: Mapping[str, str],
    say: Callable[[Cell, Run], None], workers: int | None,
) -> Ours:  # fmt: skip
    if runs is None:
        return Ours((), missing=refused.get(folder_of(cell)) or refused[cell.settings.data])
    values, failed = [], []
    for run, task in runs:
        why = run.summary["failed"]
        say(cell, run)
        try:
            lost = why and run.summary["personal"] is None and needs_state(cell)
            value = None if lost else read(cell, run, task, workers)
        except HeadwayError as error:  # a model that is not made of numbers can be neither calibrated nor tuned
            value, why = None, why or str(error)
        values.append(None if value is None else 100 * value)
        failed.append(why)
    return Ours(tuple(values), tuple(failed))


def needs_state(cell: Cell) -> bool:
    return bool(cell.calibration or cell.personalisation)


def read(cell: Cell, run: Run, task: Task, workers: int | None = 1) -> float | None:
    """The cell's figure from one finished run, as a fraction."""
    metric, s = cell.row.metric, run.summary
    if metric == "personal_acc":
        if cell.calibration:
            return calibrated_for_clients(run, task, cell.calibration, workers)
        if cell.personalisation:
            return personalised(run, task, cell.personalisation, workers)["personal"]["mean"]
        return s["personal"] and s["personal"]["mean"]
    if metric.startswith("local_acc"):
        accs = [a for _, a in sorted(per_client(run, task).items())]
        if "std" in metric:
            mean = sum(accs) / len(accs)
            return (sum((a - mean) ** 2 for a in accs) / len(accs)) ** 0.5 / 100  # the paper prints a fraction
        k = int(metric.removeprefix("local_acc_client"))
        return accs[k] if k < len(accs) else None
    if metric == "pooled_local_acc":
        return run.metrics["pooled_local_acc"][-1]
    if cell.calibration:
        return calibrated(run, task, cell.calibration, workers)["after"]
    if "calibrated" in s:
        return s["calibrated"]["after"]
    window = PROTOCOLS[cell.row.paper].window_of(s["rounds"])
    scored = [row for row in run.metrics if row["global_acc"] is not None]
    last = [row["global_acc"] for row in scored if row["round"] > scored[-1]["round"] - window]
    return sum(last) / len(last) if last else None


def calibrated(run: Run, task: Task, piece: str, workers: int | None) -> dict[str, Any]:
    """The figures of a calibration; those of an earlier command are taken as they are."""
    path = run.path / "calibrated" / f"{slug(piece)}.json"
    return read_json(path) if path.exists() else posthoc.calibrate(run.path, piece, task, workers=workers)


def calibrated_for_clients(run: Run, task: Task, piece: str, workers: int | None) -> float | None:
    """The calibrated global model as it is on every client's own test, the mean over clients."""
    calibrated(run, task, piece, workers)
    tensors, header = read_model(run.path / "calibrated" / f"{slug(piece)}.safetensors")
    net = task.net_of(header["head"]).load(tensors).eval()
    ids = personal_ids(task)
    accs = [float(right_answers(net, *task.test(k))[0].float().mean()) for k in ids]
    return sum(accs) / len(accs) if accs else None


def personalised(run: Run, task: Task, piece: str, workers: int | None) -> dict[str, Any]:
    path = run.path / "personalised" / slug(piece) / "summary.json"
    return read_json(path) if path.exists() else posthoc.personalise(run.path, piece, task, workers=workers)


def per_client(run: Run, task: Task) -> dict[int, float]:
    """Each client's accuracy on receiving the last global model."""
    saved = posthoc.load(run.path, task=task)
    net = rounds.global_net(saved.server, saved.recipe, saved.task)
    score = global_score(net, saved.engine, saved.task)
    ids = personal_ids(saved.task)
    return received_score(saved.server, saved.recipe, saved.task, saved.engine, net, score, ids).accs


def seconds(cells: Sequence[Cell], seeds: Sequence[int], out: Path) -> float:
    """What the rounds of all trainings took, evaluation included."""
    folders = {folder_of(cell) for cell in cells}
    places = [out / "runs" / name / f"seed-{seed}" for name in sorted(folders) for seed in seeds]
    return sum(Run(place).summary["seconds"] for place in places if is_done(place))

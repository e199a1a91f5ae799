"""What the commands print: tables for people, the same facts as plain values for `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.comparison import Comparison, Row, traffic
from headway.data import DATASETS, Dataset
from headway.data.partition import PARTITIONS, Partition, describe
from headway.data.plots import plot, rows
from headway.errors import CheckpointError, ConfigError, RecipeError, nearest
from headway.methods import REGISTRY
from headway.methods import recipe as parse_recipe
from headway.models import MODELS
from headway.outcome import notes_in
from headway.progress import counted
from headway.recipes import Recipe, explain, idea_line, summary_line
from headway.rundir import Run, read_json
from headway.settings import Settings
from headway.task import build
from headway.travels import leaves, travels


def plain_table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    return table


def percent(value: float | None, std: float | None = None) -> str:
    if value is None:
        return "n/a"
    return f"{100 * value:.2f}" if std is None else f"{100 * value:.2f} ± {100 * std:.2f}"


def summary(console: Console, run: Run) -> None:
    """One finished run."""
    s = run.summary
    where = escape(str(run.path))
    console.print(f"[bold]{s['label']}[/bold]: {counted(s['rounds'], 'round')} in {s['seconds']:.1f} s -> {where}")
    if s["failed"]:
        console.print(f"failed: {s['failed']}")
    table = plain_table("accuracy, %", "value")
    table.add_row("global, last round", percent(s["last"]))
    if cal := s.get("calibrated"):
        table.add_row("global, calibrated", percent(cal["after"]))
    table.add_row("global, mean of the last 5 / 50", f"{percent(s['last5'])} / {percent(s['last50'])}")
    table.add_row("global, best round (not a result)", percent(s["best"]))
    table.add_row("global, balanced over classes", percent(s["balanced_acc"]))
    if own := s["personal"]:
        table.add_row("personal, mean ± std over clients", percent(own["mean"], own["std"]))
        table.add_row("personal, pooled", percent(own["pooled"]))
    up, down = traffic(s)
    table.add_row("megabytes up / down", f"{up / 1e6:.2f} / {down / 1e6:.2f}")
    console.print(table)
    for text in notes_in(s):
        console.print(f"note: {text}", markup=False)


def leaderboard(console: Console, c: Comparison) -> None:
    """Recipes in the order of their global accuracy after the last round."""
    several = len(c.seeds) > 1
    table = plain_table("recipe", "global %", "last 5 %", "personal %", "pooled %", "MB", "s")

    def cell(row: Row, figure: str) -> str:
        return percent(row.mean(figure), row.std(figure) if several else None)

    for row in c.rows:
        name = row.recipe + (f"  (failed: {row.failed} of {len(c.seeds)})" if row.failed else "")
        sizes = [f"{row.mean(f) or 0:.1f}" for f in ("megabytes", "seconds")]
        table.add_row(name, *(cell(row, f) for f in ("global", "last5", "personal", "pooled")), *sizes)
    console.print(table)
    for run, name in ((run, row.recipe) for row in c.rows for run in row.runs):
        for text in notes_in(run.summary):
            console.print(f"note: {name}, seed {run.summary['seed']}: {text}", markup=False)
    seeds = f"seeds {', '.join(map(str, c.seeds))}; ± is the spread over seeds" if several else f"seed {c.seeds[0]}"
    console.print(f"global: the last round (calibrated where the recipe calibrates); {seeds}")
    console.print(f"runs and leaderboard.json, leaderboard.csv in {c.path}", markup=False)


def calibration(console: Console, result: dict[str, Any]) -> None:
    table = plain_table("global accuracy, %", "value")
    for name, key in (
        ("before", "before"),
        ("after", "after"),
        ("oracle: the same retraining on real features", "oracle"),
    ):
        table.add_row(name, percent(result[key]))
    table.add_row(
        "balanced, before / after", f"{percent(result['balanced_before'])} / {percent(result['balanced_after'])}"
    )
    console.print(result["recipe"], markup=False)
    console.print(table)
    console.print(f"model: {result['model']}", markup=False)
    if "note" in result:
        console.print(f"note: {result['note']}", markup=False)


def personalisation(console: Console, result: dict[str, Any]) -> None:
    own = result["personal"]
    table = plain_table("personal accuracy, %", "mean over clients")
    for stage, mean in own["stages"].items():
        table.add_row(stage, percent(mean))
    table.add_row("at the end, mean ± std over clients", percent(own["mean"], own["std"]))
    table.add_row("at the end, pooled", percent(own["pooled"]))
    console.print(result["recipe"], markup=False)
    console.print(table)
    console.print(f"models of {counted(own['clients'], 'client')}: {result['models']}", markup=False)
    if "note" in own:
        console.print(f"note: {own['note']}", markup=False)


# ---- list
def listing(what: str) -> list[dict[str, Any]]:
    kinds = {
        "pieces": _pieces,
        "recipes": _recipes,
        "models": _models,
        "data": _data,
        "partitions": _partitions,
    }
    if what not in kinds:
        raise ConfigError(f"list {what or repr(what)}: there is no such list; {nearest(what, kinds)}")
    return kinds[what]()


def _pieces() -> list[dict[str, Any]]:
    return [
        {
            "name": p.name,
            "slot": p.slot,
            "settings": {f.name: {"default": f.default, "about": f.metadata.get("about", "")} for f in fields(p)},
            "about": idea_line(p),
            "paper": p.paper,
            "citation": summary_line(p),
        }
        for p in REGISTRY.pieces
    ]


def _recipes() -> list[dict[str, Any]]:
    named = {p.name: p.name for p in REGISTRY.pieces if p.slot in ("base", "share")} | dict(REGISTRY.aliases)
    return [{"name": name, "pieces": str(parse_recipe(name))} for name in named]


def _models() -> list[dict[str, Any]]:
    return [{"name": m.name, "about": m.about, "min_size": m.min_size, "bn": m.bn} for m in MODELS.values()]


def _data() -> list[dict[str, Any]]:
    return [{f.name: getattr(d, f.name) for f in fields(d)} for d in DATASETS.values()]


def _partitions() -> list[dict[str, Any]]:
    return [{"name": name, "about": about} for name, about in PARTITIONS.items()]


def listing_table(console: Console, what: str, items: Sequence[dict[str, Any]]) -> None:
    """What fits a terminal; --json has the rest: keys of papers, titles, licences."""
    shown = [column for column in items[0] if column not in ("paper", "title", "licence")]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in shown:
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for item in items:
        table.add_row(*(escape(_cell(item[column])) for column in shown))
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v['default']}" for k, v in value.items()) or "-"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)


# ---- explain
def explanation(recipe: Recipe) -> dict[str, Any]:
    hooks = [{"hook": hook, "fold": fold, "pieces": who} for hook, fold, who in explain(recipe)]
    return {"recipe": str(recipe), "hooks": hooks, **travels(recipe), "refused": refusal(recipe)}


def refusal(recipe: Recipe) -> str | None:
    """Why a run would refuse the recipe, whatever the task."""
    try:
        recipe.check(recipe, dim=10**6, classes=2)
    except RecipeError as error:
        return str(error)
    return None


def explain_text(console: Console, recipe: Recipe) -> None:
    facts = explanation(recipe)
    console.print(f"{recipe}: everything not listed is FedAvg's", markup=False)
    for line in facts["hooks"]:
        console.print(f"  {line['hook']:<12} {line['fold']:<6} {' '.join(line['pieces'])}", markup=False)
    for what in ("down", "up", "stays", "frozen", "once"):
        if facts[what]:
            console.print(f"  {what + ':':<8}{', '.join(facts[what])}", markup=False)
    if facts["refused"]:
        console.print(f"  a run is refused: {facts['refused']}", markup=False)


def privacy_text(console: Console, recipe: Recipe) -> None:
    console.print(f"{recipe}: what leaves a client, and what it tells of its data", markup=False)
    table = plain_table("leaves", "when", "tells")
    table.columns[1].justify = table.columns[2].justify = "left"
    for row in leaves(recipe):
        table.add_row(*(escape(row[key]) for key in ("what", "when", "tells")))
    console.print(table)
    console.print("headway simulates: nothing here is encrypted, clipped or noised.", markup=False)


# ---- partition
@dataclass(frozen=True)
class DrawnPartition:
    """A partition with what is needed to describe it."""

    partition: Partition
    dataset: Dataset

    def check_place(self, out: Path, overwrite: bool) -> None:
        """Neither a run nor another saved partition is written over."""
        if (out / "config.json").exists():
            raise CheckpointError(f"out={out}: it holds a run, whose partition.json is its own; choose another --out")
        if (out / "partition.json").exists() and not overwrite:
            found = read_json(out / "partition.json")
            if not isinstance(found, dict) or found.get("hash") != self.partition.hash():
                raise CheckpointError(
                    f"out={out}: it holds another partition; choose another --out, or --overwrite to replace it"
                )

    def save(self, out: Path) -> None:
        labels = self.dataset.y.numpy()
        self.partition.save(out / "partition.json", labels)
        title = f"{self.dataset.name}, {self.partition.spec}, seed {self.partition.seed}"
        plot(self.partition, labels, out / "partition.png", self.dataset.class_names, title)

    def record(self) -> dict[str, Any]:
        p, labels = self.partition, self.dataset.y.numpy()
        facts = {"spec": p.spec, "seed": p.seed, "hash": p.hash(), "notes": p.notes}
        return facts | {"counts": p.counts(labels).tolist(), "describe": describe(p, labels)}

    def print(self, console: Console, out: Path | None) -> None:
        labels = self.dataset.y.numpy()
        header, *body = rows(self.partition, labels)
        table = plain_table(*header)
        for line in body:
            table.add_row(*line)
        console.print(f"{self.dataset.name}, {self.partition.spec}, seed {self.partition.seed}", markup=False)
        console.print(table)
        # JSON keeps the two apart by where they stand: how many clients are empty, and which
        facts = renamed(describe(self.partition, labels), "empty", "empty_clients")
        facts |= renamed(self.partition.notes, "empty", "empty_client_ids")
        for name, value in facts.items():
            console.print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}", markup=False)
        console.print(f"hash: {self.partition.hash()}")
        if out:
            console.print(f"saved: {out / 'partition.json'}, {out / 'partition.png'}", markup=False)


def renamed(facts: Mapping[str, Any], key: str, name: str) -> dict[str, Any]:
    return {name if k == key else k: v for k, v in facts.items()}


def drawn_partition(s: Settings) -> DrawnPartition:
    task = build(s)
    return DrawnPartition(task.partition, task.dataset)

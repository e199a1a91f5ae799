"""What finished runs print: the summary of one, the leaderboard of several."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from headway.base.text import counted
from headway.cli.output import percent, plain_table
from headway.runs.compare import Comparison, Row
from headway.runs.figures import traffic
from headway.runs.finish import notes_in
from headway.runs.run import Run


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

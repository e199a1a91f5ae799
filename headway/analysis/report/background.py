"""The recipes and the data: which piece acts at which stage, what is sent, and which client holds which data."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.analysis.communication import explanation
from headway.analysis.report.charts import holdings, shade_key
from headway.analysis.report.gather import Entry, Gathered, Group, Held
from headway.analysis.report.markup import Markup, details, el, join, table
from headway.analysis.report.measures import thin
from headway.analysis.report.parts import NOTHING, counted, figure, listed, name_of, section
from headway.base.errors import HeadwayError
from headway.data.partitions.partition import Partition, describe
from headway.methods import recipe as parse_recipe

STAGES = {  # the hooks of the round in words
    "head": "the classifier's shape",
    "check": "what is refused or advised",
    "init_server": "server's first state",
    "init_client": "client's first state",
    "share": "which parameters are sent",
    "broadcast": "what else is sent down",
    "equip": "tensors put into the model",
    "phases": "phases of local training",
    "step": "step sizes",
    "prepare": "before the first step",
    "lift": "features in training",
    "criterion": "the loss",
    "penalty": "added to the loss",
    "gradient": "the gradient",
    "correct": "correction of the gradient",
    "report": "what is sent up beside the model",
    "aggregate": "the average",
    "absorb": "what the server learns",
    "server_step": "the server's step",
    "evaluated": "the model that is evaluated",
    "survey": "asked once at the end",
    "calibrate": "calibration",
    "personalise": "personal models",
}
COMMUNICATION = {
    "down": "sent down",
    "up": "sent up",
    "stays": "stays on the client",
    "frozen": "fixed for all",
    "once": "asked once at the end",
}
MOST_PARTITIONS = 4
CELLS = 40  # clients in the table of counts


def explained(text: str) -> dict[str, Any] | None:
    """Who acts where and what is sent; None for a recipe this version does not know."""
    try:
        return explanation(parse_recipe(text))
    except HeadwayError:
        return None


def recipes(g: Gathered) -> Markup:
    """A line a recipe with the stages where each piece acts; to unfold: the same stage by stage, and what is sent."""
    known: list[tuple[list[Group], dict[str, Any]]] = []
    unknown: list[Group] = []
    for text in dict.fromkeys(x.recipe for x in g.groups):
        alike, facts = [x for x in g.groups if x.recipe == text], explained(text)
        if facts is None:
            unknown += alike
        else:
            known.append((alike, facts))
    inside: list[object] = []
    if known:
        rows = [[recipe_cell(alike, facts), who_acts(facts)] for alike, facts in known]
        inside.append(table("Who acts where in the round", ["recipe", "beyond FedAvg"], rows, cls="words acting"))
        inside.append(details("Stage by stage, and what is sent", stages([(names(a), f) for a, f in known])))
    if unknown:
        words = f"Not known to this version of headway: {listed([x.label for x in unknown])}."
        inside.append(el("p", words, cls="note"))
    return section("recipes", "Recipes: who acts where", *inside)


def names(alike: list[Group]) -> Markup:
    """What a recipe is called here; under several settings it acts in the same places, so it is listed once."""
    called = list(dict.fromkeys(x.runs[0].label for x in alike))
    return name_of(alike[0]) if len(alike) == 1 else el("bdi", ", ".join(called))


def recipe_cell(alike: list[Group], facts: dict[str, Any]) -> Markup:
    """Its name, and below in small what the name does not say: its pieces, and under how many settings it ran."""
    called = {x.runs[0].label for x in alike}
    more = [] if called == {facts["recipe"]} else [facts["recipe"].replace("+", " + ")]
    more += [f"under {counted(len(alike), 'setting')}"] if len(alike) > 1 else []
    return join([names(alike), el("span", ", ".join(more), cls="pieces") if more else ""])


def who_acts(facts: dict[str, Any]) -> Markup:
    """Each piece with the places of the round in which it acts, in the round's order."""
    at: dict[str, list[str]] = {}
    for line in sorted(facts["hooks"], key=lambda line: place_of(line["hook"])):
        for piece in line["pieces"]:
            at.setdefault(piece, []).append(STAGES.get(line["hook"], line["hook"]))
    lines = [el("div", el("b", piece), f": {', '.join(places)}") for piece, places in at.items()]
    return join(lines or [NOTHING])


def place_of(hook: str) -> int:
    return list(STAGES).index(hook) if hook in STAGES else len(STAGES)


def stages(known: list[tuple[Markup, dict[str, Any]]]) -> Markup:
    """A row a stage of the round, a column a recipe; below them what is sent, kept and fixed."""
    facts = [f for _, f in known]
    acting = [{line["hook"]: " ".join(line["pieces"]) for line in f["hooks"]} for f in facts]
    hooks = sorted({h for a in acting for h in a}, key=lambda h: (place_of(h), h))
    rows: list[list[object]] = [["pieces", *(f["recipe"].replace("+", " + ") for f in facts)]]
    rows += [[join([el("code", h), " ", STAGES.get(h, "")]), *(a.get(h, NOTHING) for a in acting)] for h in hooks]
    rows += [
        [title, *(", ".join(f[way]) or NOTHING for f in facts)]
        for way, title in COMMUNICATION.items()
        if any(f[way] for f in facts)
    ]
    note = el("p", "Everything not listed is FedAvg's. A dash: nothing beyond FedAvg there.", cls="note")
    header = ["in the round", *(name for name, _ in known)]
    return join([note, table("The round stage by stage, and what is sent", header, rows, cls="words")])


# ---- partition
def partitions(g: Gathered) -> Markup:
    found: dict[str, tuple[Held, list[Entry]]] = {}
    for run in sorted(g.runs, key=lambda r: r.seed):
        if run.held is not None and run.held.counts.size:
            found.setdefault(run.held.hash + str(run.held.counts.shape), (run.held, []))[1].append(run)
    if not found:
        return section("partition", "Who holds which data", el("p", "No run says who holds which data."))
    drawn = [
        partition_figure(i, held, runs, g) for i, (held, runs) in enumerate(list(found.values())[:MOST_PARTITIONS])
    ]
    left = len(found) - len(drawn)
    others = details("Under other seeds or settings", el("div", *drawn[2:], cls="pair")) if drawn[2:] else ""
    more = (
        el("p", f"{counted(left, 'further partition')} not drawn; their figures are in the table.", cls="note")
        if left
        else ""
    )
    return section(
        "partition",
        "Who holds which data",
        facts_table(list(found.values())),
        el("div", *drawn[:2], cls="pair"),
        others,
        more,
    )


def facts_of(held: Held) -> dict[str, Any]:
    """`describe` on the counts alone: samples are numbered client by client, class by class."""
    counts = held.counts
    labels = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    offsets = np.concatenate([[0], np.cumsum(held.sizes)]).astype(np.int64)
    p = Partition(held.spec, 0, np.arange(len(labels), dtype=np.int64), offsets, counts.shape[1], "", {})
    return describe(p, labels)


def facts_table(found: list[tuple[Held, list[Entry]]]) -> Markup:
    rows = []
    for held, runs in found:
        if not held.sizes.sum():
            continue
        f = facts_of(held)
        rows.append([
            f"{held.spec}, seed {listed(sorted({str(r.seed) for r in runs}))}",
            f"{f['clients']:,}", f"{f['samples']:,}",
            f"{f['size_min']:,} / {f['size_median']:,.0f} / {f['size_max']:,}",
            f"{f['classes_min']} / {f['classes_mean']:.1f} / {f['classes_max']}",
            f"{f['effective_classes']:.2f} of {held.counts.shape[1]}", f"{f['js_divergence']:.3f}",
            f"{f['size_gini']:.3f}", f["empty"],
        ])  # fmt: skip
    header = [
        "partition",
        "clients",
        "samples",
        "size least / median / most",
        "classes least / mean / most",
        "effective classes",
        "JS divergence",
        "Gini of sizes",
        "empty clients",
    ]
    note = (
        "Effective classes: e to the entropy of a client's labels, mean over clients. JS divergence: mean over pairs "
        "of clients in bits, 0 alike, 1 nothing in common. Gini of sizes: 0 all alike, towards 1 one client has "
        "everything. Training data only."
    )
    return join([table("How skewed it is", header, rows), el("p", note, cls="note")])


def partition_figure(i: int, held: Held, runs: list[Entry], g: Gathered) -> Markup:
    counts = held.counts
    title = f"{held.spec}, seed {listed(sorted({str(r.seed) for r in runs}))}"
    about = (
        f"Share of each class in each of {counted(len(counts), 'client')}: columns are clients, rows are "
        f"{counts.shape[1]} classes, darker is more. Clients hold {int(held.classes.min())} to "
        f"{int(held.classes.max())} classes."
    )
    drawing = holdings(f"partition-{i}", title, about, counts)
    shown, classes = thin(range(len(counts)), CELLS), thin(range(counts.shape[1]), CELLS)
    rows = [[k, int(held.sizes[k]), *(int(counts[k, c]) or "·" for c in classes)] for k in shown]
    which = users(runs, g)
    return figure(
        title,
        drawing,
        note=f"Recipes: {which}." if which else "",
        header=["client", "samples", *(held.name(c) for c in classes)],
        rows=rows,
        more=el("p", shade_key(), cls="note"),
    )


def users(runs: list[Entry], g: Gathered) -> str:
    """Who trained on it, where that is not everybody."""
    there: list[Group] = [x for x in g.groups if any(r in runs for r in x.runs)]
    return "" if len(there) == len(g.groups) else listed([x.label for x in there])

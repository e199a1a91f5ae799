"""The top of the page: the result in words, and the leaderboard with the meaning of its marks."""

from __future__ import annotations

from collections.abc import Mapping

from headway.analysis.report.gather import Entry, Gathered, Group
from headway.analysis.report.markup import Markup, cell, details, el, join, prose, table
from headway.analysis.report.parts import (
    clients_text,
    counted,
    labelled,
    listed,
    name_of,
    section,
    spread_cell,
    with_spread,
)
from headway.analysis.report.stats import Verdict, shared

Verdicts = Mapping[str, Mapping[str, Verdict]]
COLUMNS = (  # figure, heading, factor, decimals
    ("global", "global %", 100.0, 2),
    ("last5", "last 5 %", 100.0, 2),
    ("best", "best %", 100.0, 2),
    ("personal", "personal %", 100.0, 2),
    ("pooled", "pooled %", 100.0, 2),
    ("worst", "worst client %", 100.0, 2),
    ("megabytes", "MB", 1.0, 1),
    ("seconds", "seconds", 1.0, 1),
)
CALIBRATED = el("sup", el("span", " (after calibration)", cls="unseen"), el("span", "c", aria_hidden="true"))
MARKS = {"better": "▲", "worse": "▼", "unclear": "≈", "untested": "?"}
TIE = 5e-5  # what two decimals of a percentage cannot show
AFTER = (
    "The global figure is after calibration, which follows the last round; the rounds' figures (last 5, best, curves, "
    "rounds to a target) are before it."
)


def task_line(g: Gathered) -> str:
    """What was run, in one line."""
    s = g.groups[0].settings
    alike = {name: name not in g.differing for name in ("data", "partition", "clients", "rounds", "model")}
    parts = [counted(len(g.groups), "recipe"), counted(len(g.runs), "run")]
    if alike["data"]:
        parts.append(f"data {s.get('data')}")
    if alike["model"]:
        parts.append(f"model {s.get('model')}")
    if alike["clients"] and s.get("clients"):
        parts.append(counted(int(s["clients"]), "client"))
    if alike["partition"]:
        parts.append(f"partition {s.get('partition')}")
    if alike["rounds"]:
        parts.append(counted(int(s.get("rounds") or 0), "round"))
    seeds = sorted({run.seed for run in g.runs})
    parts.append(f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}")
    return " · ".join(parts)


def in_words(g: Gathered, verdicts: Verdicts) -> Markup:
    """One paragraph: the best recipe, by how much, and whether that is more than noise."""
    words: list[object] = []
    able = finished_first([x for x in g.groups if x.mean("global") is not None])
    if len(g.groups) == 1:
        words += single(g.groups[0])
    elif able:
        words += best_global(able, g.base, verdicts["global"])
    if len(g.groups) > 1:
        words += best_personal(g, verdicts["personal"])
    failed, waiting = [r for r in g.runs if r.failed], [r for r in g.runs if r.unfinished]
    if failed:
        words.append(f" {counted(len(failed), 'run')} of {len(g.runs)} failed; the leaderboard says why.")
    if waiting:
        words.append(f" {counted(len(waiting), 'run')} of {len(g.runs)} {is_are(len(waiting))} unfinished.")
    if g.damaged:
        words.append(f" {counted(len(g.damaged), 'more run')} cannot be read and {is_are(len(g.damaged))} left out.")
    if g.differing:
        words.append(
            f" Careful: the runs differ in {listed(list(g.differing))}, so the recipes are not compared on equal terms."
        )
    return el("p", *words, cls="lead")


def is_are(n: int) -> str:
    return "is" if n == 1 else "are"


def finished_first(groups: list[Group]) -> list[Group]:
    """A recipe with unfinished runs is not called the best while another is whole."""
    return [x for x in groups if x.whole] or groups


def single(x: Group) -> list[object]:
    words: list[object] = [name_of(x)]
    end, personal = x.mean("global"), x.mean("personal")
    if end is not None:
        words.append(f" ends with a global accuracy of {share(x, 'global')}")
    else:
        words.append(" has no global model")
    if personal is not None:
        words.append(
            f"{' and' if end is not None else ','} a personal accuracy of {share(x, 'personal')} (mean over clients)"
        )
    words.append(
        f" after {counted(x.counted[0].done, 'round')}, with {x.mean('megabytes') or 0:,.1f} MB sent in "
        f"{x.mean('seconds') or 0:,.1f} s."
    )
    if len(x.seeds) == 1:
        words.append(" One seed does not show the noise: run several to see the spread.")
    return words


def best_global(able: list[Group], base: Group, tests: Mapping[str, Verdict]) -> list[object]:
    best = able[0]
    words: list[object] = [
        "Best global accuracy after the last round: ",
        el("strong", name_of(best)),
        f" with {share(best, 'global')}",
    ]
    if best.base or base.mean("global") is None:
        if len(able) > 1:
            second = able[1]
            words.append(f", {gap(best, second, 'global')} ")
            words += [name_of(second), ". ", *verdict_words(tests.get(second.key), "it")]
        else:
            words.append(".")
        return words
    words.append(f", {gap(best, base, 'global')} ")
    words += [name_of(base), f" ({share(base, 'global')}). "]
    return words + verdict_words(tests.get(best.key), "the difference")


def gap(a: Group, b: Group, figure: str) -> str:
    """How far one recipe is above another, over the seeds that both ran where there are such."""
    ours, theirs = a.values(figure), b.values(figure)
    both = shared(ours, theirs)
    apart = sum(both) / len(both) if both else (a.mean(figure) or 0) - (b.mean(figure) or 0)
    if abs(apart) < TIE:
        return "level with"
    which = "" if not both or ours.keys() == theirs.keys() else f" over {counted(len(both), 'shared seed')}"
    return f"{100 * apart:.2f} points{which} above"


def verdict_words(v: Verdict | None, what: str) -> list[object]:
    what = "The difference" if what in ("it", "the difference") else what
    if v is None:
        return []
    if v.p is None:
        reason = {
            "too few seeds": (f"is not tested: {counted(v.pairs, 'shared seed')}, and a paired test needs three"),
            "unfinished": "is not tested, as runs are unfinished",
        }.get(v.why, f"is not tested ({v.why})")
        return [f"{what} {reason}."]
    over = f"paired t-test over {v.pairs} seeds, {p_text(v)}{', adjusted' if v.tests > 1 else ''}"
    return [f"{what} is {'beyond the noise' if v.beyond_noise else 'within the noise'} of seeds ({over})."]


def best_personal(g: Gathered, tests: Mapping[str, Verdict]) -> list[object]:
    able = finished_first([x for x in g.groups if x.mean("personal") is not None])
    able.sort(key=lambda x: -(x.mean("personal") or 0))
    if not able:
        return []
    best = able[0]
    words: list[object] = [
        " Best personal accuracy: ",
        el("strong", name_of(best)),
        f" with {share(best, 'personal')}",
    ]
    if best.base or g.base.mean("personal") is None:
        return [*words, "."]
    v = tests.get(best.key)
    words += [f", {gap(best, g.base, 'personal')} ", name_of(g.base)]
    if v is None or v.p is None:
        return [*words, "."]
    over = clients_text(best.clients().keys() & g.base.clients().keys())
    return [
        *words,
        (
            f" ({'beyond' if v.beyond_noise else 'within'} the noise of clients: Wilcoxon over {over}, "
            f"{p_text(v)}{', adjusted' if v.tests > 1 else ''})."
        ),
    ]


def p_text(v: Verdict) -> str:
    if v.p is None:
        return v.why
    text = "p < 0.001" if v.p < 0.001 else f"p = {v.p:.3f}" if v.p < 0.1 else f"p = {v.p:.2f}"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def share(x: Group, figure: str) -> str:
    """A figure of a recipe in percent, in one piece."""
    after = " (calibrated)" if figure == "global" and x.calibrated is not None else ""
    return f"{with_spread(x.mean(figure), x.std(figure), 100)} %{after}".replace(" ", "\N{NO-BREAK SPACE}")


def leaderboard(g: Gathered, verdicts: Verdicts) -> Markup:
    """Recipes by the global accuracy of their last round; the reference is marked."""
    header = ["recipe", *(name for _, name, _, _ in COLUMNS)]
    rows, marks = [], []
    for x in g.groups:
        cells: list[object] = [
            join(
                [
                    labelled(x),
                    join([" ", el("span", "reference", cls="tag")]) if x.base and len(g.groups) > 1 else "",
                    *state(x),
                ]
            )
        ]
        for figure, _, factor, digits in COLUMNS:
            mean = x.mean(figure)
            shown: list[object] = [spread_cell(mean, x.std(figure), factor, digits)]
            if figure == "global" and x.calibrated is not None:
                shown.append(CALIBRATED)
            if mean is not None and (v := verdicts.get(figure, {}).get(x.key)):
                shown += [" ", mark(v, g.base)]
            cells.append(cell(join(shown), -1.0 if mean is None else factor * mean, cls="number"))
        rows.append(cells)
        marks.append({"cls": "failed" if any(r.failed for r in x.runs) else None})
    board = table(caption_of(g), header, rows, cls="sortable", marks=marks)
    return section("leaderboard", "Leaderboard", board, failures(g), footnote(g, verdicts))


def caption_of(g: Gathered) -> str:
    several = any(len(x.seeds) > 1 for x in g.groups)
    return "By global accuracy after the last round" + ("; mean ± spread over seeds" if several else "")


def mark(v: Verdict, base: Group) -> Markup:
    """A sign, and the same in words for who cannot see it."""
    said = {
        "better": "better than",
        "worse": "worse than",
        "unclear": "no clear difference from",
        "untested": "not tested against",
    }
    words = f"{said[v.mark]} {base.label}, {p_text(v)}"
    return el(
        "span",
        el("span", MARKS[v.mark], aria_hidden="true"),
        el("span", f" ({words})", cls="unseen"),
        cls=f"mark {v.mark}",
        title=words,
    )


def state(x: Group) -> list[Markup]:
    failed, waiting = sum(r.failed is not None for r in x.runs), sum(r.unfinished for r in x.runs)
    n = len(x.runs)
    tags = []
    if failed:
        tags.append(el("span", f"failed{f': {failed} of {n}' if n > 1 else ''}", cls="tag bad"))
    if waiting:
        tags.append(el("span", f"unfinished{f': {waiting} of {n}' if n > 1 else ''}", cls="tag warn"))
    return [join([" ", t]) for t in tags]


def failures(g: Gathered) -> Markup:
    """Every run that failed, has not ended or cannot be read, with its reason."""

    def line(x: Group, r: Entry) -> Markup:
        why = (
            f"failed: {r.failed}"
            if r.failed
            else f"unfinished: {r.done} of {counted(r.wanted, 'round')}; `headway resume` continues it"
        )
        return el("li", name_of(x), f", seed {r.seed} (", el("code", r.path), "): ", prose(why))

    lines = [line(x, r) for x in g.groups for r in x.runs if r.failed or r.unfinished]
    lines += [el("li", el("code", path), ": damaged, not shown: ", prose(why)) for path, why in g.damaged.items()]
    return el("ul", *lines, cls="problems") if lines else Markup()


def footnote(g: Gathered, verdicts: Verdicts) -> Markup:
    several = any(len(x.seeds) > 1 for x in g.groups)
    columns = (
        "global: the last round on the test set, calibrated where the recipe calibrates; last 5: the mean of the last "
        "five rounds; best: the best round, which is no result. personal: each client's own model on its own test "
        "data, mean over clients; pooled: over all clients' test samples; worst client: the least of them. "
        "MB: up and down together. " + ("± is the spread over seeds (ddof 0)." if several else "")
    )
    marks = el("p", *marks_note(g, verdicts), cls="note") if len(g.groups) > 1 else ""
    after = ""
    if any(x.calibrated is not None for x in g.groups):
        after = el("p", el("sup", "c"), " ", AFTER, cls="note")
    return join([after, marks, details("What the columns mean", el("p", columns, cls="note"))])


def marks_note(g: Gathered, verdicts: Verdicts) -> list[object]:
    tests = [v for row in verdicts.values() for v in row.values()]
    most = max((v.tests for v in tests), default=0)
    words: list[object] = [
        "Marks compare with the reference ",
        name_of(g.base),
        ": ▲ better, ▼ worse (p < 0.05), ≈ no clear difference, ? not tested. Beside global: a paired t-test over "
        "the seeds that both ran; beside personal: Wilcoxon's signed-rank test over clients, each under each "
        "seed, which is about these clients and not about new seeds. ",
    ]
    if most > 1:
        words.append(f"p is adjusted for the number of recipes tested (Holm, up to {most}). ")
    words.append("Few seeds show only large differences: one that is not clear here may still exist. ")
    if any(v.why == "too few seeds" for v in verdicts["global"].values()):
        words.append("Too few seeds: with fewer than three shared seeds global accuracies are not tested. ")
    if any(v.why == "clients hold other data" for v in tests):
        words.append("Clients that hold other data than under the reference are not compared one by one. ")
    return words

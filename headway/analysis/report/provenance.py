"""How the runs were made: settings, versions, what differs, and the commands that make them again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from headway.analysis.report.gather import Entry, Gathered
from headway.analysis.report.markup import Markup, details, el, join, prose, table
from headway.analysis.report.parts import NOTHING, counted, listed, name_of, section
from headway.data import DATASETS
from headway.models import MODELS
from headway.training.settings import Settings
from headway.training.tuning import WAYS_TO_RUN

WAYS = {  # options that differ from these are named
    "device": "cpu", "threads": 1, "engine": "local", "address": None, "store": "auto", "native": "auto",
}  # fmt: skip


def command(run: Entry) -> str:
    """The `headway run` that repeats this run, every setting that is not a default spelled out."""
    words = ["headway", "run", run.recipe]
    for name, value in run.config["settings"].items():
        if name in Settings.model_fields and value != Settings.model_fields[name].default:
            words += spelled(name, value)
    options = run.config["options"]
    for name, usual in WAYS.items():
        if (value := options.get(name, usual)) != usual:
            words += [f"--{name}", str(value)]
    words += ["--tune"] * tuned(run)
    if watched := names_in(options.get("watch")):
        words += ["--watch", ",".join(watched)]
    for tracker in names_in(options.get("track")):
        words += ["--track", tracker]
    return shlex.join(words)


def tuned(run: Entry) -> bool:
    """Whether --tune chose the way to run the body, on which the last bits depend."""
    options = run.config["options"]
    if "chunk" in options:  # a run of a version that chooses by rule unless it is told to time
        return options.get("tune") is True
    return bool(options.get("layout") in WAYS_TO_RUN[1:])


def names_in(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(name) for name in value] if isinstance(value, list) else []


def spelled(name: str, value: Any) -> list[str]:
    dashed = name.replace("_", "-")
    if value is None:
        return ["--set", f"{name}=none"]
    if isinstance(value, bool):
        return [f"--{'' if value else 'no-'}{dashed}"]
    text = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
    return [f"--{dashed}={text}"] if text.startswith("-") else [f"--{dashed}", text]


def made_from_objects(run: Entry) -> list[str]:
    """Data and models that were given as objects in Python, which no command can name."""
    s = run.config["settings"]
    data, model = str(s.get("data")), str(s.get("model"))
    parts = []
    if data not in DATASETS and "/" not in data and "." not in data:
        parts.append(f"data {data}")
    if model not in MODELS and model != "auto" and ".py" not in model:
        parts.append(f"model {model}")
    return parts


def origin(g: Gathered) -> Markup:
    return section(
        "origin",
        "How it was made, and how to make it again",
        differing(g),
        commands(g),
        settings_table(g),
        versions(g),
        places(g),
    )


def differing(g: Gathered) -> Markup:
    """A warning where the runs were not made under the same settings."""
    warnings = []
    seeds = {x.label: tuple(x.seeds) for x in g.groups}
    if g.differing:
        rows = [[el("code", name), *values] for name, values in g.differing.items()]
        warnings.append(
            el(
                "p",
                el("strong", "Not comparable as they stand. "),
                f"The runs differ in {listed(list(g.differing))}: a difference between recipes may come from there.",
            )
        )
        warnings.append(table("Settings that differ", ["setting", *(name_of(x) for x in g.groups)], rows))
    if len(set(seeds.values())) > 1:
        warnings.append(
            el(
                "p",
                "Recipes ran under different seeds; tests use the seeds that both have: "
                + "; ".join(f"{name}: {', '.join(map(str, s))}" for name, s in seeds.items())
                + ".",
            )
        )
    return el("div", *warnings, cls="warning", role="note") if warnings else Markup()


def commands(g: Gathered) -> Markup:
    blocks = []
    for x in g.groups:
        lines = "\n".join(command(run) for run in x.runs)
        objects = made_from_objects(x.runs[0])
        note = (
            el(
                "p",
                (
                    f"It was made in Python from objects ({listed(objects)}), which no command can name: pass them to "
                    "headway.run again."
                ),
                cls="note",
            )
            if objects
            else ""
        )
        blocks.append(join([el("h4", name_of(x)), note, el("pre", el("code", lines), tabindex="0")]))
    note = el(
        "p",
        (
            "On one kind of machine, with the same versions and number of threads, these give the same bytes of "
            "metrics and model."
        ),
        cls="note",
    )
    if any(tuned(run) for run in g.runs):
        chosen = ", ".join(sorted({run.config["options"]["layout"] for run in g.runs if tuned(run)}))
        words = f"--tune chooses again: the fastest layout of images was {chosen}, and the last bits depend on it."
        note = join([note, el("p", words, cls="note")])
    title = "Commands to run it again"
    return (
        join([el("h3", title), note, *blocks])
        if len(g.groups) == 1
        else join([el("h3", title), note, details(f"{counted(len(g.runs), 'command')}", *blocks)])
    )


def settings_table(g: Gathered) -> Markup:
    s = g.groups[0].settings
    rows = []
    for name, value in s.items():
        if name == "seed" or name in g.differing:
            continue
        about = Settings.model_fields[name].description if name in Settings.model_fields else ""
        rows.append([el("code", name), NOTHING if value is None else value, prose(about or "")])
    return details(
        "Settings that all runs share", table("Settings", ["setting", "value", "meaning"], rows, cls="words")
    )


def versions(g: Gathered) -> Markup:
    """Versions and machine, once where all runs agree."""
    found: dict[tuple[tuple[str, str], ...], list[Entry]] = {}
    for run in g.runs:
        facts: Mapping[str, Any] = {**_dict(run.config.get("versions")), **_dict(run.config.get("options"))}
        found.setdefault(tuple((str(k), str(v)) for k, v in facts.items()), []).append(run)
    names = list(dict.fromkeys(k for facts in found for k, _ in facts))
    header = ["", *(counted(len(runs), "run") for runs in found.values())]
    rows = [[name, *(dict(facts).get(name, NOTHING) for facts in found)] for name in names]
    note = (
        el(
            "p",
            "The runs were made with different versions or options; their last bits may differ for that reason.",
            cls="note",
        )
        if len(found) > 1
        else ""
    )
    return join([el("h3", "Environment"), note, el("div", table("Versions and options", header, rows), cls="narrow")])


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def places(g: Gathered) -> Markup:
    rows = [
        [
            name_of(x),
            run.seed,
            el("code", run.path),
            str(run.config["identity"].get("partition_hash", ""))[:12],
            str(run.config.get("started", "")),
        ]
        for x in g.groups
        for run in x.runs
    ]
    return details(
        "Where the runs are",
        table("Runs", ["recipe", "seed", "folder", "partition hash", "started"], rows, cls="words"),
    )

"""A card for every piece: `python -m headway.analysis.cards docs/methods` writes them all.

Formulas are cut from the piece's own source, sizes are measured on a real round and numbers come from the papers'
tables, so a card cannot say what the code does not do. What only people know is in methods/guide.toml.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from headway.analysis.communication import measured
from headway.analysis.exchange import keys, parts, what_is_asked
from headway.analysis.published import NAMES, citation
from headway.analysis.published.choice import Finding, findings
from headway.core.piece import HOOKS, Piece
from headway.core.recipe import Recipe, summary_line
from headway.core.state import nbytes
from headway.engines import LocalEngine
from headway.methods import REGISTRY, recipe
from headway.methods.guide import guide
from headway.training import rounds
from headway.training.settings import Settings
from headway.training.task import Task, build

SECTIONS = (
    "Idea", "Equations", "What leaves the client", "Settings", "What the papers report", "Pitfalls",
)  # fmt: skip
SUPPORT = ("fedavg", "ownmodel")  # pieces that an alias builds on but is not about
TRAITS = [hook for hook, fold in HOOKS.items() if fold == "union"]
HIDDEN = (*TRAITS, "check", "__post_init__")  # what fits together, and refusals: no equations
PRAGMA = re.compile(r"\s*#\s*(?:type:\s*ignore|noqa|fmt:)[^#]*?(?=\s*#|$)")
TUNED = ("lr", "mu", "tau", "virtual", "gmv_alpha", "r_warm", "etf_beta", "ft_lr", "samples_per_class")
TASK = Settings(data="digits", model="mlp", clients=2, partition="iid", train_size=100, test_size=50, batch_size=100)
LATE = 10**6  # a round after every warm-up
MAKE = "<!-- written by headway/analysis/cards.py; change the code or methods/guide.toml, then run `make cards` -->"


def main(folder: str) -> None:
    """Write every card and the index; cards of pieces that are gone are removed, other people's pages are not."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    there = {path.name: path.read_text(encoding="utf-8").startswith(MAKE) for path in out.glob("*.md")}
    texts = {f"{p.name}.md": card(p) for p in REGISTRY.pieces} | {"README.md": index()}
    if foreign := [name for name in texts if not there.get(name, True)]:
        sys.exit(f"{folder}: {foreign[0]} there is no card; give a folder of its own, such as docs/methods")
    for name in (name for name, ours in there.items() if ours and name not in texts):
        (out / name).unlink()
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")


def card(piece: type[Piece]) -> str:
    """One piece on one page."""
    names = aliases(piece)
    known = f"Slot: {piece.slot}. Aliases: {', '.join(f'`{a}` = `{REGISTRY.aliases[a]}`' for a in names) or 'none'}."
    bodies = (idea(piece), equations(piece), traffic_text(piece), settings_table(piece), report(piece), pitfalls(piece))
    parts = [MAKE, f"# {piece.name}", citation(piece.paper), known]
    parts += [f"## {title}\n{body}" for title, body in zip(SECTIONS, bodies, strict=True)]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The table of all pieces."""
    lines = []
    for p in REGISTRY.pieces:
        t = traffic(guide(p.name).recipe)
        names = ", ".join(f"`{a}`" for a in aliases(p))
        size = f"{times(t.down, fedavg().down)} / {times(t.up, fedavg().up)}"
        about = (inspect.getdoc(p) or "").split("\n\n")[0].replace("\n", " ")
        lines.append((f"[{p.name}]({p.name}.md)", p.slot, names, about, size))
    lead = (
        "A card a piece: idea, equations as the code has them, traffic, settings, the papers' numbers, pitfalls. "
        "Traffic is bytes down / up a client and round, as a multiple of FedAvg's, of the recipe that the card shows."
    )
    return "\n\n".join([MAKE, "# Methods", lead, table(("piece", "slot", "aliases", "idea", "traffic"), lines)]) + "\n"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def aliases(piece: type[Piece]) -> list[str]:
    """The names that are about this piece: the first that is more than support decides."""
    return [name for name, text in REGISTRY.aliases.items() if subject(text) == piece.name]


def subject(text: str) -> str:
    terms = [term.split("(")[0] for term in text.split("+")]
    return next((t for t in terms if t not in SUPPORT), terms[0])


# ---- idea, equations
def idea(piece: type[Piece]) -> str:
    return f"{summary_line(piece)}\n\n{inspect.getdoc(piece) or ''}".strip()


def equations(piece: type[Piece]) -> str:
    """The hooks of the piece, and the functions elsewhere that carry its formulas, without types."""
    blocks = [bare(f) for f in methods(piece) if f.name not in HIDDEN and not f.builds]
    for place in guide(piece.name).source:
        module, _, name = place.partition(":")
        blocks.append(f"# {module.removeprefix('headway.')}.{name}\n{bare(function(module, name))}")
    return "```python\n" + "\n\n".join(blocks) + "\n```" if blocks else "None: it answers no hook of the round."


@dataclass(frozen=True)
class Source:
    """A function as it stands in its file."""

    name: str
    lines: tuple[str, ...]  # dedented, from `def` to its last line
    node: ast.FunctionDef

    @property
    def builds(self) -> bool:
        """Whether it builds a piece instead of answering for one."""
        return any(isinstance(d, ast.Name) and d.id == "classmethod" for d in self.node.decorator_list)


def methods(cls: type) -> list[Source]:
    return list(_functions(inspect.getsource(cls)))


def function(module: str, name: str) -> Source:
    """`Moments.pool` or `simplex_etf` of a module."""
    thing: Any = importlib.import_module(module)
    *owners, last = name.split(".")
    for owner in owners:
        thing = getattr(thing, owner)
    return next(f for f in _functions(inspect.getsource(thing)) if f.name == last)


def _functions(text: str) -> Iterable[Source]:
    """The functions of a class or a module; one inside another function is a part of that."""
    text = textwrap.dedent(text)
    lines, body = text.splitlines(), ast.parse(text).body
    for node in body[0].body if isinstance(body[0], ast.ClassDef) else body:
        if isinstance(node, ast.FunctionDef):
            cut = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            yield Source(node.name, tuple(cut.splitlines()), node)


def bare(f: Source) -> str:
    """The function with its comments, without types, `self` and pragmas; long docstrings stay, they carry formulas."""
    ends = f.node.returns.end_lineno if f.node.returns else None
    start = (ends or f.node.body[0].lineno - 1) - f.node.lineno + 1  # lines of the signature
    said = re.search(r":\s*(#.*)$", f.lines[start - 1])
    arguments = [a.arg for a in (*f.node.args.args, *f.node.args.kwonlyargs) if a.arg not in ("self", "cls")]
    signature = f"def {f.name}({', '.join(arguments)}):" + (f"  {said[1]}" if said else "")
    return "\n".join(PRAGMA.sub("", line).rstrip() for line in (signature, *f.lines[start:]))


# ---- what leaves the client
@dataclass(frozen=True)
class Traffic:
    """One client's messages in one round, in bytes, and what they are made of."""

    down: int
    up: int
    once: int  # asked once, after the last round
    down_parts: tuple[str, ...]
    up_parts: tuple[str, ...]
    once_parts: tuple[str, ...]


@lru_cache
def traffic(text: str) -> Traffic:
    """Measured in the second of two real rounds, long after every warm-up."""
    made = recipe(text)
    task = toy().for_recipe(made)
    engine = LocalEngine()
    server = replace(rounds.begin(made, task), round=LATE)
    for _ in range(2):
        server, cast, reports = rounds.run_round(server, made, task, engine)
    x, y = task.data[0]
    asked = made.survey(rounds.global_net(server, made, task), x, y) if made.acting("survey") else {}
    return Traffic(
        cast.nbytes(), reports[0].nbytes(), nbytes(asked),
        (*parts(cast.w), *keys(cast.sent)), (*parts(reports[0].w), *keys(reports[0].sent)),
        tuple(f"{p}: {what_is_asked(a)}" for p, a in asked.items()),
    )  # fmt: skip


@lru_cache
def toy() -> Task:
    return build(TASK)


@lru_cache
def fedavg() -> Traffic:
    return traffic("fedavg")


def times(a: int, b: int) -> str:
    return f"{a / b:.2f}x"


def traffic_text(piece: type[Piece]) -> str:
    """What goes down, up, stays and is asked once, for the recipe that shows the piece."""
    text = guide(piece.name).recipe
    made: Recipe = recipe(text)
    t, base, words = traffic(text), fedavg(), measured(made)
    lines = [
        ("down", ", ".join(t.down_parts) or "nothing", f"{t.down:,}", times(t.down, base.down)),
        ("up", ", ".join(t.up_parts) or "nothing", f"{t.up:,}", times(t.up, base.up)),
    ]
    if t.once_parts:
        lines.append(("up, once at the end", "; ".join(t.once_parts), f"{t.once:,}", times(t.once, base.up)))
    lines += [(what, ", ".join(words[key]), "", "") for what, key in (("stays", "stays"), ("not trained", "frozen"))
              if words[key]]  # fmt: skip
    task = toy()
    where = f"{task.dataset.name} with `{TASK.model}` (C {task.classes}, d {task.dim})"
    shown = f"Measured for `{text}` on {where}, {task.data.size(0)} examples a client: bytes a client and round."
    return f"{shown}\n\n{table(('', 'what', 'bytes', 'of FedAvg'), lines)}"


# ---- settings
def settings_table(piece: type[Piece]) -> str:
    known = guide(piece.name)
    lines = []
    for f in fields(piece):
        choices = f.metadata.get("choices") or ()
        about = f.metadata.get("about", "") + (f" ({', '.join(choices)})" if choices else "")
        lines.append((f"`{f.name}`", f"`{f.default}`", about, known.papers.get(f.name, "")))
    text = table(("name", "default", "meaning", "the papers"), lines) if lines else "None."
    return f"{text}\n\nTraining: {known.training}" if known.training else text


# ---- what the papers report
def report(piece: type[Piece]) -> str:
    found = findings(piece)
    if not found:
        return "Nothing: no table of the five papers names it."
    head = ("paper, table", "recipe", "data, model", "partition", "K, E", "metric", "%", "vs FedAvg", "note")
    text = table(head, (finding_cells(f) for f in found))
    if any(f.base is not None and "+ft" in f.base.method for f in found):
        text += "\n\nFinetuned recipes (`+ft`) are held against `fedavg+ft`."
    return text


def finding_cells(f: Finding) -> tuple[str, ...]:
    r = f.row
    mean = "failed" if r.mean is None else f"{r.mean:.2f}" + (f" ± {r.std:.2f}" if r.std is not None else "")
    clients = ", ".join("?" if n is None else str(n) for n in (r.clients, r.epochs))
    gain = "" if f.gain is None else f"{f.gain:+.2f}"
    return (f"{NAMES[r.paper]}, {r.table}", f"`{r.method}`", f"{r.dataset}, {r.model}", f"`{r.partition}`", clients,
            r.metric, mean, gain, note(f))  # fmt: skip


def note(f: Finding) -> str:
    """What the row was tuned with, and what makes it special."""
    said = [f"{key} {f.row.extra[key]}" for key in TUNED if f.row.extra.get(key)]
    said += [f"best of {f.tried}"] if f.tried > 1 else []
    said += ["± over clients"] if "std_over_clients" in f.row.extra and f.row.std is not None else []
    said += ["FedAvg at chance"] if f.base and "collapsed_to_chance" in f.base.extra else []
    return ", ".join(said)


# ---- pitfalls
def pitfalls(piece: type[Piece]) -> str:
    known = guide(piece.name).pitfalls
    return "\n".join(f"* {line}" for line in known) or "None noted."


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m headway.analysis.cards FOLDER")
    torch.set_num_threads(1)  # nothing here is large enough for two
    main(sys.argv[1])

"""From a published table to the runs that make it again: which cells, which recipe, which settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.analysis.published import Published, rows
from headway.analysis.reproduce.protocols import OURS, PROTOCOLS, SMALL, rate, recipe_for
from headway.base.errors import ConfigError, nearest
from headway.core.piece import HOOKS, Piece, acts
from headway.core.recipe import spell
from headway.methods import recipe as parse_recipe
from headway.training.settings import Settings, settings

SCALES = ("cpu", "full")
DATA = {"tinyimagenet": "tiny-imagenet"}  # a paper's name of a data set -> ours
CHOSEN_BY = ("method", "dataset", "model", "partition", "metric")  # a word of --rows names a value of one of these
NUMBERS = ("clients", "sampling", "epochs")  # and these are asked for by name: clients=50


@dataclass(frozen=True)
class Cell:
    """A published number and how we come by ours: a training, what is done after it, and the figure that is read."""

    row: Published
    training: str  # the recipe that is trained
    settings: Settings
    calibration: str | None  # applied to the trained model
    personalisation: str | None

    @property
    def label(self) -> str:
        """The method, with what sets it apart within its table."""
        keys = ("lr", "mu", "tau", "gmv_alpha", "r_warm", "virtual", "etf_beta", "samples_per_class", "data", "ft_lr")
        given = [f"{key}={self.row.extra[key]}" for key in keys if key in self.row.extra]
        return f"{self.row.method} ({', '.join(given)})" if given else self.row.method


def tables() -> dict[str, list[Published]]:
    """`paper/table` -> its printed numbers."""
    found: dict[str, list[Published]] = {}
    for row in rows():
        found.setdefault(table_name(row), []).append(row)
    return found


def table_name(row: Published) -> str:
    return f"{row.paper}/{row.table if row.table.startswith('fig') else f'table{row.table}'}"


def published(name: str) -> list[Published]:
    """The rows of one table; a name that is not one is answered with the nearest."""
    known = {key.lower(): key for key in tables()}
    key = known.get(name.strip().lower())
    if key is None:
        raise ConfigError(
            f"table={name or repr(name)}: {no_table(name, list(known.values()))}; see `headway reproduce`"
        )
    return tables()[key]


def no_table(name: str, known: Sequence[str]) -> str:
    """Why a name is no table's, with the nearest that is."""
    paper, _, part = name.strip().lower().partition("/")
    theirs = [key.partition("/")[2] for key in known if key.startswith(f"{paper}/")]
    if not theirs:
        return f"there is no such paper; {nearest(paper, sorted({key.partition('/')[0] for key in known}))}"
    named = [t for t in theirs if t.startswith("table")]
    return (
        f"{paper} has no {part}; it has {', '.join(named)}" if part else f"name a table too, such as {paper}/{named[0]}"
    )


def chosen(found: Sequence[Published], words: str | None) -> list[Published]:
    """The rows that `--rows 'cifar10,dir(0.05),fedavg,fedetf,epochs=3'` asks for.

    Words are values of a column; of one column they are alternatives, and every column named must agree.
    """
    if words is not None and not split_words(words):
        raise ConfigError(f"rows={words!r}: it is empty; give words such as 'cifar10,fedavg', or leave it out")
    wanted: dict[str, set[str]] = {}
    for word in split_words(words or ""):
        key, _, value = word.partition("=") if re.match(r"^\w+=", word) else (column_of(word, found), "", word)
        known = sorted({text_of(row, key) for row in found} - {""})
        if value.lower() not in known:
            there = f"the table has {key} {', '.join(known[:20])}" if known else f"the table has no {key}"
            raise ConfigError(f"rows={word}: {there}; name what it has")
        wanted.setdefault(key, set()).add(value.lower())
    return [row for row in found if all(text_of(row, key) in values for key, values in wanted.items())]


def split_words(text: str) -> list[str]:
    """At commas and blanks outside of parentheses."""
    return [w for w in re.findall(r"(?:[^,\s(]|\([^)]*\))+", text) if w]


def column_of(word: str, found: Sequence[Published]) -> str:
    for column in CHOSEN_BY:
        if word.lower() in {text_of(row, column) for row in found}:
            return column
    known = sorted({text_of(row, column) for row in found for column in CHOSEN_BY})
    raise ConfigError(f"rows={word}: no row of the table has it; {nearest(word.lower(), known)}")


def text_of(row: Published, key: str) -> str:
    if key in CHOSEN_BY:
        return str(getattr(row, key)).lower()
    if key in NUMBERS:
        value = getattr(row, key)
        return "" if value is None else f"{value:g}"
    return row.extra.get(key, "").lower()


def cells(found: Iterable[Published], scale: str, changes: Mapping[str, Any]) -> list[Cell]:
    """How each row is made at this scale; rows without a name cannot be."""
    return [cell_of(row, scale, changes) for row in found if row.named]


def cell_of(row: Published, scale: str, changes: Mapping[str, Any]) -> Cell:
    s = settings_of(row, scale, changes)
    pieces = parse_recipe(recipe_for(row, s.rounds)).pieces
    if s.personal_from == "calibrated":  # personal models come after it, so it belongs to the run
        return Cell(row, "+".join(spell(p) for p in pieces), s, None, None)
    after = {slot: next((spell(p) for p in pieces if p.slot == slot and acts_after_training(p)), None)
             for slot in ("calib", "personal")}  # fmt: skip
    training = "+".join(spell(p) for p in pieces if spell(p) not in after.values())
    return Cell(row, training, s, after["calib"], after["personal"])


def acts_after_training(piece: Piece) -> bool:
    """Whether a piece takes no part in the rounds, so that several cells may share one training."""
    late = {"survey", "calibrate", "personalise", "check", "requires", "provides"}
    return not any(acts(piece, hook) for hook in HOOKS if hook not in late)


def settings_of(row: Published, scale: str, changes: Mapping[str, Any]) -> Settings:
    """The paper's setting of a cell; at CPU scale with a smaller model, fewer rounds and samples."""
    protocol = PROTOCOLS[row.paper]
    model = OURS.get((row.paper, row.model), row.model)
    cpu = scale == "cpu"
    values: dict[str, Any] = {
        **protocol.settings,
        "data": DATA.get(row.dataset, row.dataset),
        "model": SMALL.get(model, model) if cpu else model,
        "partition": partition_of(row),
        "clients": row.clients or 100,
        "sampling": row.sampling or 0.1,
        "epochs": row.epochs or 10,
        "rounds": protocol.cut.rounds if cpu else row.rounds or protocol.rounds,
        "lr": rate(row),
    }
    if cpu and "data" not in changes:
        values |= {"train_size": protocol.cut.train_size, "test_size": protocol.cut.test_size}
    values |= exceptions(row)
    made = settings(values | dict(changes))
    if row.paper == "fedfn" and "lr_decay" not in changes:
        steps = f"0.1@{max(1, made.rounds // 2)},{max(2, 3 * made.rounds // 4)}"
        made = made.model_copy(update={"lr_decay": steps})
    return made


def exceptions(row: Published) -> dict[str, Any]:
    """Where a table, or a data set, departs from its paper's usual setting."""
    found: dict[str, Any] = {}
    if row.paper == "fedfn" and row.table in ("2", "A8"):  # run on FedNTD's code
        found["weight_decay"] = 1e-5
    elif row.paper == "fedfn":  # FedBABU's, where all clients weigh the same
        found["aggregation"] = "uniform"
    if row.paper == "fedfn" and row.table not in ("A9", "A10"):  # the others have no personal figures
        found["local_test"] = "none"
    if row.dataset == "tinyimagenet":
        found["normalise"] = "imagenet"
    if row.paper == "ccvr" and row.dataset == "cifar100":
        found["augment"] = "crop(4)+flip+rotate(15)"
    if row.dataset == "femnist":  # the chosen writers' own tests; a mirrored letter is another letter
        found |= {"local_test": "shard", "augment": "none"}
    if finetuned_after_calibration(row):
        found["personal_from"] = "calibrated"
    return found


def finetuned_after_calibration(row: Published) -> bool:
    """FedETF's Table 1 evaluates CCVR's calibrated model as it is on CIFAR; elsewhere it is finetuned first."""
    return row.paper == "fedetf" and row.method == "ccvr" and not (row.table == "1" and row.dataset != "tinyimagenet")


def partition_of(row: Published) -> str:
    if row.partition.startswith("natural"):
        return "natural"
    if row.partition == "centralized":
        return "iid"
    guarded = PROTOCOLS[row.paper].guarded
    return f"{row.partition[:-1]},{guarded})" if guarded and row.partition.startswith("dir(") else row.partition

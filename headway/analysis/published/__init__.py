"""The papers' published numbers: one CSV file a table, read into typed rows.

Accuracies are percentages as printed. A row without a mean stands where the paper printed a dash or a failure; `extra`
says which, and holds what the other columns have no place for: lr, mu, tau, gmv_alpha, r_warm, virtual, notes.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from headway.methods.references import REFERENCES

PAPERS = {  # the `paper` column -> key of the reference
    "fedetf": "li2023fedetf",
    "fedfn": "kim2023fedfn",
    "fedtc": "liu2023fedtc",
    "fedavg-etf-gmv": "huang2023etf",
    "ccvr": "luo2021ccvr",
}
NAMES = {  # the `paper` column -> how a table of ours calls it
    "fedetf": "FedETF",
    "fedfn": "FedFN",
    "fedtc": "FedTC",
    "fedavg-etf-gmv": "FedAvg_ETF + GMV",
    "ccvr": "CCVR",
}
UNNAMED = re.compile(r"row\d+_unnamed")  # rows whose method name is lost; `extra` holds a guess
SUSPECT = re.compile(r"suspect_typo\((.*?)\??\)")  # in `extra`: the cell looks misprinted, and what it should be
LETTERS = {'{\\"u}': "ü", "{\\v{c}}": "č", "{\\'y}": "ý", "\\&": "&"}


@dataclass(frozen=True)
class Published:
    """One printed number with the setting it was measured in; None where the paper does not say."""

    paper: str
    table: str
    dataset: str
    model: str
    partition: str
    clients: int | None
    sampling: float | None
    epochs: int | None
    rounds: int | None
    method: str  # a recipe, but for the rows UNNAMED matches
    metric: str
    mean: float | None
    std: float | None
    extra: dict[str, str]  # a word without a value is its own key, with an empty value

    @property
    def named(self) -> bool:
        return UNNAMED.fullmatch(self.method) is None

    @property
    def failed(self) -> bool:
        """The paper reports that this run broke down, or prints the accuracy of chance for it."""
        broken = self.mean is None and bool({"failed", "diverged"} & self.extra.keys())
        return broken or "collapsed_to_chance" in self.extra

    @property
    def read_as(self) -> str | None:
        """What a cell that looks misprinted is read as; None for all others."""
        return next((found[1] for word in self.extra if (found := SUSPECT.fullmatch(word))), None)

    @property
    def sound(self) -> float | None:
        """The printed mean where it may be compared: neither misprinted nor of a run that broke down."""
        return None if self.failed or self.read_as else self.mean


@lru_cache
def tables() -> dict[str, tuple[Published, ...]]:
    """File name without its ending -> the rows of that file, in its order."""
    found = sorted((f for f in files(__name__).iterdir() if f.name.endswith(".csv")), key=lambda f: f.name)
    return {f.name.removesuffix(".csv"): _read(f.read_text(encoding="utf-8")) for f in found}


def rows() -> list[Published]:
    """Every published number, by file and in the order of the files."""
    return [row for table in tables().values() for row in table]


def citation(key: str) -> str:
    """One line of plain text for a reference: authors, title, where, year."""
    ref = REFERENCES[key]
    authors = [name.split(",")[0] for name in _plain(ref["author"]).split(" and ")]
    who = authors[0] if len(authors) == 1 else f"{', '.join(authors[:-1])} and {authors[-1]}"
    where = _plain(ref.get("booktitle") or ref["journal"])
    title = _plain(ref["title"])
    return f"{who}: {title}{'' if title.endswith('?') else '.'} {where}, {ref['year']}."


def _plain(text: str) -> str:
    for latex, letter in LETTERS.items():
        text = text.replace(latex, letter)
    return text.replace("{", "").replace("}", "")


def _read(text: str) -> tuple[Published, ...]:
    return tuple(_row(line) for line in csv.DictReader(text.splitlines()))


def _row(line: dict[str, str]) -> Published:
    pairs = (part.partition("=") for part in line["extra"].split(";") if part.strip())
    return Published(
        line["paper"], line["table"], line["dataset"], line["model"], line["partition"],
        _int(line["clients"]), _float(line["sampling"]), _int(line["epochs"]), _int(line["rounds"]),
        line["method"], line["metric"], _float(line["mean"]), _float(line["std"]),
        {key.strip(): value.strip() for key, _, value in pairs},
    )  # fmt: skip


def _int(text: str) -> int | None:
    return int(text) if text else None


def _float(text: str) -> float | None:
    return float(text) if text else None

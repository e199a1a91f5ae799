"""Tables with a label column: CSV without pandas, Parquet through pyarrow."""

from __future__ import annotations

import csv
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.base.errors import DataError, nearest
from headway.data.arrays import Dataset, build
from headway.data.checks import MISSING, nameless

Array = NDArray[Any]
LABELS = ("label", "class", "target", "y")
GROUPS = ("group", "client")
ENCODING = "utf-8-sig"  # with or without a byte order mark


@dataclass(frozen=True)
class Roles:
    """What each column is for, by its place."""

    names: list[str]
    label: int
    group: int | None
    split: int | None
    guessed: bool = False  # the label's column was not given

    @property
    def features(self) -> list[int]:
        return [i for i in range(len(self.names)) if i not in self.text]

    @property
    def text(self) -> list[int]:
        return [i for i in (self.label, self.group, self.split) if i is not None]

    def notes(self, path: Path) -> list[str]:
        name = self.names[self.label]
        usual = not self.guessed or name.strip().lower() == "label"
        return [] if usual else [f"{path.name}: column '{name}' is the label"]

    def way_out(self, words: bool) -> str:
        """What to do about a column that is no feature; words may be the names of clients."""
        clients = ", or rename it to `group` if it says whose the sample is"
        return "encode or remove the column" + (clients if words and self.group is None else "")


def table(path: Path, column: str | None = None) -> Dataset:
    """Numeric features, a label, and optionally group (or client) and split (train or test) columns.

    The label's column is the one named after the colon, else the only one called label, class, target or y.
    """
    read = read_parquet if path.suffix.lower() == ".parquet" else read_csv
    roles, x, text = read(path, column)
    names, y = label_codes(path, roles.names[roles.label], text[roles.label])
    group = None if roles.group is None else client_codes(path, roles.names[roles.group], text[roles.group])
    features, notes = [roles.names[i] for i in roles.features], roles.notes(path)
    if roles.split is None:
        return build(path.name, x, y, group=group, class_names=names, feature_names=features, notes=notes)
    split = np.char.lower(np.char.strip(text[roles.split]))
    good = np.isin(split, ("train", "test"))
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(f"{path}: column 'split' has {str(split[row])!r} in row {row + 1}: write train or test")
    train, test = np.flatnonzero(split == "train"), np.flatnonzero(split == "test")
    if not len(train) or not len(test):
        raise DataError(f"{path}: column 'split' has no row {'train' if len(test) else 'test'}: mark some, or drop it")
    g, g_test = (None, None) if group is None else (group[train], group[test])
    return build(path.name, x[train], y[train], x[test], y[test], g, g_test, names, features, notes)


def find_roles(path: Path, names: Sequence[str], column: str | None) -> Roles:
    plain = [name.strip().lower() for name in names]
    if "" in plain:
        raise DataError(f"{path}: column {plain.index('')} has no name: write the table without its index column")
    if len(names) < 2:
        raise DataError(f"{path} has one column '{names[0]}': a table needs features and a label")
    name, times = Counter(name.strip() for name in names).most_common(1)[0]
    if times > 1:
        raise DataError(f"{path} has {times} columns named '{name}': give each its own name")
    if column is None:
        label = usual_label(path, names, plain)
    elif column in names:
        label = list(names).index(column)
    else:
        raise DataError(f"{path} has no column '{column}': {nearest(column, names)}")
    group = next((plain.index(name) for name in GROUPS if name in plain and plain.index(name) != label), None)
    split = plain.index("split") if "split" in plain and plain.index("split") != label else None
    roles = Roles(list(names), label, group, split, guessed=column is None)
    if not roles.features:
        raise DataError(f"{path} has no feature column beside {', '.join(names)}: add numeric columns")
    return roles


def usual_label(path: Path, names: Sequence[str], plain: Sequence[str]) -> int:
    """The place of the one column with a label's usual name; nothing else is guessed."""
    found = [i for i, name in enumerate(plain) if name in LABELS]
    if len(found) == 1:
        return found[0]
    if found:
        both = " and ".join(names[i] for i in found)
        raise DataError(
            f"{path}: columns {both} may {'both' if len(found) == 2 else 'all'} be the label: "
            f"name one, as in {path.name}:{names[found[0]]}"
        )
    last = len(names) - 1
    if list(names) == [str(i) for i in range(len(names))]:
        raise DataError(
            f"{path} has no header line with a column 'label': name the label's place, 0 to {last}, "
            f"as in {path.name}:{last}"
        )
    shown = [*names[:5], "...", *names[-2:]] if len(names) > 8 else names
    raise DataError(f"{path} has no column 'label' among {', '.join(shown)}: name it with {path.name}:COLUMN")


def label_codes(path: Path, column: str, text: Array) -> tuple[list[str], Array]:
    """Class names, sorted (numbers by size), and each row's place among them."""
    names, codes = np.unique(text, return_inverse=True)
    codes = codes.reshape(-1)
    plain = [str(name).strip() for name in names]
    if lost := [i for i, name in enumerate(plain) if name.lower() in MISSING]:
        rows = np.flatnonzero(np.isin(codes, lost))
        raise DataError(
            f"{path}: {len(rows)} labels in column '{column}' are missing, the first in row {rows[0] + 1}: "
            "remove the rows"
        )
    values = [number(name) for name in plain]
    if any(v is None for v in values):  # words
        order = sorted(set(plain))
        key: list[Any] = plain
    else:
        odd = [i for i, v in enumerate(values) if v is None or not math.isfinite(v) or v != math.floor(v)]
        if odd:
            rows = np.flatnonzero(np.isin(codes, odd))
            raise DataError(
                f"{path}: column '{column}' has label {text[rows[0]]} in row {rows[0] + 1}: labels are whole "
                f"numbers or names, choose the label column with {path.name}:COLUMN"
            )
        key = [int(v) for v in values if v is not None]
        order = sorted(set(key))
    place = {name: i for i, name in enumerate(order)}
    return [str(name) for name in order], np.asarray([place[k] for k in key], dtype=np.int64)[codes]


def client_codes(path: Path, column: str, text: Array) -> Array:
    """Each row's client, by the order of their names."""
    if len(lost := nameless(text)):
        raise DataError(
            f"{path}: column '{column}' names no client in {len(lost)} of {len(text)} rows, the first in row "
            f"{lost[0] + 1} ({str(text[lost[0]])!r}): fill them, or remove the column"
        )
    return np.unique(text, return_inverse=True)[1].reshape(-1)


def number(text: str) -> float | None:
    """A number as numpy's reader takes it; None for words (and for Python's 1_000)."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


# --- CSV ---


def read_csv(path: Path, column: str | None) -> tuple[Roles, Array, dict[int, Array]]:
    names, delimiter, skip = csv_header(path, column)
    roles = find_roles(path, names, column)
    options: dict[str, Any] = {
        "delimiter": delimiter, "skiprows": skip, "quotechar": '"', "comments": None, "ndmin": 2,
        "encoding": ENCODING,
    }  # fmt: skip
    file = str(path.resolve())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # numpy warns about a file without rows; we refuse it
        try:
            x = np.loadtxt(file, dtype=np.float32, usecols=roles.features, **options)
            words = np.loadtxt(file, dtype=str, usecols=roles.text, **options)
        except (ValueError, IndexError, OverflowError) as error:
            explain(path, roles, delimiter, skip)
            raise DataError(f"{path} is no readable table ({error}): write it again") from error
    if not len(x):
        raise DataError(f"{path} has no rows below its header: add samples")
    if len(x) != len(words):
        raise DataError(f"{path} has {len(x)} rows of numbers but {len(words)} labels: write it again")
    with csv_rows(path, delimiter) as (rows, _):  # numpy drops what stands behind the last column it was asked for
        for cells in rows:
            check_width(path, roles, cells, rows.line_num)
    return roles, x, {place: words[:, i] for i, place in enumerate(roles.text)}


def csv_header(path: Path, column: str | None) -> tuple[list[str], str, int]:
    """Column names (0, 1, ... when there is no header), the delimiter, and how many lines to skip."""
    with csv_rows(path, None) as (rows, delimiter):
        first = next((row for row in rows if row), None)
        skip = rows.line_num
    if first is None:
        raise DataError(f"{path} is empty: give a header line and rows")
    numbers = [str(i) for i in range(len(first))]
    names = [name.strip() for name in first]
    if names == numbers:
        return names, delimiter, skip
    words = [name for name in names if number(name) is None]
    named = column in words or any(name.lower() in LABELS for name in words)
    label = int(column) if column in numbers else len(first) - 1
    if named or any(number(name) is None for i, name in enumerate(names) if i != label):
        return names, delimiter, skip
    return numbers, delimiter, 0


@contextmanager
def csv_rows(path: Path, delimiter: str | None) -> Iterator[tuple[Any, str]]:
    """The rows of a CSV as lists of text."""
    try:
        with path.open(encoding=ENCODING, newline="") as file:
            if delimiter is None:
                start = file.readline()
                delimiter = max(",;\t", key=start.count)
                file.seek(0)
            csv.field_size_limit(2**31 - 1)  # a cell is as long as it is
            yield csv.reader(file, delimiter=delimiter), delimiter
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no readable CSV ({type(error).__name__}): write it again as UTF-8") from error


def explain(path: Path, roles: Roles, delimiter: str, skip: int) -> None:
    """Find what numpy could not read, slowly, and say it: column, line, value."""
    missing: list[tuple[int, int]] = []
    numeric: set[int] = set()
    with csv_rows(path, delimiter) as (rows, _):
        for cells in rows:
            if not cells or rows.line_num <= skip:
                continue
            check_width(path, roles, cells, rows.line_num)
            for i in roles.features:
                if cells[i].strip().lower() in MISSING:
                    missing.append((rows.line_num, i))
                elif number(cells[i].strip()) is None:
                    raise DataError(
                        f"{path}: column '{roles.names[i]}' has {cells[i][:40]!r} in line {rows.line_num}, "
                        f"which is no number: {roles.way_out(words=i not in numeric)}"
                    )
                else:
                    numeric.add(i)
    if missing:
        line, i = missing[0]
        raise DataError(
            f"{path}: {len(missing)} values are missing, the first in line {line}, column '{roles.names[i]}': "
            "fill them or remove the rows"
        )


def check_width(path: Path, roles: Roles, cells: Sequence[str], line: int) -> None:
    long = any(cell.strip() for cell in cells[len(roles.names) :])  # a row may end in a delimiter too many
    if long or 0 < len(cells) < len(roles.names):
        fix = "remove what is too much, or quote the cell that was split" if long else "write it again"
        raise DataError(f"{path}: line {line} has {len(cells)} cells, not {len(roles.names)}: {fix}")


# --- Parquet ---


def read_parquet(path: Path, column: str | None) -> tuple[Roles, Array, dict[int, Array]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{path} needs pyarrow: pip install headway[parquet]") from error
    try:
        content = parquet.ParquetFile(str(path)).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable .parquet (truncated?): write it again") from error
    roles = find_roles(path, content.column_names, column)
    if not content.num_rows:
        raise DataError(f"{path} has no rows: add samples")
    for i in [*roles.features, *roles.text]:
        values = content.column(i)
        if values.null_count and i != roles.group:  # a client's missing name is reported as in a CSV
            first = int(np.argmax(values.is_null().to_numpy()))
            raise DataError(
                f"{path}: {values.null_count} values of column '{roles.names[i]}' are missing, the first in "
                f"row {first + 1}: fill them or remove the rows"
            )
    x = np.empty((content.num_rows, len(roles.features)), dtype=np.float32)
    for place, i in enumerate(roles.features):
        kind = content.schema.field(i).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            words = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)
            raise DataError(
                f"{path}: column '{roles.names[i]}' holds {kind}, which is no number: {roles.way_out(words)}"
            )
        with np.errstate(over="ignore"):
            x[:, place] = content.column(i).to_numpy()
    words = {i: ["" if v is None else str(v) for v in content.column(i).to_pylist()] for i in roles.text}
    return roles, x, {i: np.asarray(column) for i, column in words.items()}

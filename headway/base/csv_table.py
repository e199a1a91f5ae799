"""Tables as CSV text that is safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]  # one mapping per line, all with the same keys


def csv_text(rows: Rows) -> str:
    """A header and one line per row; None and NaN become empty cells."""
    text = io.StringIO()
    if rows:
        table = csv.writer(text, lineterminator="\n")
        table.writerow(rows[0])
        table.writerows([csv_cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def csv_cell(value: Any) -> Any:
    """The text of a cell: numbers with six digits, text that no spreadsheet interprets as a formula."""
    if isinstance(value, str):
        return safe_cell(value) if value else value
    if isinstance(value, float):
        return f"{value:.6g}" if value == value else ""
    return "" if value is None else value


def safe_cell(text: str) -> str:
    """The text with a leading quote if a spreadsheet would run it as a formula."""
    return "'" + text if text[:1] in "=+-@" else text

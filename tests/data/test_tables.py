from __future__ import annotations

import builtins
import csv
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from work import lines_run

from headway.base.errors import DataError
from headway.data import load


def write(path: Path, rows: list[list[Any]], header: list[str] | None = None, **options: Any) -> str:
    with (path / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file, **options)
        if header:
            writer.writerow(header)
        writer.writerows(rows)
    return str(path / "t.csv")


def rows(n: int = 20, label: Any = lambda i: i % 2) -> list[list[Any]]:
    return [[i, i / 4, label(i)] for i in range(n)]


def refusal(path: str) -> str:
    with pytest.raises(DataError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_numbers_as_labels_are_mapped_by_size(tmp_path: Path):
    data = load(write(tmp_path, rows(label=lambda i: 5 + 5 * (i % 2)), ["a", "b", "label"]))
    assert data.class_names == ("5", "10")
    assert data.x.shape[1] == 2
    assert data.x.dtype == torch.float32
    together = torch.cat([data.x, data.x_test]), torch.cat([data.y, data.y_test])
    assert torch.equal(together[0][:, 0].long() % 2, together[1])
    assert torch.equal(together[0][:, 0] / 4, together[0][:, 1])


@pytest.mark.parametrize("name", ["label", "y", "target", "class", "Label"])
def test_a_label_column_is_found_by_its_usual_names(tmp_path: Path, name: str):
    path = write(tmp_path, [["rose" if i % 2 else "ash", i, 2 * i] for i in range(10)], [name, "a", "b"])
    data = load(path)
    assert data.class_names == ("ash", "rose")
    assert data.x.shape[1] == 2
    assert (f"t.csv: column '{name}' is the label" in data.note) == (name.lower() != "label")


def test_without_a_label_column_nothing_is_guessed(tmp_path: Path):
    text = refusal(write(tmp_path, rows(), ["a", "b", "kind"]))
    assert text.endswith("t.csv has no column 'label' among a, b, kind: name it with t.csv:COLUMN")
    wide = [[*range(30), i % 2] for i in range(20)]
    assert "among f0, f1, f2, f3, f4, ..., f29, f30" in refusal(write(tmp_path, wide, [f"f{i}" for i in range(31)]))
    bare = refusal(write(tmp_path, rows()))
    assert bare.endswith("has no header line with a column 'label': name the label's place, 0 to 2, as in t.csv:2")


def test_two_columns_that_may_be_the_label_are_refused_unless_one_is_named(tmp_path: Path):
    path = write(tmp_path, [[i, i % 2, i % 3] for i in range(20)], ["a", "y", "class"])
    assert "columns y and class may both be the label: name one, as in t.csv:y" in refusal(path)
    assert load(f"{path}:class").classes == 3
    assert "is the label" not in load(f"{path}:class").note


def test_columns_of_one_name_are_refused(tmp_path: Path):
    text = refusal(write(tmp_path, [[i, i, i % 2] for i in range(20)], ["a", "a ", "label"]))
    assert text.endswith("t.csv has 2 columns named 'a': give each its own name")


def test_the_label_column_can_be_chosen(tmp_path: Path):
    path = write(tmp_path, [[i % 2, i, i % 3] for i in range(20)], ["first", "a", "label"])
    assert "label" not in load(path).note
    assert load(path).classes == 3
    assert load(f"{path}:first").classes == 2
    assert "did you mean 'first'?" in refusal(f"{path}:frist")


def test_a_table_without_header_is_read_from_its_first_row(tmp_path: Path):
    data = load(write(tmp_path, rows(20)) + ":2")
    assert len(data.y) + len(data.y_test) == 20
    letters = load(write(tmp_path, [["ab"[i % 2], i, i] for i in range(20)]) + ":0")
    assert letters.class_names == ("a", "b")
    assert len(letters.y) + len(letters.y_test) == 20


def test_numbered_headers_are_no_samples(tmp_path: Path):
    assert len(load(write(tmp_path, rows(20), ["0", "1", "label"])).y) == 16
    assert len(load(write(tmp_path, rows(20), ["0", "1", "2"]) + ":2").y) == 16


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters_quotes_and_byte_order_marks_are_read(tmp_path: Path, delimiter: str):
    path = write(tmp_path, rows(label=lambda i: f"x{delimiter}{i % 2}"), ["a", "b", "label"], delimiter=delimiter)
    Path(path).write_text("\ufeff" + Path(path).read_text(), encoding="utf-8")
    assert load(path).class_names == (f"x{delimiter}0", f"x{delimiter}1")


def test_split_and_client_columns_are_used_and_are_no_features(tmp_path: Path):
    table = [[i, f"c{i % 4}", "test" if i >= 16 else "Train", i % 2] for i in range(20)]
    data = load(write(tmp_path, table, ["a", "client", "split", "label"]))
    assert data.x[:, 0].tolist() == list(range(16))
    assert data.group.tolist() == [i % 4 for i in range(16)]
    assert data.group_test.tolist() == [0, 1, 2, 3]
    table[3][2] = "dev"
    assert "'dev' in row 4" in refusal(write(tmp_path, table, ["a", "client", "split", "label"]))
    same = [[i, "train", i % 2] for i in range(4)]
    assert "no row test" in refusal(write(tmp_path, same, ["a", "split", "label"]))


def test_missing_values_are_counted_and_the_first_is_named(tmp_path: Path):
    table = rows()
    table[4][1] = ""
    table[9][0] = "NA"
    assert "2 values are missing, the first in line 6, column 'b'" in refusal(
        write(tmp_path, table, ["a", "b", "label"])
    )
    table = rows()
    table[7][1] = "nan"
    text = refusal(write(tmp_path, table, ["a", "b", "label"]))
    assert "1 values that are NaN" in text
    assert "[7, 1] (column 'b')" in text


@pytest.mark.parametrize(("name", "blank"), [("group", ""), ("Client", "  "), ("group", "NaN")])
def test_rows_without_a_client_are_counted_and_the_first_is_named(tmp_path: Path, name: str, blank: str):
    table = [[i, blank if i in (4, 9) else f"c{i % 3}", i % 2] for i in range(20)]
    text = refusal(write(tmp_path, table, ["a", name, "label"]))
    said = f"column '{name}' names no client in 2 of 20 rows, the first in row 5 ({blank!r})"
    assert text.endswith(f"t.csv: {said}: fill them, or remove the column")
    split = [[*row, "test" if i > 14 else "train"] for i, row in enumerate(table)]
    assert said in refusal(write(tmp_path, split, ["a", name, "label", "split"]))


def test_words_among_the_features_are_refused_by_column(tmp_path: Path):
    table = rows()
    table[5][0] = "red"
    text = refusal(write(tmp_path, table, ["a", "b", "label"]))
    assert text.endswith("column 'a' has 'red' in line 7, which is no number: encode or remove the column")


def test_a_column_of_words_may_be_the_clients_under_another_name(tmp_path: Path):
    table = [[i, f"hosp{i % 3}" if i else "", i % 2] for i in range(20)]
    text = refusal(write(tmp_path, table, ["a", "site", "label"]))
    assert "column 'site' has 'hosp1' in line 3, which is no number" in text
    assert text.endswith(": encode or remove the column, or rename it to `group` if it says whose the sample is")
    grouped = refusal(write(tmp_path, [[*row[:2], 7, row[2]] for row in table], ["a", "site", "group", "label"]))
    assert grouped.endswith(": encode or remove the column")


def test_bad_labels_are_refused_by_row(tmp_path: Path):
    assert "label 0.25 in row 2" in refusal(write(tmp_path, rows(label=lambda i: i / 4), ["a", "b", "label"]))
    table = rows()
    table[2][2] = table[5][2] = ""
    assert "2 labels in column 'label' are missing, the first in row 3" in refusal(
        write(tmp_path, table, ["a", "b", "label"])
    )
    assert "only class" in refusal(write(tmp_path, rows(label=lambda i: 1), ["a", "b", "label"]))


def test_whole_float_labels_are_the_same_classes_as_integers(tmp_path: Path):
    data = load(write(tmp_path, rows(label=lambda i: [1, "2.0", "1.0", 2][i % 4]), ["a", "b", "label"]))
    assert data.class_names == ("1", "2")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("a,b,label\n", "no rows"),
        ("a\n1\n2\n", "has one column"),
        ("a,b,label\n1,2,0\n1,2\n", "line 3 has 2 cells, not 3"),
        ("a,b,label\n1,2,0\n1,2,5,1\n1,2,0\n1,3,1\n", "line 3 has 4 cells, not 3: remove what is too much"),
        (",a,label\n0,1,0\n1,2,1\n", "column 0 has no name"),
        ("label,group\n0,1\n", "no feature column"),
        ("a,label\n1_000,0\n2,1\n", "column 'a' has '1_000'"),
    ],
)
def test_broken_tables_are_refused_in_one_sentence(tmp_path: Path, content: str, says: str):
    (tmp_path / "bad.csv").write_text(content)
    assert says in refusal(str(tmp_path / "bad.csv"))


def test_a_table_that_is_not_utf8_is_refused(tmp_path: Path):
    (tmp_path / "bad.csv").write_bytes(b"\xff\xfe\x00a,b\n\x80,1\n")
    assert "UTF-8" in refusal(str(tmp_path / "bad.csv"))


def test_a_large_table_costs_a_few_lines_of_python_a_row_and_none_a_cell(tmp_path: Path):
    def work(n: int, width: int) -> int:
        values = np.random.default_rng(0).integers(0, 9, (n, width))
        path = tmp_path / f"{n}x{width}.csv"
        np.savetxt(path, values, fmt="%d", delimiter=",", header=",".join(f"f{i}" for i in range(width)), comments="")
        loaded = []
        lines = lines_run(lambda: loaded.append(load(f"{path}:f{width - 1}")))
        assert len(loaded[0].y) + len(loaded[0].y_test) == n
        assert loaded[0].classes == 9
        return lines

    few = work(1000, 3)
    assert work(1000, 20) < few + 1000  # not a line more a row
    assert few < work(2000, 3) < 2 * few  # rows are looked at one by one, and once


def parquet(path: Path, **columns: Any) -> str:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    pq.write_table(pa.table(columns), path / "t.parquet")
    return str(path / "t.parquet")


def test_parquet_gives_the_same_arrays_as_csv(tmp_path: Path):
    columns = {
        "a": list(range(20)),
        "b": [i / 4 for i in range(20)],
        "label": ["xy"[i % 2] for i in range(20)],
    }
    from_parquet = load(parquet(tmp_path, **columns, split=["train"] * 15 + ["test"] * 5))
    table = [[*row, "train" if i < 15 else "test"] for i, row in enumerate(zip(*columns.values(), strict=True))]
    from_csv = load(write(tmp_path, table, [*columns, "split"]))
    assert from_parquet.hash() == from_csv.hash()
    assert from_parquet.class_names == from_csv.class_names == ("x", "y")


def test_parquet_with_words_nulls_or_damage_is_refused(tmp_path: Path):
    words = refusal(parquet(tmp_path, a=["p", "q"], label=[0, 1]))
    assert "column 'a' holds string, which is no number: encode or remove the column, or rename it to `group`" in words
    dates = refusal(parquet(tmp_path, a=[date(2020, 1, 1), date(2020, 1, 2)], label=[0, 1]))
    assert "column 'a' holds date32" in dates
    assert dates.endswith("encode or remove the column")
    assert "no column 'label' among a, b: name it with t.parquet:COLUMN" in refusal(parquet(tmp_path, a=[1], b=[2]))
    assert "1 values of column 'a' are missing, the first in row 2" in refusal(
        parquet(tmp_path, a=[1.0, None], label=[0, 1])
    )
    path = parquet(tmp_path, a=[1.0, 2.0], label=[0, 1])
    Path(path).write_bytes(Path(path).read_bytes()[:50])
    assert "not a readable .parquet" in refusal(path)


@pytest.mark.parametrize("group", [["u", None, "v", ""], [1, None, 2, None], [1.0, float("nan"), 2.0, None]])
def test_parquet_rows_without_a_client_are_refused_as_in_csv(tmp_path: Path, group: list[Any]):
    text = refusal(parquet(tmp_path, a=[1.0, 2.0, 3.0, 4.0] * 5, group=group * 5, label=[0, 1, 0, 1] * 5))
    assert "column 'group' names no client in 10 of 20 rows, the first in row 2 (" in text
    assert text.endswith("): fill them, or remove the column")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = parquet(tmp_path, a=[1.0, 2.0], label=[0, 1])
    real = builtins.__import__

    def hidden(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", hidden)
    assert "pip install headway[parquet]" in refusal(path)


def test_a_delimiter_too_many_at_the_end_shifts_nothing(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a,b,label\n" + "1,2,0,\n3,4,1, \n" * 4 + f'5,6,"{"long" * 40_000}"\n' * 2)
    data = load(str(tmp_path / "t.csv"))
    assert data.x.shape[1] == 2
    assert data.classes == 3

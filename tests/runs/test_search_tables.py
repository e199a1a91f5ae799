"""`headway runs --diff`, `--metrics` and `--csv`: tables of several runs, and no foreign file overwritten."""

from __future__ import annotations

import shutil

import pytest
from calling import headway
from run_files import edit, read_csv

from headway.cli.runs import that_fit
from headway.runs.run import Run


def test_columns_of_table_and_csv(top, tmp_path):
    end = headway("runs", "--columns", "run,lr,global", "--where", "seed=3", "--csv", "some.csv")
    assert end.out.split()[:4] == ["run", "lr", "global", "%"]
    acc = Run(top / "scaffold").summary["global_acc"]
    assert read_csv(tmp_path / "some.csv") == [["run", "lr", "global"], ["scaffold", "0.05", f"{acc:.6g}"]]


# ---- differences
def test_diff_shows_the_settings_that_differ_and_no_others(top):
    table = headway("runs", "--diff", "runs/avg", "runs/deep/avg-fast", "--json").json
    assert table["settings"] == {"partition": ["dir(0.1)", "iid"], "lr": [0.05, 0.2]}
    wanted = [Run(top / name).summary["global_acc"] for name in ("avg", "deep/avg-fast")]
    assert table["figures"]["global"] == wanted
    shown = headway("runs", "--diff", "runs/avg", "runs/deep/avg-fast").out
    assert [line.split()[0] for line in shown.splitlines() if "0.05" in line] == ["lr"]


def test_diff_takes_names_of_the_list_in_the_order_given(top, tmp_path):
    for words in (("--diff", "scaffold", "avg"), ("runs", "--diff", "scaffold", "avg")):
        table = headway("runs", *words, "--json").json
        assert table["settings"]["recipe"] == ["scaffold+fn", "fedavg"]
        assert table["settings"]["seed"] == [3, 0]
    assert headway("runs", "--diff", "avg", "scaffold", "--csv", "d.csv").code == 0
    assert read_csv(tmp_path / "d.csv")[0] == ["what", "runs/avg", "runs/scaffold"]


def test_runs_of_one_name_in_two_folders_are_told_apart(top, tmp_path):
    for name in ("x", "y"):
        shutil.copytree(top / "avg", tmp_path / name / "fedavg" / "seed-0")
    edit(tmp_path / "y" / "fedavg" / "seed-0" / "config.json", started="2999-01-01T00:00:00+00:00")
    both = ["x/fedavg/seed-0", "y/fedavg/seed-0"]
    for words in (["x", "y"], ["--diff", "x", "y"]):
        end = headway("runs", *words, "--csv", "d.csv", "--json")
        told = end.json["runs"] if "--diff" in words else [row["run"] for row in end.json]
        assert told == both
    assert read_csv(tmp_path / "d.csv")[0] == ["what", *both]
    assert headway("runs", "x", "y", "--metrics", "--csv", "m.csv").code == 0
    assert {row[0] for row in read_csv(tmp_path / "m.csv")[1:]} == set(both)
    assert [run["run"] for run in headway("runs", "x", "runs/avg", "--json").json] == ["fedavg/seed-0", "runs/avg"]


def test_a_run_called_as_the_first_column_has_a_column_of_its_own(top, tmp_path):
    shutil.copytree(top / "avg", tmp_path / "what")
    assert headway("runs", "--diff", "what", "runs/avg", "--csv", "d.csv").code == 0
    header, *rows = read_csv(tmp_path / "d.csv")
    assert header == ["what", "what-2", "runs/avg"]
    assert ["state", "finished", "finished"] in rows


def test_diff_of_a_run_with_its_copy_says_the_same(top):
    shutil.copytree(top / "avg", top / "again")
    end = headway("runs", "--diff", "avg", "again")
    assert headway("runs", "--diff", "avg", "again", "--json").json["settings"] == {}
    assert "the same" in end.out


# ---- metrics
def test_metrics_in_long_format(top, tmp_path):
    assert headway("runs", "--metrics", "--csv", "long.csv", "--where", "state=finished").code == 0
    header, *rows = read_csv(tmp_path / "long.csv")
    assert header[:5] == ["run", "recipe", "seed", "round", "global_acc"]
    assert len(rows) == 3 * 2  # three finished runs of two rounds
    mine = [row for row in rows if row[0] == "scaffold"]
    assert [row[1:4] for row in mine] == [["scaffold+fn", "3", "1"], ["scaffold+fn", "3", "2"]]
    assert [row[4] for row in mine] == [f"{acc:.6g}" for acc in Run(top / "scaffold").metrics["global_acc"]]


def test_metrics_of_one_run_on_stdout_and_of_each_in_a_folder(top, tmp_path):
    lines = headway("runs", "runs/avg", "--metrics").out.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("runs/avg,fedavg,0,1,")
    assert headway("runs", "--metrics", "--csv", "each/", "--where", "state=finished").code == 0
    assert sorted(p.name for p in (tmp_path / "each").iterdir()) == ["avg.csv", "deep-avg-fast.csv", "scaffold.csv"]
    assert len(read_csv(tmp_path / "each" / "avg.csv")) == 3


def test_two_runs_of_one_file_name_do_not_write_over_each_other(top, tmp_path):
    shutil.copytree(top / "avg", top / "deep-avg-fast")  # beside deep/avg-fast
    assert headway("runs", "--metrics", "--csv", "each/", "--where", "state=finished").code == 0
    assert len(list((tmp_path / "each").iterdir())) == 4


@pytest.mark.parametrize("words", [[], ["--metrics"], ["--diff", "avg", "scaffold"], ["--columns", "lr,seed"]])
def test_a_csv_that_headway_did_not_write_stays(top, tmp_path, words):
    own = tmp_path / "own.csv"
    for precious in (b"name,grade\nada,1\n", b"\xff\xfe\x00", b"run,grade\n1,2\n"):
        own.write_bytes(precious)
        end = headway("runs", *words, "--csv", "own.csv")
        assert (end.code, end.out, end.err.count("\n")) == (2, "", 1)
        assert "--overwrite" in end.err
        assert own.read_bytes() == precious
    assert headway("runs", *words, "--csv", "own.csv", "--overwrite").code == 0
    assert own.read_bytes() != precious
    assert headway("runs", *words, "--csv", "own.csv").code == 0  # its own, again


def test_a_folder_of_metrics_spares_foreign_files(top, tmp_path):
    (tmp_path / "each").mkdir()
    (tmp_path / "each" / "scaffold.csv").write_text("name,grade\nada,1\n")
    end = headway("runs", "--metrics", "--csv", "each/")
    assert (end.code, end.err.count("\n")) == (2, 1)
    assert [p.name for p in (tmp_path / "each").iterdir()] == ["scaffold.csv"]
    assert (tmp_path / "each" / "scaffold.csv").read_text() == "name,grade\nada,1\n"


def test_a_narrow_terminal_shows_fewer_columns_and_names_in_one_piece():
    cells = {"run": ["runs/fedavg/seed-0"], "state": ["finished"], "recipe": ["fedavg"], "data": ["digits"],
             "partition": ["dir(0.1)"], "rounds": ["20/20"], "global": ["90.53"], "personal": ["94.79"],
             "megabytes": ["176.7"], "seconds": ["1.5"], "started": ["2026-01-01 10:00"]}  # fmt: skip
    assert that_fit(cells, 200) == list(cells)
    assert that_fit(cells, 80) == ["run", "state", "recipe", "rounds", "global", "personal"]
    assert that_fit(cells, 10) == ["run", "global", "personal"]  # never less than what is asked for most

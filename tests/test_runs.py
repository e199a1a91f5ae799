"""`headway runs`: every run is listed as it stands, whatever is wrong with it."""

from __future__ import annotations

import csv
import json
import os
import shutil
import socket
from pathlib import Path

import pytest
import torch
from calling import SMALL_TASK, headway

import headway as package
from headway import found_runs
from headway.cli_runs import that_fit
from headway.errors import CheckpointError, ConfigError
from headway.experiment import Options, Progress, execute
from headway.rundir import Run, locked
from headway.settings import settings


class Halt(Progress):
    """Ends a run in its second round, as a crash would."""

    def round(self, row):
        if row["round"] == 2:
            raise RuntimeError("power cut")


def ran(recipe: str, out: Path, options: Options | None = None, **given) -> Run:
    return execute(recipe, settings({**SMALL_TASK, **given}), out, options)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """fedavg and scaffold at two rates, finished; a run cut short after one of its three rounds; one that diverged."""
    torch.set_num_threads(1)
    top = tmp_path_factory.mktemp("several")
    ran("fedavg", top / "avg")
    ran("fedavg", top / "deep" / "avg-fast", lr=0.2, partition="iid")
    ran("scaffold+fn", top / "scaffold", seed=3)
    with pytest.raises(RuntimeError, match="power cut"):
        ran("fedavg", top / "cut", Options(progress=Halt(), checkpoint_seconds=0.0), rounds=3)
    ran("fedavg", top / "wild", lr=1e30)
    return top


@pytest.fixture
def top(several, tmp_path, monkeypatch):
    """A copy to spoil, named runs/ and seen from beside it."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(several, tmp_path / "runs"))


def listed(*words) -> dict[str, dict]:
    return {row["run"]: row for row in headway("runs", *words, "--json").json}


def read_csv(path: Path) -> list[list[str]]:
    with open(path, newline="") as f:
        return list(csv.reader(f))


# ---- what is there
def test_every_run_is_listed_with_its_state_and_figures(top):
    rows = listed()
    assert {name: row["state"] for name, row in rows.items()} == {
        "avg": "finished", "deep/avg-fast": "finished", "scaffold": "finished", "cut": "unfinished", "wild": "failed",
    }  # fmt: skip
    run = Run(top / "avg")
    row = rows["avg"]
    assert row["global"] == run.summary["global_acc"]
    assert row["personal"] == run.summary["personal"]["mean"]
    assert row["megabytes"] == (run.summary["bytes_up"] + run.summary["bytes_down"]) / 1e6
    assert (row["seconds"], row["started"]) == (run.summary["seconds"], run.config["started"])
    assert (row["rounds_done"], row["settings"]["rounds"], row["settings"]["data"]) == (2, 2, "digits")
    assert "not finite" in rows["wild"]["reason"]


def test_an_unfinished_run_shows_its_last_whole_round(top):
    row, first = listed()["cut"], Run(top / "cut").metrics
    assert (row["rounds_done"], row["settings"]["rounds"]) == (len(first), 3)
    assert row["global"] == first[-1]["global_acc"]
    assert row["megabytes"] == sum(r["bytes_up"] + r["bytes_down"] for r in first) / 1e6


def test_a_run_whose_lock_is_held_is_running(top):
    with locked(top / "cut"):
        assert listed()["cut"]["state"] == "running"
    assert listed()["cut"]["state"] == "unfinished"


def test_a_killed_run_left_its_name_behind_and_does_not_run(top):
    (top / "cut" / ".owner").write_text(f"process {2**22 + 1} on {socket.gethostname()}")  # above Linux's largest id
    assert listed()["cut"]["state"] == "unfinished"
    (top / "cut" / ".owner").write_text(f"process {os.getpid()} on {socket.gethostname()}")  # the id is in use again
    assert listed()["cut"]["state"] == "unfinished"


def test_the_table_tells_rounds_done_of_all(top):
    shown = headway("runs").out
    line = next(line for line in shown.splitlines() if line.strip().startswith("cut"))
    done = len(Run(top / "cut").metrics)
    assert f"{done}/3" in line
    assert "5 runs: 3 finished, 1 unfinished, 1 failed" in shown


def test_python_gives_runs_in_the_order_they_were_started(top):
    found = package.runs(top)
    assert [type(run) for run in found] == [Run] * 5
    assert sorted(run.config["started"] for run in found) == [run.config["started"] for run in found]
    assert [run.path.name for run in package.runs("runs", ["lr=0.2"])] == ["avg-fast"]


def test_a_folder_without_runs_and_no_folder(top, tmp_path):
    (tmp_path / "empty").mkdir()
    assert headway("runs", "empty").out == "no runs\n"
    end = headway("runs", "nowhere")
    assert (end.code, end.err.count("\n")) == (2, 1)
    assert "no such folder" in end.err


# ---- damage
SPOIL = {
    "config not JSON": lambda run: (run / "config.json").write_text("{"),
    "config of another program": lambda run: (run / "config.json").write_text('{"model_type": "bert"}'),
    "config a list": lambda run: (run / "config.json").write_text("[]"),
    "config of another format": lambda run: edit(run / "config.json", format=99),
    "config lost": lambda run: (run / "config.json").unlink(),
    "config binary": lambda run: (run / "config.json").write_bytes(b"\xff\xfe\x00"),
    "config bottomless": lambda run: (run / "config.json").write_text("[" * 100_000),
    "versions no mapping": lambda run: edit(run / "config.json", versions=[]),
    "summary not JSON": lambda run: (run / "summary.json").write_text("half a"),
    "summary of another program": lambda run: (run / "summary.json").write_text("{}"),
    "summary without figures": lambda run: (run / "summary.json").write_text('{"failed": null}'),
    "summary a folder": lambda run: ((run / "summary.json").unlink(), (run / "summary.json").mkdir()),
}


def edit(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("how", SPOIL)
def test_a_damaged_run_is_listed_with_the_reason_and_hides_no_other(top, how):
    SPOIL[how](top / "avg")
    end = headway("runs", "--json")
    rows = {row["run"]: row for row in end.json}
    assert (end.code, len(rows)) == (0, 5)
    assert rows["avg"]["state"] == "damaged"
    assert rows["avg"]["reason"]
    assert rows["scaffold"]["state"] == "finished"
    assert "damaged: avg: " in headway("runs").out
    assert headway("runs", "--metrics").code == 0
    assert "avg" not in [run.path.name for run in package.runs()]


def test_damaged_metrics_of_an_unfinished_run(top):
    with open(top / "cut" / "metrics.jsonl", "a") as f:
        f.write("not json\n")
    assert listed()["cut"]["state"] == "damaged"


def test_what_rests_inside_a_run_or_belongs_to_a_tracker_is_no_run(top):
    for inside in ("avg/calibrated", "mlflow/artifacts/1", "wandb/files", ".hidden"):
        shutil.copytree(top / "scaffold", top / inside / "run")
    assert len(listed()) == 5


# ---- hostile names
def test_hostile_names_are_shown_as_they_are_and_run_nowhere(top, tmp_path):
    name = "=cmd|'[bold]x[red]\x1b[31m\nz"
    (top / "avg").rename(top / name)
    edit(top / name / "config.json", label="@SUM(1)[red]")
    shown = headway("runs")
    assert shown.code == 0
    assert "=cmd|'[bold]x[red]?[31m?z" in shown.out
    assert "\x1b" not in shown.out
    assert headway("runs", "--csv", "all.csv").code == 0
    rows = read_csv(tmp_path / "all.csv")
    mine = next(row for row in rows if "[bold]" in row[0])
    assert mine[0] == "'" + name
    assert mine[rows[0].index("recipe")] == "'@SUM(1)[red]"
    assert headway("runs", "--metrics", "--csv", "m.csv").code == 0
    assert any(row[0] == "'" + name for row in read_csv(tmp_path / "m.csv"))


# ---- choosing
@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (["recipe=fedavg"], {"avg", "deep/avg-fast", "cut", "wild"}),
        (["recipe=*FN"], {"scaffold"}),
        (["recipe!=fedavg"], {"scaffold"}),
        (["pieces=scaffold*"], {"scaffold"}),
        (["lr=0.05"], {"avg", "cut", "scaffold"}),
        (["lr=5e-2", "seed=3"], {"scaffold"}),
        (["rounds>=3"], {"cut"}),
        (["rounds_done<2"], {"wild"}),  # it stopped when its loss was no number; the cut one has two
        (["state=failed"], {"wild"}),
        (["state=fin*", "partition=iid"], {"deep/avg-fast"}),
        (["partition=dir(0.1)", "lr<1", "state=finished"], {"avg", "scaffold"}),
        (["train-size=200", "seed=3"], {"scaffold"}),
        (["global>99.9"], set()),
        (["clip_norm=none", "seed>0"], {"scaffold"}),
        (["merge_test=false", "seed>0"], {"scaffold"}),
        (["started>=2000-01-01", "seed=3"], {"scaffold"}),
        (["started<2000-01-01"], set()),
    ],
)
def test_where(top, where, wanted):
    assert set(listed(*(word for text in where for word in ("--where", text)))) == wanted


def test_where_on_a_figure_keeps_those_above(top):
    accs = {name: row["global"] for name, row in listed("--where", "state=finished").items()}
    limit = sorted(accs.values())[1]
    found = listed("--where", f"global_acc>={limit!r}", "--where", "state=finished")
    assert set(found) == {name for name, acc in accs.items() if acc >= limit}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--where", "recpie=fedavg"], "did you mean 'recipe'"),
        (["--where", "fedavg"], "write key=value"),
        (["--where", ""], "write key=value"),
        (["--where", "recipe>fedavg"], "compares numbers"),
        (["--sort", "globl"], "did you mean 'global'"),
        (["--sort", ""], "it is empty"),
        (["--columns", "run,nope"], "runs have no such fact"),
        (["--csv", "runs/avg/config.json"], "must end in .csv"),
        (["--csv", "no/such/folder.csv"], "cannot be written"),
        (["--csv", "/proc/x.csv"], "csv=/proc/x.csv: /proc cannot be written"),
        (["--csv", "/proc/x.csv"], "; choose another --csv\n"),
        (["--metrics", "--csv", "/proc/x.csv"], "; choose another --csv\n"),
        (["--metrics", "--csv", "/proc/x/"], "; choose another --csv\n"),
        (["--diff", "avg", "scaffold", "--csv", "/proc/x.csv"], "; choose another --csv\n"),
        (["--diff", "avg"], "compares two runs or more and found 1"),
        (["--diff", "--metrics"], "give one of the two"),
    ],
)
def test_a_wrong_request_is_one_sentence(top, words, told):
    before = (top / "avg" / "config.json").read_bytes()
    end = headway("runs", *words)
    assert (end.code, end.out, end.err.count("\n")) == (2, "", 1)
    assert told in end.err
    assert (top / "avg" / "config.json").read_bytes() == before


def test_sorting_puts_the_best_first_and_the_unknown_last(top):
    rows = headway("runs", "--sort", "global", "--json").json
    known = [row["global"] for row in rows if row["global"] is not None]
    assert known == sorted(known, reverse=True)
    edit(top / "avg" / "config.json", format=99)
    for sort in ("global", "-global"):
        assert headway("runs", "--sort", sort, "--json").json[-1]["run"] == "avg"
    rates = [
        row["settings"]["lr"] for row in headway("runs", "--sort", "lr", "--where", "state!=damaged", "--json").json
    ]
    assert rates == sorted(rates)
    back = headway("runs", "--sort", "-lr", "--where", "state!=damaged", "--json").json
    assert [row["settings"]["lr"] for row in back] == sorted(rates, reverse=True)


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


def test_unknown_figures_raise_in_python_too(top):
    with pytest.raises(ConfigError, match="did you mean"):
        package.runs(top, ["rouns=3"])
    with pytest.raises(CheckpointError, match="no such folder"):
        found_runs.runs(top / "nowhere")


def test_accuracies_above_one_are_percent_in_conditions(top):
    best = max(listed().values(), key=lambda row: row["global"] or 0)
    half = 50 * best["global"]  # half of the best, in percent
    assert list(listed("--where", f"global>{half}")) == list(listed("--where", f"global>{half / 100}")) != []
    assert listed("--where", f"global>{half + 50}") == listed("--where", "global<=0", "--where", "global>99") == {}
    assert list(listed("--where", f"megabytes>{best['megabytes'] + 1}")) == []  # no accuracy: as it stands
    assert best["run"] in listed("--where", f"global={100 * best['global']!r}", "--where", "lr<1")


def test_one_condition_may_be_a_plain_string(top):
    assert [run.path.name for run in package.runs("runs", where="recipe=scaffold+fn")] == ["scaffold"]
    with pytest.raises(ConfigError, match="where=recipe: write key=value"):
        package.runs("runs", where="recipe")


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

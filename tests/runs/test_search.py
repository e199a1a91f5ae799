"""`headway runs`: every run is listed as it stands, whatever is wrong with it, chosen and sorted."""

from __future__ import annotations

import os
import shutil
import socket

import pytest
from calling import headway, listed
from run_files import edit, read_csv

import headway as package
from headway.base.errors import CheckpointError, ConfigError
from headway.runs import search as found_runs
from headway.runs.lock import locked
from headway.runs.run import Run


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
        (["--columns", "run,nope"], "runs have no such column"),
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

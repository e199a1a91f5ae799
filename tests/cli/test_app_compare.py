"""`headway compare` and `headway run --seeds`: a run a recipe and seed, and one leaderboard."""

import csv
import json
import os
import re
import signal
import statistics
from pathlib import Path

import pytest
from calling import SMALL, files, headway

from headway.runs import compare as comparison
from headway.runs.run import Run
from headway.runs.runner import Stopped

pytestmark = pytest.mark.usefixtures("in_tmp")


def test_several_seeds_make_a_run_each_and_one_leaderboard():
    end = headway("run", "fedavg", *SMALL, "--seeds=0,1", "--out=a")
    assert end.code == 0
    assert {"leaderboard.json", "leaderboard.csv", "seed-0/summary.json", "seed-1/summary.json"} <= files("a")
    accs = [Run(Path(f"a/seed-{seed}")).summary["global_acc"] for seed in (0, 1)]
    mean, std = 100 * statistics.fmean(accs), 100 * statistics.pstdev(accs)
    assert f"{mean:.2f} ± {std:.2f}" in end.out
    assert "seeds 0, 1; ± is the spread over seeds" in end.out


def test_a_seed_among_several_is_the_run_of_that_seed_alone():
    headway("run", "fedavg", *SMALL, "--seeds=0,1", "--out=a")
    headway("run", "fedavg", *SMALL, "--seed=1", "--out=b")
    assert Path("a/seed-1/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()


def test_seeds_that_are_finished_are_not_run_again(monkeypatch):
    first = headway("run", "fedavg", *SMALL, "--seeds=0,1", "--out=a", "--json").json
    monkeypatch.setattr(comparison, "execute", None)  # a run would fail
    assert headway("run", "fedavg", *SMALL, "--seeds=0,1", "--out=a", "--json").json == first


def test_another_recipe_over_the_same_seeds_folder_is_refused():
    headway("run", "fedavg", *SMALL, "--seeds=0,1", "--out=a")
    before = files("a")
    end = headway("run", "scaffold", *SMALL, "--seeds=2,0", "--out=a")
    assert end.code == 2
    assert "it holds another run (recipe: fedavg there, scaffold here)" in end.err
    assert files("a") == before  # seed 2 was not started


# ---- compare
def test_compare_writes_runs_and_leaderboard():
    end = headway("compare", "fedavg", "scaffold", *SMALL, "--seeds=0,1", "--out=c")
    assert end.code == 0
    for recipe in ("fedavg", "scaffold"):
        assert {f"{recipe}/seed-0/summary.json", f"{recipe}/seed-1/summary.json"} <= files("c")
    board = json.loads(Path("c/leaderboard.json").read_text())
    table = list(csv.DictReader(Path("c/leaderboard.csv").read_text().splitlines()))
    assert {row["recipe"] for row in board} == {"fedavg", "scaffold"}
    assert [row["recipe"] for row in table] == [row["recipe"] for row in board]
    for row, line in zip(board, table, strict=True):
        runs = [Run(Path("c", run)) for run in row["runs"]]
        accs = [run.summary["global_acc"] for run in runs]
        own = [run.summary["personal"]["mean"] for run in runs]
        assert row["global"]["values"] == accs
        assert row["global"]["mean"] == pytest.approx(statistics.fmean(accs))
        assert row["global"]["std"] == pytest.approx(statistics.pstdev(accs))
        assert row["personal"]["mean"] == pytest.approx(statistics.fmean(own))
        assert row["megabytes"]["mean"] == sum(run.summary["bytes_up"] * 2 for run in runs) / 2e6
        assert float(line["global_mean"]) == pytest.approx(row["global"]["mean"], rel=1e-5)
        assert float(line["global_std"]) == pytest.approx(row["global"]["std"], rel=1e-5)
        assert row["failed"] == 0
    assert "leaderboard.json" in end.out
    assert headway("compare", "fedavg", "scaffold", *SMALL, "--seeds=0,1", "--out=c", "--json").json == board


def fake_runs(monkeypatch, curves):
    """Instead of training, every recipe ends with these figures."""

    def execute(text, s, folder, options, *, task, objects):
        last, best = curves[text]
        folder.mkdir(parents=True)
        figures = {"global_acc": last, "last": last, "best": best, "last5": last, "balanced_acc": last}
        rest = {"personal": None, "bytes_up": 0, "bytes_down": 0, "seconds": 0.0, "failed": None}
        (folder / "summary.json").write_text(json.dumps(figures | rest))
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(comparison, "execute", execute)


def test_the_leaderboard_is_sorted_by_the_last_round_and_never_by_the_best(monkeypatch):
    fake_runs(monkeypatch, {"fedavg": (0.5, 0.99), "scaffold": (0.6, 0.6), "fedprox": (0.4, 0.7)})
    end = headway("compare", "fedprox", "fedavg", "scaffold", *SMALL, "--out=c", "--json")
    assert [row["recipe"] for row in end.json] == ["scaffold", "fedavg", "fedprox"]


def test_a_leaderboard_without_personal_figures_says_so(monkeypatch):
    fake_runs(monkeypatch, {"fedavg": (0.5, 0.5)})
    assert "n/a" in headway("compare", "fedavg", *SMALL, "--out=c").out


def test_finished_runs_are_taken_as_they_are_and_new_recipes_are_added(monkeypatch):
    headway("compare", "fedavg", *SMALL, "--out=c")
    made = Path("c/fedavg/seed-0/config.json").stat().st_mtime_ns
    end = headway("compare", "fedavg", "fedprox", *SMALL, "--out=c", "--json")
    assert {row["recipe"] for row in end.json} == {"fedavg", "fedprox"}
    assert Path("c/fedavg/seed-0/config.json").stat().st_mtime_ns == made


def test_overwrite_makes_finished_runs_again():
    headway("compare", "fedavg", *SMALL, "--out=c")
    assert headway("compare", "fedavg", *SMALL, "--rounds=1", "--out=c").code == 2
    assert headway("compare", "fedavg", *SMALL, "--rounds=1", "--out=c", "--overwrite").code == 0
    assert Run(Path("c/fedavg/seed-0")).summary["rounds"] == 1


def test_a_folder_with_another_run_is_found_before_the_first_run_starts():
    headway("run", "scaffold", *SMALL, "--rounds=1", "--out=c/scaffold/seed-0")
    before = files("c")
    end = headway("compare", "fedavg", "scaffold", *SMALL, "--out=c")
    assert end.code == 2
    assert "it holds another run (rounds: 1 there, 2 here)" in end.err
    assert files("c") == before


def test_recipes_with_settings_get_readable_folders():
    assert headway("compare", "moon(mu=5)", "FedProx(mu=0.1)", *SMALL, "--rounds=1", "--out=c").code == 0
    assert sorted(os.listdir("c")) == ["fedprox(mu=0.1)", "leaderboard.csv", "leaderboard.json", "moon(mu=5)"]


def test_a_recipe_keeps_the_name_the_user_gave_it():
    end = headway("compare", "fedprox", *SMALL, "--rounds=1", "--out=c", "--json")
    assert [row["recipe"] for row in end.json] == ["fedprox"]


# ---- how it ends
@pytest.mark.parametrize("words", [["compare", "fedavg", "scaffold"], ["run", "fedavg", "--seeds=0,1"]])
def test_a_stopped_comparison_says_how_all_of_it_continues(words, monkeypatch):
    def stopped(text, s, folder, options, task, objects):
        raise Stopped(signal.SIGINT, folder, 1)

    monkeypatch.setattr(comparison, "execute", stopped)
    end = headway(*words, *SMALL, "--out=c")
    assert end.code == 130
    how = r"`headway resume c/\S+` continues it, and the same command again all of them"
    assert re.fullmatch(rf"headway: stopped after round 1; {how}\n", end.err)
    assert "the same command without --overwrite all of them" in headway(*words, *SMALL, "--out=c", "--overwrite").err

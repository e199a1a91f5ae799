"""What is printed: tables for people, the live bar on a terminal, plain lines in a pipe."""

import io
import json

import pytest
from rich.console import Console

from headway.analysis.communication import communication
from headway.base.csv_table import safe_cell
from headway.base.strict_json import strict
from headway.cli import results
from headway.cli.list import listing, print_listing
from headway.cli.output import percent
from headway.cli.personalise import print_result
from headway.cli.progress import Bar, Lines, progress_for, scores
from headway.methods import recipe
from headway.runs.compare import FIGURES, Comparison, Row, slug
from headway.runs.run import Run
from headway.runs.runner import Progress

ROW = {"round": 1, "global_acc": 0.5, "personal_acc": 0.75}


def plain(width=120):
    return Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=True)


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=120)


def text(console):
    return console.file.getvalue()


# ---- numbers
@pytest.mark.parametrize(
    ("given", "wanted"),
    [((None,), "n/a"), ((0.5,), "50.00"), ((0.12345,), "12.35"), ((0.5, 0.01), "50.00 ± 1.00"), ((None, None), "n/a")],
)
def test_percent(given, wanted):
    assert percent(*given) == wanted


def test_json_gets_null_for_what_is_no_number():
    value = {"a": float("nan"), "b": [1.0, float("inf")], "c": {"d": "nan"}, "e": None, "f": (True, 2)}
    assert json.dumps(strict(value), allow_nan=False)
    assert strict(value) == {"a": None, "b": [1.0, None], "c": {"d": "nan"}, "e": None, "f": [True, 2]}


# ---- one run
def finished(tmp_path, **more):
    summary = {
        "label": "moon(mu=5)", "rounds": 7, "seconds": 1.25, "failed": None, "last": 0.5, "best": 0.9, "last5": 0.48,
        "last50": 0.4, "balanced_acc": 0.45, "personal": {"mean": 0.8, "std": 0.1, "pooled": 0.85},
        "bytes_up": 2_000_000, "bytes_down": 3_000_000,
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(summary | more))
    (tmp_path / "config.json").write_text("{}")
    return Run(tmp_path)


def test_a_summary_leads_with_the_last_round_and_marks_the_best_as_no_result(tmp_path):
    console = plain()
    results.summary(console, finished(tmp_path))
    told = text(console)
    assert told.startswith(f"moon(mu=5): 7 rounds in 1.2 s -> {tmp_path}\n")
    order = ["global, last round", "50.00", "48.00 / 40.00", "best round (not a result)", "90.00", "80.00 ± 10.00"]
    places = [told.index(part) for part in order]
    assert places == sorted(places)
    assert "2.00 / 3.00" in told


def test_a_summary_shows_calibration_and_failure(tmp_path):
    console = plain()
    more = {"calibrated": {"before": 0.5, "after": 0.625}, "balanced_acc": 0.6125, "personal": None}
    results.summary(console, finished(tmp_path, failed="the loss is not finite", **more))
    told = text(console)
    assert "failed: the loss is not finite" in told
    assert "62.50" in told
    assert "61.25" in told  # balanced, of the calibrated model
    assert "personal" not in told


# ---- leaderboard
def board(tmp_path, seeds=(0, 1), failed=0, **figures):
    values = {name: [0.0] * len(seeds) for name in FIGURES} | figures
    return Comparison(tmp_path, (Row("fedavg", (), values, failed),), seeds)


def test_a_leaderboard_of_several_seeds_shows_the_spread(tmp_path):
    console = plain()
    # mean 0.5, deviations 0.1: std 0.1 (ddof 0)
    results.leaderboard(console, board(tmp_path, **{"global": [0.4, 0.6], "personal": [None, None]}))
    told = text(console)
    assert "50.00 ± 10.00" in told
    assert "n/a" in told
    assert "seeds 0, 1; ± is the spread over seeds" in told


def test_a_leaderboard_of_one_seed_shows_no_spread(tmp_path):
    console = plain()
    results.leaderboard(console, board(tmp_path, seeds=(3,), **{"global": [0.5]}))
    assert "±" not in text(console)
    assert "seed 3" in text(console)


def test_failed_seeds_are_counted_beside_the_recipe(tmp_path):
    console = plain()
    results.leaderboard(console, board(tmp_path, failed=1))
    assert "fedavg  (failed: 1 of 2)" in text(console)


def test_mean_and_spread_leave_out_seeds_without_the_figure(tmp_path):
    row = board(tmp_path, seeds=(0, 1, 2), personal=[0.25, None, 0.75]).rows[0]
    assert (row.mean("personal"), row.std("personal")) == (0.5, 0.25)


def test_folder_names_and_cells_hold_no_surprises():
    assert slug("Moon(mu=5)+CCVR") == "moon(mu=5)+ccvr"
    assert slug("../../etc/passwd") == "_.._etc_passwd"
    assert slug("..") == "run"
    assert "/" not in slug("a/b\\c\x00d")
    assert [safe_cell(t) for t in ("=1+1", "+x", "-x", "@x", "fedavg")] == ["'=1+1", "'+x", "'-x", "'@x", "fedavg"]


# ---- explain
def test_what_is_sent_is_read_off_a_real_round():
    facts = communication(recipe("scaffold+fn"))
    assert facts["down"] == ["body", "head.weight", "scaffold.c"]
    assert facts["up"] == ["body", "head.weight", "scaffold.delta_c"]
    assert facts["stays"] == ["scaffold.c"]
    assert facts["frozen"] == facts["once"] == []


def test_a_frozen_head_is_neither_sent_nor_kept():
    facts = communication(recipe("fedbabu"))
    assert facts["frozen"] == ["head.weight", "head.bias"]
    assert facts["down"] == facts["up"] == ["body"]


def test_what_is_asked_once_at_the_end_is_told():
    assert communication(recipe("ccvr"))["once"] == ["ccvr: count, mean and covariance of each class"]


# ---- lists
def test_a_list_fits_a_narrow_terminal_with_names_uncut():
    console = Console(file=io.StringIO(), width=80, highlight=False)
    rows = listing("data")
    print_listing(console, rows)
    assert max(map(len, text(console).splitlines())) <= 80
    for row in rows:
        assert f" {row['name']} " in text(console)


# ---- progress
def test_a_pipe_gets_lines_a_terminal_a_bar_and_quiet_nothing():
    assert type(progress_for(plain(), quiet=False)) is Lines
    assert type(progress_for(terminal(), quiet=False)) is Bar
    assert type(progress_for(terminal(), quiet=True)) is Progress


def test_scores_leave_out_what_was_not_evaluated():
    assert scores({"global_acc": 0.812, "personal_acc": None}) == "global 81.2 %"
    assert scores({"global_acc": None, "personal_acc": None}) == ""


def test_lines_come_at_most_once_a_second_and_the_last_always(monkeypatch):
    clock = iter([0.0, 9.0, 9.5, 12.0, 12.1])  # begin, then four rounds
    monkeypatch.setattr("headway.cli.progress.time.monotonic", lambda: next(clock))
    console = plain()
    lines = Lines(console)
    lines.begin("fedavg", 0, 4)
    for t in (1, 2, 3, 4):
        lines.round(ROW | {"round": t})
    assert text(console).splitlines() == [
        "fedavg: 4 rounds",
        "fedavg: round 1/4 global 50.0 % personal 75.0 %",  # the first round also warms up: no estimate yet
        "fedavg: round 3/4 global 50.0 % personal 75.0 % 2 s left",  # two rounds in 3 s, one to go
        "fedavg: round 4/4 global 50.0 % personal 75.0 % 0 s left",
    ]


def test_the_time_left_of_a_continued_run_counts_its_own_rounds(monkeypatch):
    clock = iter([0.0, 9.0, 11.0])
    monkeypatch.setattr("headway.cli.progress.time.monotonic", lambda: next(clock))
    console = plain()
    lines = Lines(console)
    lines.begin("fedavg", 6, 10)
    lines.round(ROW | {"round": 7})
    lines.round(ROW | {"round": 8})  # one round in 2 s after the first, two to go
    assert text(console).splitlines() == [
        "fedavg: 10 rounds, continued after round 6",
        "fedavg: round 7/10 global 50.0 % personal 75.0 %",
        "fedavg: round 8/10 global 50.0 % personal 75.0 % 4 s left",
    ]


def test_one_round_is_one_round(tmp_path):
    lines, console = Lines(plain()), plain()
    lines.begin("fedavg", 0, 1)
    lines.round(ROW)
    assert text(lines.console).splitlines() == [
        "fedavg: 1 round",
        "fedavg: round 1/1 global 50.0 % personal 75.0 % 0 s left",
    ]
    results.summary(console, finished(tmp_path, rounds=1))
    assert text(console).startswith("moon(mu=5): 1 round in 1.2 s -> ")
    own = {"stages": {}, "mean": 0.5, "std": 0.0, "pooled": 0.5, "clients": 1}
    print_result(console, {"recipe": "fedavg+ft", "personal": own, "models": "m"})
    assert "models of 1 client: m" in text(console)


def test_the_bar_estimates_from_the_second_round_however_long_rounds_take():
    now = [0.0]
    bar = Bar(Console(file=io.StringIO(), force_terminal=True, width=120, get_time=lambda: now[0]))
    bar.begin("fedavg", 0, 4)
    left = []
    for t, at in ((1, 500.0), (2, 560.0), (3, 620.0)):
        now[0] = at
        bar.round(ROW | {"round": t})
        left.append(bar._bar.tasks[0].time_remaining)
    bar.end()
    assert left == [None, 120, 60]


def test_what_is_said_before_the_first_round_is_shown_on_pipe_and_terminal():
    for progress in (Lines(plain()), Bar(plain())):
        progress.say("checkpoint round-000003 [sic] is damaged")
        assert text(progress.console) == "checkpoint round-000003 [sic] is damaged\n"


def test_the_bar_shows_rounds_clients_time_left_and_accuracy():
    console = terminal()
    bar = Bar(console)
    bar.begin("scaffold+fn", 0, 4)
    bar.client(1, 3)
    bar.round(ROW)
    bar.say("personal [models]")
    bar._bar.refresh()
    bar.end()
    shown = text(console)
    for part in ("scaffold+fn", "1/4", "1/3", "global 50.0 % personal 75.0 %", "personal [models]", "\x1b["):
        assert part in shown
    bar.round(ROW)  # after the end nothing is drawn and nothing breaks
    assert text(console) == shown


def test_what_is_said_between_two_runs_is_about_neither():
    console = plain()
    lines = Lines(console)
    lines.begin("fedavg", 0, 4)
    lines.say("a worker died")
    lines.end()
    lines.say("note: gmv never acts")
    assert text(console).splitlines() == ["fedavg: 4 rounds", "fedavg: a worker died", "note: gmv never acts"]

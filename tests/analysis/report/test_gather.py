"""Runs on disk -> what is compared: groups, order, names, what is refused."""

import json
from pathlib import Path

import pytest
from calling import headway
from report_pages import Reader
from report_runs import write_run

from headway.analysis.report.gather import gather, run_folders, set_apart
from headway.analysis.report.measures import changes, curve, reached, spread, targets_of, thin
from headway.base.errors import CheckpointError
from headway.runs.search import find


def test_seeds_of_a_recipe_stand_together_and_recipes_by_their_last_round(tmp_path):
    for seed in (1, 0):
        write_run(tmp_path / "fedavg" / f"seed-{seed}", "fedavg", seed, accs=(0.9, 0.5 + 0.2 * seed))
        write_run(tmp_path / "moon" / f"seed-{seed}", "moon", seed, accs=(0.1, 0.8))
    g = gather([tmp_path])
    assert [(x.label, x.seeds) for x in g.groups] == [("moon", [0, 1]), ("fedavg", [0, 1])]
    assert g.base.label == "fedavg"
    # last rounds 0.5 and 0.7: mean 0.6, spread (ddof 0) 0.1; the best round, 0.9, does not count
    assert g.base.mean("global") == pytest.approx(0.6)
    assert g.base.std("global") == pytest.approx(0.1)
    assert g.differing == {}


def test_figures_are_those_of_the_summary_and_the_worst_client(tmp_path):
    write_run(tmp_path / "a", accs=(0.25, 0.5), personal=(0.5, 0.75, 1.0))
    x = gather([tmp_path / "a"]).groups[0]
    # 2 rounds of 1 + 3 MB; 2 x 0.5 s
    assert {f: x.mean(f) for f in ("global", "best", "personal", "worst", "megabytes", "seconds")} == {
        "global": 0.5, "best": 0.5, "personal": 0.75, "worst": 0.5, "megabytes": 8.0, "seconds": 1.0,
    }  # fmt: skip
    assert x.std("global") is None  # one seed has no spread


def test_the_first_row_is_the_reference_where_fedavg_is_missing(tmp_path):
    write_run(tmp_path / "a", "moon", accs=(0.4,))
    write_run(tmp_path / "b", "scaffold", accs=(0.6,))
    assert gather([tmp_path]).base.label == "scaffold"


def test_a_recipe_without_a_global_model_comes_last(tmp_path):
    write_run(tmp_path / "a", "local", accs=(None, None))
    write_run(tmp_path / "b", "fedavg", accs=(0.1,))
    g = gather([tmp_path])
    assert [x.label for x in g.groups] == ["fedavg", "local"]
    assert g.local is g.groups[1]
    assert g.local.mean("global") is None


def test_the_same_recipe_under_other_settings_is_named_by_what_differs(tmp_path):
    write_run(tmp_path / "a", lr=0.1)
    write_run(tmp_path / "b", lr=0.2, accs=(0.1, 0.2))
    g = gather([tmp_path])
    assert [x.label for x in g.groups] == ["fedavg [lr=0.1]", "fedavg [lr=0.2]"]
    assert g.differing == {"lr": ["0.1", "0.2"]}


def test_a_folder_named_twice_is_one_run_and_a_copy_is_a_row_of_its_own(tmp_path):
    a = write_run(tmp_path / "x" / "a")
    assert len(gather([a, tmp_path / "x", tmp_path / "x" / "." / "a"]).runs) == 1
    write_run(tmp_path / "x" / "b")
    assert [x.label for x in gather([tmp_path / "x"]).groups] == ["fedavg", "fedavg #2"]


def test_an_unfinished_run_is_shown_with_what_it_has(tmp_path):
    run = write_run(tmp_path / "a", accs=(0.25, 0.5, 0.4), finished=False)
    x = gather([run]).groups[0]
    assert x.runs[0].unfinished
    assert (x.mean("global"), x.mean("best"), x.mean("personal"), x.mean("megabytes")) == (0.4, 0.5, None, 12.0)


def test_finished_seeds_alone_make_the_figures(tmp_path):
    write_run(tmp_path / "seed-0", seed=0, accs=(0.5,))
    write_run(tmp_path / "seed-1", seed=1, accs=(0.9,), finished=False)
    x = gather([tmp_path]).groups[0]
    assert x.mean("global") == 0.5
    assert not x.whole


@pytest.mark.parametrize(
    ("break_it", "wanted"),
    [
        (lambda run: (run / "config.json").write_text("{"), "config.json is damaged"),
        (lambda run: (run / "config.json").write_text("{}"), "is not headway's: it lacks recipe"),
        (lambda run: (run / "metrics.jsonl").write_text("nonsense\n"), "metrics.jsonl is damaged"),
        (lambda run: (run / "metrics.jsonl").write_text("[1]\n"), "metrics.jsonl is damaged"),
        (
            lambda run: (run / "metrics.jsonl").write_text('{"round": 1, "global_acc": "x"}\n'),
            "metrics.jsonl is damaged",
        ),
        (lambda run: (run / "summary.json").write_text('{"failed": null}'), "summary.json is damaged"),
        (lambda run: (run / "summary.json").write_text("[]"), "summary.json is damaged"),
        (lambda run: (run / "partition.json").write_text('{"clients": 3}'), "partition.json is damaged"),
    ],
)
def test_a_damaged_run_is_refused_by_its_file(tmp_path, break_it, wanted):
    run = write_run(tmp_path / "a")
    break_it(run)
    with pytest.raises(CheckpointError, match=wanted):
        gather([run])


def test_what_holds_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="there is no such folder"):
        run_folders(tmp_path / "none")
    with pytest.raises(CheckpointError, match="no run is in this folder"):
        run_folders(tmp_path)
    run = write_run(tmp_path / "a", accs=(), finished=False)
    with pytest.raises(CheckpointError, match="has not ended a single round"):
        gather([run])


def test_runs_are_found_however_deep_they_lie(tmp_path):
    deep = write_run(tmp_path / "reproduce" / "ccvr" / "runs" / "fedavg" / "seed-3")
    write_run(tmp_path / "near")
    for inside in ("near/calibrated/x", "mlflow/1/a", ".hidden/b"):  # a run's own, a tracker's, nobody's business
        write_run(tmp_path / inside)
    assert run_folders(tmp_path) == [tmp_path / "near", deep]
    assert run_folders(tmp_path) == [f.path for f in sorted(find([tmp_path]), key=lambda f: f.path)]


def test_links_are_neither_followed_in_circles_nor_lost(tmp_path):
    run = write_run(tmp_path / "elsewhere" / "run")
    top = tmp_path / "runs"
    write_run(top / "a")
    (top / "circle").symlink_to(top, target_is_directory=True)
    (top / "z").symlink_to(run, target_is_directory=True)
    (top / "again").symlink_to(top / "a", target_is_directory=True)
    assert [r.path for r in gather([top]).runs] == [top / "a", top / "z"]
    assert {f.name for f in find([top])} == {"a", "z"}


def test_what_a_run_lost_its_config_from_is_passed_over(tmp_path):
    write_run(tmp_path / "a")
    (write_run(tmp_path / "b") / "config.json").unlink()
    assert run_folders(tmp_path) == [tmp_path / "a"]


# ---- measures
def test_a_curve_is_the_mean_over_seeds_with_the_lowest_and_highest(tmp_path):
    write_run(tmp_path / "0", seed=0, accs=(0.2, 0.4))
    write_run(tmp_path / "1", seed=1, accs=(0.4, 0.8))
    first, second = curve(gather([tmp_path]).groups[0], "global_acc")
    assert (first.round, first.mean, first.low, first.high) == (1, pytest.approx(0.3), 0.2, 0.4)
    assert (second.mean, second.megabytes, second.seconds) == (pytest.approx(0.6), 8.0, 1.0)  # 2 x 4 MB, 2 x 0.5 s


def test_the_cost_of_a_target_is_the_mean_over_the_seeds_that_reached_it(tmp_path):
    for seed, accs in enumerate([(0.1, 0.6, 0.7), (0.6, 0.2, 0.2), (0.1, 0.2, 0.3)]):
        write_run(tmp_path / str(seed), seed=seed, accs=accs)
    x = gather([tmp_path]).groups[0]
    half = reached(x, 0.5)  # after rounds 2 and 1, never in the third: mean 1.5 rounds, 6 MB, 0.75 s
    assert (half.seeds, half.of, half.rounds, half.megabytes, half.seconds) == (2, 3, 1.5, 6.0, 0.75)
    assert reached(x, 0.9) is None
    assert targets_of([x]) == [0.3, 0.5, 0.6, 0.7]


def test_changes_are_client_by_client_with_what_the_client_holds(tmp_path):
    write_run(tmp_path / "a", "fedavg", personal=(0.5, 0.5, 0.5))
    write_run(tmp_path / "b", "moon", personal=(0.75, 0.25, 0.5))
    g = gather([tmp_path])
    moon = next(x for x in g.groups if x.label == "moon")
    found = changes(moon, g.base)
    # client 1 holds 1 + 3 samples of two classes and loses a quarter, client 0 holds 4 of one class and gains it
    assert [(c.client, c.difference, c.samples, c.classes) for c in found] == [
        (1, -0.25, 4, 2), (2, 0.0, 2, 1), (0, 0.25, 4, 1),
    ]  # fmt: skip


def test_thinning_keeps_both_ends():
    assert thin(range(5), 10) == [0, 1, 2, 3, 4]
    assert thin(range(101), 5) == [0, 25, 50, 75, 100]


def test_spread_by_hand():
    s = spread([0.0, 1.0, 2.0, 3.0, 4.0])
    assert (s.least, s.lower, s.median, s.upper, s.most, s.mean, s.n) == (0, 1, 2, 3, 4, 2, 5)


def test_a_row_that_was_not_evaluated_is_no_point(tmp_path):
    write_run(tmp_path / "a", accs=(None, 0.5))
    assert [p.round for p in curve(gather([tmp_path]).groups[0], "global_acc")] == [2]


def test_numbers_that_are_none_stay_out(tmp_path):
    run = write_run(tmp_path / "a")
    summary = json.loads((run / "summary.json").read_text())
    summary["personal"] = None  # a diverged run has no personal figures
    summary["failed"] = "the loss is not finite from round 2 on"
    (run / "summary.json").write_text(json.dumps(summary))
    x = gather([run]).groups[0]
    assert (x.mean("personal"), x.mean("worst"), x.clients()) == (None, None, {})
    assert x.runs[0].failed == "the loss is not finite from round 2 on"


def test_a_damaged_run_keeps_no_other_from_the_page(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"seed-{seed}", seed=seed)
    (tmp_path / "seed-1" / "summary.json").write_text("half a")
    (tmp_path / "seed-2" / "config.json").write_text("[" * 100_000)
    g = gather([tmp_path])
    assert [run.seed for run in g.runs] == [0]
    assert {path.name: bool(why) for path, why in g.damaged.items()} == {"seed-1": True, "seed-2": True}
    assert "summary.json" in g.damaged[tmp_path / "seed-1"]
    (tmp_path / "seed-0" / "summary.json").unlink()
    (tmp_path / "seed-0" / "summary.json").mkdir()
    with pytest.raises(CheckpointError):
        gather([tmp_path])


def test_a_setting_that_is_none_is_no_part_of_a_name(tmp_path):
    write_run(tmp_path / "a", accs=(0.4,))
    write_run(tmp_path / "b", accs=(0.3,), train_size=200, test_size=80)
    assert [x.label for x in gather([tmp_path]).groups] == ["fedavg", "fedavg [train_size=200, test_size=80]"]


def test_a_name_has_the_setting_that_tells_its_run_from_all_others(tmp_path):
    write_run(tmp_path / "a", accs=(0.5,))
    write_run(tmp_path / "b", accs=(0.4,), partition="dir(0.1)", train_size=200)
    write_run(tmp_path / "c", accs=(0.3,), partition="dir(0.1)", train_size=300, epochs=2)
    write_run(tmp_path / "failed", accs=(0.1, 0.1), partition="dir(0.1)", train_size=200, epochs=2, lr=1e6)
    labels = [x.label for x in gather([tmp_path]).groups]
    assert "lr=1000000.0" in labels[3]
    assert len(set(labels)) == 4
    assert max(label.count("=") for label in labels) == 3


def test_a_name_has_more_than_three_settings_where_fewer_do_not_set_it_apart():
    own = {"data": "x", "clients": 1, "rounds": 1, "epochs": 1, "lr": 1.0, "amp": None, "seed": 0}
    others = [own | {name: "other", "seed": 1} for name in ("data", "clients", "rounds", "epochs")]
    assert set_apart(own, others) == {"data": "x", "clients": 1, "rounds": 1, "epochs": 1}
    assert set_apart(own, [own | {"seed": 1}]) == {}
    assert set_apart(own, [own | {"amp": "bf16"}]) == {}
    far = {"data": "y", "clients": 2, "rounds": 2, "epochs": 1, "lr": 2.0}
    assert "lr" in set_apart(own, [far])  # of four that differ alike, how it trains stays


@pytest.mark.usefixtures("in_tmp")
def test_a_damaged_run_is_named_with_its_reason_and_the_others_are_shown():
    for seed in range(3):
        write_run(Path(f"runs/seed-{seed}"), seed=seed)
    Path("runs/seed-1/summary.json").write_text("half a")
    end = headway("report", "runs", "--json")
    assert end.code == 0
    assert [d["run"] for d in end.json["damaged"]] == ["runs/seed-1"]
    shown = Reader(Path("runs/report.html").read_text()).text
    assert "1 more run cannot be read and is left out." in shown
    assert "runs/seed-1 : damaged, not shown: runs/seed-1/summary.json" in shown
    plain = headway("report", "runs")
    assert "1 damaged and left out" in plain.out
    assert "runs/seed-1: left out of the page" in plain.err
    for seed in (0, 2):
        Path(f"runs/seed-{seed}/summary.json").write_text("half a")
    end = headway("report", "runs")
    assert (end.code, end.err.count("\n")) == (2, 1)


def test_the_help_says_where_the_page_of_several_folders_goes():
    assert "of several folders in the working directory" in " ".join(headway("report", "--help").out.split())

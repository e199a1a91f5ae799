"""What the page tells apart: damaged runs, calibrated figures, lines that coincide, words and code."""

import json
import re
from pathlib import Path

import pytest
from calling import headway
from report_runs import write_finding, write_run
from test_page import Reader

from headway.report.gather import gather
from headway.report.page import page


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


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


def test_a_calibrated_figure_is_told_from_the_rounds():
    run = write_run(Path("c"), "fedavg+ccvr", accs=(0.5, 0.8))
    plain = Reader(page(gather([run])))
    assert (
        "calibrat"
        not in plain.text.replace("calibrated where the recipe calibrates", "")
        .replace("what a calibration asks", "")
        .replace(" ccvr", "")
        .split("Recipes")[0]
    )
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(
        json.dumps(summary | {"global_acc": 0.9, "calibrated": {"before": 0.8, "after": 0.9}})
    )
    shown = page(gather([run]))
    r = Reader(shown)
    assert "a global accuracy of 90.00 % (calibrated)" in r.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "90.00 (after calibration) c" in r.text
    assert "the rounds' figures (last 5, best, curves, rounds to a target) are before it" in r.text
    assert "After calibration: fedavg+ccvr 90.00 %." in r.text
    (mark,) = [a for a in r.all("path") if a.get("class", "").startswith("after ")]
    dots = [a for a in r.all("circle") if a.get("class", "").startswith("dot ")]
    x, y = (float(v) for v in re.match(r"M([\d.]+) ([\d.]+)", mark["d"]).groups())
    assert x == float(dots[0]["cx"])  # at the last round
    assert y + 5 < float(dots[0]["cy"])  # and above it: 90 % against 80 %


def test_identical_lines_are_dashes_over_one_another():
    for i, name in enumerate(("fedavg", "moon", "fedprox", "scaffold")):
        write_run(Path(name), name, accs=(0.25, 0.5) if i < 3 else (0.3, 0.6))
    r = Reader(page(gather([Path()])))
    lines = [a["class"] for a in r.all("path") if a.get("class", "").startswith("line c") and "M1 6" not in a["d"]]
    # drawn last is best: three coincide from below, and scaffold lies apart
    assert [c.partition(" over")[2] for c in lines[:4]] == ["", "1", "2", ""]
    assert "Lines that coincide are dashes over one another." in r.text


def test_backticks_are_code_and_the_smallest_numbers_are_nothing():
    run = write_run(Path("a"))
    write_finding(run, about="See `headway diagnose` <b>.", summary={"gap": -5.324e-10, "also": 2e-6, "how": "`x` is"})
    write_run(Path("b"), "moon", finished=False)
    shown = page(gather([run, Path("b")]))
    assert "See <code>headway diagnose</code> &lt;b&gt;." in shown
    assert "<code>headway resume</code> continues it" in shown
    assert "`" not in Reader(shown).text
    for wanted in (("gap", "0"), ("also", "2e-06"), ("how", "x is")):
        assert f'<th scope="row">{wanted[0]}</th><td>{wanted[1]}</td>' in shown


def test_the_help_says_where_the_page_of_several_folders_goes():
    assert "of several folders in the working directory" in " ".join(headway("report", "--help").out.split())

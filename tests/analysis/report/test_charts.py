"""Charts of the page: lines that coincide, marks of a calibration, and recipes that are missing from one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from report_pages import Reader, read
from report_runs import write_run

from headway.analysis.report.gather import gather
from headway.analysis.report.page import page


@pytest.mark.usefixtures("in_tmp")
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


@pytest.mark.usefixtures("in_tmp")
def test_identical_lines_are_dashes_over_one_another():
    for i, name in enumerate(("fedavg", "moon", "fedprox", "scaffold")):
        write_run(Path(name), name, accs=(0.25, 0.5) if i < 3 else (0.3, 0.6))
    r = Reader(page(gather([Path()])))
    lines = [a["class"] for a in r.all("path") if a.get("class", "").startswith("line c") and "M1 6" not in a["d"]]
    # drawn last is best: three coincide from below, and scaffold lies apart
    assert [c.partition(" over")[2] for c in lines[:4]] == ["", "1", "2", ""]
    assert "Lines that coincide are dashes over one another." in r.text


def test_a_chart_says_why_a_recipe_is_missing_from_it(tmp_path):
    write_run(tmp_path / "a", "fedavg")
    write_run(tmp_path / "b", "scaffold", loss=None, failed="the loss is not finite from round 1 on")
    write_run(tmp_path / "c", "moon", accs=(None, None), finished=False)
    lonely = write_run(tmp_path / "d", "local", accs=(None, None))
    rows = [json.loads(row) | {"personal_acc": 0.5} for row in (lonely / "metrics.jsonl").read_text().splitlines()]
    (lonely / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = read([tmp_path]).text
    assert "Not drawn, as the loss was never a finite number: scaffold." in text
    assert "Not drawn, as there is no global model: local." in text
    assert text.count("Not drawn, as no round was evaluated: moon.") == 2  # global and personal accuracy
    assert "Without such a model" not in text

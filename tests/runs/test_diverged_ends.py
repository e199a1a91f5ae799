"""A calibration or personalisation whose learning rate is far too large says so, after a run and inside one."""

from __future__ import annotations

import json
import shutil

import pytest
from calling import SMALL, headway

PERSONAL = "3 of 3 clients' models are not finite; use a smaller lr"
CALIBRATED = "the calibrated model is not finite; use a smaller lr"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "fedavg"
    assert headway("run", "fedavg", *SMALL, f"--out={out}").code == 0
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def read(path):
    return json.loads(path.read_text())


def test_personalisation(run):
    end = headway("personalise", run, "--with=ft(lr=1e10)", "--quiet")
    assert end.code == 0
    assert f"note: {PERSONAL}" in end.out
    (summary,) = (run / "personalised").glob("*/summary.json")
    assert read(summary)["personal"]["note"] == PERSONAL
    assert headway("personalise", run, "--with=ft(lr=1e10)", "--json").json["personal"]["note"] == PERSONAL


def test_calibration(run):
    end = headway("calibrate", run, "--with=ccvr(lr=1e10)", "--quiet")
    assert end.code == 0
    assert f"note: {CALIBRATED}" in end.out
    (figures,) = (run / "calibrated").glob("*.json")
    assert read(figures)["note"] == CALIBRATED


@pytest.mark.parametrize(
    ("recipe", "part", "note"),
    [("fedavg+ft(lr=1e10)", "personal", PERSONAL), ("fedavg+ccvr(lr=1e10)", "calibrated", CALIBRATED)],
)
def test_inside_a_run(tmp_path, recipe, part, note):
    end = headway("run", recipe, *SMALL, f"--out={tmp_path / 'a'}")
    assert end.code == 0
    assert f"note: {note}" in end.out
    assert read(tmp_path / "a/summary.json")[part]["note"] == note


def test_inside_a_comparison(tmp_path):
    end = headway("compare", "fedavg", "fedavg+ft(lr=1e10)", *SMALL, f"--out={tmp_path / 'c'}")
    assert f"note: fedavg+ft(lr=1e10), seed 0: {PERSONAL}" in end.out
    assert end.out.count("note:") == 1


def test_what_went_well_has_no_note(run):
    for words in (["personalise", run, "--with=ft"], ["calibrate", run, "--with=ccvr(epochs=2)"]):
        end = headway(*words, "--quiet")
        assert (end.code, "note:" in end.out) == (0, False)
    assert "note" not in (run / "summary.json").read_text()

"""Diagnostics on the page: which figures it shows, what it computes first, and how long work tells where it is."""

import base64
import io
import json
import re
import shlex
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from calling import SMALL, headway
from report_pages import comparison, png, read
from report_runs import write_finding, write_run
from rich.console import Console

from headway.analysis.diagnostics.diagnose import Results
from headway.analysis.report import findings
from headway.analysis.report.gather import gather
from headway.base.errors import CheckpointError, DiskError
from headway.cli.report import ReportProgress


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ---- showing them
def test_diagnostics_are_shown_or_the_command_that_makes_them(tmp_path):
    run = write_run(tmp_path / "a b")
    assert shlex.join(["headway", "diagnose", str(run)]) in read([run]).text
    write_finding(run, png=png())
    r = read([run])
    assert "How long the rows are." in r.text
    assert "rows (12 of 20 rows)" in r.text
    assert r.all("img")[0]["src"].startswith("data:image/png;base64,")


def test_damaged_findings_and_figures_are_passed_over(tmp_path):
    run = write_run(tmp_path / "a")
    write_finding(run, "good", png=b"no picture")
    write_finding(run, "elsewhere", figure="../../secret.png")
    (run / "diagnostics" / "bad.json").write_text("{")
    (run / "diagnostics" / "odd.json").write_text('{"title": 3}')
    r = read([run])
    assert r.text.count("How long the rows are.") == 2
    assert r.all("img") == []


def drawn(seed, size=(64, 64)):
    """A PNG of noise, which no compression makes small."""
    from PIL import Image

    out = io.BytesIO()
    grey = np.random.RandomState(seed).randint(0, 256, size[::-1], dtype=np.uint8)
    Image.fromarray(grey).save(out, format="PNG")
    return out.getvalue()


def shown_figures(r):
    """(recipe, diagnostic) of every picture, by their order on the page."""
    found, name = [], None
    for tag, attrs in r.tags:
        name = attrs["id"].removeprefix("diagnostic-") if tag == "article" else name
        if tag == "figure" and "data-recipe" in attrs and name:
            found.append((attrs["data-recipe"], name))
    return found


def test_figures_are_left_out_diagnostic_by_diagnostic_and_by_name(tmp_path, monkeypatch):
    for name, acc in (("fedavg", 0.5), ("moon", 0.9), ("scaffold", 0.7)):
        run = write_run(tmp_path / name, name, accs=(acc,))
        for diagnostic in ("a", "b", "c"):
            write_finding(run, diagnostic, png=drawn(0))
    size = len(findings.embedded(tmp_path / "moon" / "diagnostics" / "a.png"))
    monkeypatch.setattr(findings, "BUDGET", 7 * size)
    r = read([tmp_path])
    whole = [(recipe, name) for name in "ab" for recipe in ("r0", "r1", "r2")]
    assert shown_figures(r) == [*whole, ("r0", "c")]  # six of seven make two rows; the seventh is the best recipe's
    assert "Left out to keep the page light: the figures of scaffold, seed 0 and fedavg, seed 0" in r.text
    assert r.text.count("Left out") == 1


def test_a_row_that_is_too_large_does_not_take_the_place_of_one_that_fits(tmp_path, monkeypatch):
    for name, acc in (("fedavg", 0.5), ("moon", 0.9)):
        run = write_run(tmp_path / name, name, accs=(acc,))
        write_finding(run, "a", png=drawn(0, (128, 128)))  # four times the pixels of the other
        write_finding(run, "b", png=drawn(1))
    large, small = (len(findings.embedded(tmp_path / "moon" / "diagnostics" / f"{x}.png")) for x in "ab")
    monkeypatch.setattr(findings, "BUDGET", 2 * small + large - 1)
    assert shown_figures(read([tmp_path])) == [("r0", "b"), ("r1", "b")]


def test_further_seeds_are_counted_apart_from_what_is_left_out(tmp_path):
    for seed in range(3):
        write_finding(write_run(tmp_path / str(seed), seed=seed), png=png())
    r = read([tmp_path])
    assert len(r.all("img")) == 1
    assert "2 figures of further seeds" in r.text
    assert "Left out" not in r.text


def test_embedded_figures_are_small_and_true_to_their_colours(tmp_path, monkeypatch):
    from PIL import Image

    field = np.random.RandomState(0).randint(0, 4, (120, 360, 3)).astype(np.uint8)
    field[..., 0] += np.linspace(0, 250, 360).astype(np.uint8)
    field[..., 1] += np.linspace(0, 250, 120).astype(np.uint8)[:, None]
    field[:20, :30] = (0, 0, 255)  # a rare colour, as a legend has it
    Image.fromarray(field).save(tmp_path / "a.png")
    monkeypatch.setattr(findings, "WIDEST", 180)
    text = findings.embedded(tmp_path / "a.png")
    assert findings.embedded(tmp_path / "a.png") == text
    image = Image.open(io.BytesIO(base64.b64decode(text.partition(",")[2])))
    assert (image.size, image.mode) == ((180, 60), "P")
    shown, wanted = (np.asarray(i.convert("RGB"), dtype=int) for i in (image, Image.fromarray(field[::2, ::2])))
    assert abs(shown - wanted)[3:7, 3:12].max() <= 8  # the rare colour
    assert np.median(abs(shown - wanted).max(axis=2)) <= 16


def test_a_figure_of_few_pixels_is_not_made_larger(tmp_path):
    (tmp_path / "a.png").write_bytes(png())
    assert len(base64.b64decode(findings.embedded(tmp_path / "a.png").partition(",")[2])) <= len(png())


# ---- computing them
@pytest.mark.usefixtures("_here")
def test_diagnose_computes_what_a_run_lacks_and_shows_it(monkeypatch):
    monkeypatch.setattr(findings, "DIAGNOSTICS", {"labels": "", "collapse": ""})
    assert headway("run", "fedavg", *SMALL, "--out=a").code == 0
    assert "Neural collapse" not in read([Path("a")]).text
    assert headway("report", "a", "--diagnose").code == 0
    assert {p.name for p in Path("a/diagnostics").glob("*.json")} == {"labels.json", "collapse.json"}
    assert "nc1" in Path("a/report.html").read_text()


@pytest.mark.usefixtures("_here")
def test_diagnose_adds_what_is_missing_or_damaged_and_leaves_the_rest(monkeypatch):
    monkeypatch.setattr(findings, "DIAGNOSTICS", {"labels": "", "norms": "", "collapse": ""})
    assert headway("run", "fedavg", *SMALL, "--out=a").code == 0
    assert headway("diagnose", "a", "--only=labels,norms", "--quiet").code == 0
    kept = Path("a/diagnostics/labels.json").stat().st_mtime_ns
    Path("a/diagnostics/norms.json").write_text("{")
    assert headway("report", "a", "--diagnose").code == 0
    assert {p.name for p in Path("a/diagnostics").glob("*.json")} == {"labels.json", "norms.json", "collapse.json"}
    assert json.loads(Path("a/diagnostics/norms.json").read_text())["title"]
    assert Path("a/diagnostics/labels.json").stat().st_mtime_ns == kept


@pytest.mark.parametrize("error", [CheckpointError("no state is left"), TypeError("a fault"), DiskError("disk full")])
@pytest.mark.usefixtures("_here")
def test_a_run_that_cannot_be_diagnosed_keeps_no_other_from_the_page(monkeypatch, error):
    tried = []

    def diagnose(subject, names, folder, step):
        tried.append(subject)
        if subject == Path("runs/a"):
            raise error
        step(0, names[0])
        write_finding(subject, "labels")
        return Results(subject, folder)

    write_run(Path("runs/a"), "fedavg", failed="the loss is not finite from round 2 on", personal=None)
    write_run(Path("runs/b"), "moon", accs=(0.1,))
    write_run(Path("runs/c"), "scaffold", finished=False)
    monkeypatch.setattr(findings, "diagnose_run", diagnose)
    monkeypatch.setattr(findings, "Subject", SimpleNamespace(with_or_without_model=lambda path, say: path))
    end = headway("report", "runs", "--diagnose")
    assert end.code == 0
    assert sorted(tried) == [Path("runs/a"), Path("runs/b")]  # an unfinished run has nothing to look into
    assert "runs/a: no further diagnostics" in end.err
    assert str(error) in end.err
    assert "How long the rows are." in Path("runs/report.html").read_text()


@pytest.mark.usefixtures("_here")
def test_a_failed_run_is_diagnosed_with_what_it_has():
    """It has lost its model to numbers that are not finite, but not its data and its curves."""
    assert headway("run", "fedavg", *SMALL, "--lr=1e30", "--out=runs/a", "-q").code != 2
    end = headway("report", "runs", "--diagnose")
    assert end.code == 0
    assert sorted(p.stem for p in Path("runs/a/diagnostics").glob("*.json")) == ["labels", "traces"]
    assert len(re.findall('<img[^>]*src="data:image/png', Path("runs/report.html").read_text())) == 2


# ---- progress
def watched(work, terminal):
    """What a terminal, or a file, shows of some work."""
    shown = io.StringIO()
    told = ReportProgress(Console(file=shown, force_terminal=terminal, width=200), quiet=False)
    told._last -= 60  # the second that plain lines wait has passed
    try:
        work(told)
    finally:
        told.end()
    return shown.getvalue()


def test_reading_and_diagnosing_are_bars_on_a_terminal(tmp_path, monkeypatch):
    def diagnose(subject, names, folder, step):
        for done, name in enumerate(names):
            step(done, name)
            time.sleep(0.06)  # the bar is drawn ten times a second
        return Results(subject, folder, failed={"norms": "out of [red]memory"})

    monkeypatch.setattr(findings, "diagnose_run", diagnose)
    monkeypatch.setattr(findings, "Subject", SimpleNamespace(with_or_without_model=lambda path, say: path))
    monkeypatch.setattr(findings, "DIAGNOSTICS", {"labels": "", "norms": "", "collapse": ""})
    root = comparison(tmp_path / "[red]", seeds=1)
    shown = watched(lambda told: findings.diagnose(gather([root], told), told), terminal=True)
    assert "reading" in shown
    assert "0/2" in shown  # runs
    assert "diagnosing" in shown
    assert re.search("[3-5]/6", shown)  # two runs, three diagnostics each
    assert "norms failed: out of [red]memory" in shown
    plain = watched(lambda told: findings.diagnose(gather([root], told), told), terminal=False)
    assert plain.splitlines()[0] == f"reading 1 of 2: {root / 'fedavg' / 'seed-0'}"
    assert "\x1b" not in plain
    assert plain.count("norms failed: out of [red]memory") == 2


def test_nothing_left_to_diagnose_begins_no_bar(tmp_path, monkeypatch):
    monkeypatch.setattr(findings, "DIAGNOSTICS", {"norms": ""})
    run = write_run(tmp_path / "a")
    write_finding(run)
    assert watched(lambda told: findings.diagnose(gather([run]), told), terminal=True) == ""

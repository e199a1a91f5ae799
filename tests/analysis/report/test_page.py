"""The page: what it says, that nothing in a name becomes markup, that it needs nothing else, that it stays the same."""

import base64
import hashlib
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
from calling import headway
from report_pages import EVIL, Reader, comparison, png, read
from report_runs import write_finding, write_run

import headway as package
from headway.analysis.report import svg
from headway.analysis.report.charts import COLUMNS
from headway.analysis.report.gather import gather
from headway.analysis.report.page import page, report
from headway.runs.run import Run

SECTIONS = ["recipes", "leaderboard", "curves", "clients", "cost", "diagnostics", "partition", "origin"]


def test_sections_in_order_and_every_link_leads_somewhere(tmp_path):
    r = read([comparison(tmp_path)])
    assert [a["id"] for a in r.all("section")] == SECTIONS
    ids = [a["id"] for _, a in r.tags if "id" in a]
    assert len(set(ids)) == len(ids)
    assert [a["href"][1:] for a in r.all("a")] == ["main", *SECTIONS]  # the skip link, then the contents
    assert set(SECTIONS) <= set(ids)
    for attrs in (a for _, a in r.tags if "aria-labelledby" in a):
        assert set(attrs["aria-labelledby"].split()) <= set(ids)


def test_the_summary_says_who_is_best_by_how_much_and_whether_that_is_noise(tmp_path):
    text = read([comparison(tmp_path)]).text
    # scaffold ends at 0.75, 0.76, 0.77 and fedavg at 0.5 always: 26 points; t = 0.26 / (0.01 / sqrt 3) = 45, p < 0.001
    assert "scaffold with 76.00 ± 0.82 % , 26.00 points above fedavg" in text.replace("%,", "% ,")
    assert "beyond the noise of seeds (paired t-test over 3 seeds, p < 0.001)" in text


def test_two_seeds_are_too_few(tmp_path):
    text = read([comparison(tmp_path, seeds=2)]).text
    assert "is not tested: 2 shared seeds, and a paired test needs three" in text
    assert "Too few seeds" in text


def test_a_single_run_has_a_page_of_its_own(tmp_path):
    r = read([write_run(tmp_path / "a")])
    assert "fedavg ends with a global accuracy of 50.00 %" in r.text
    assert "One seed does not show the noise" in r.text
    assert r.all("input") == []  # nothing to switch


def test_failed_and_unfinished_runs_are_named_with_their_reason(tmp_path):
    write_run(tmp_path / "a", "fedavg", failed="the loss is not finite from round 2 on", personal=None)
    write_run(tmp_path / "b", "moon", accs=(0.1, 0.2), finished=False)
    text = read([tmp_path]).text
    assert "failed: the loss is not finite from round 2 on" in text
    assert "unfinished: 2 of 2 rounds" in text
    assert "1 run of 2 failed" in text


def test_runs_under_other_settings_are_not_called_comparable(tmp_path):
    write_run(tmp_path / "a", "fedavg", lr=0.1)
    write_run(tmp_path / "b", "moon", lr=0.2)
    text = read([tmp_path]).text
    assert "Careful: the runs differ in lr" in text
    assert "Not comparable as they stand." in text


def test_without_local_training_the_page_says_what_gains_are_measured_against(tmp_path):
    root = comparison(tmp_path)
    assert "Local training is not among the runs" in read([root]).text
    write_run(root / "local" / "seed-0", "local", 0, accs=(None, None), personal=(0.5, 0.5, 0.5))
    text = read([root]).text
    assert "Local training is not among the runs" not in text
    assert "Who gains and who loses against local" in text


# ---- safety


def test_nothing_comes_from_elsewhere_and_only_hashed_code_runs(tmp_path):
    run = write_run(tmp_path / "a")
    write_finding(run, png=png())
    text = page(gather([run]))
    r = Reader(text)
    style, script = (re.search(f"<{tag}>(.*?)</{tag}>", text, re.S)[1] for tag in ("style", "script"))
    policy = next(a["content"] for a in r.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    for kind, code in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(html.unescape(code).encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not [name for _, attrs in r.tags for name in attrs if name == "style" or name.startswith("on")]
    assert not re.search(r"(?:src|href)=\"(?!data:image/png;base64,|#)", text)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "url(" not in style


def test_every_chart_has_words_and_every_picture_an_alternative(tmp_path):
    run = write_run(tmp_path / "x" / "a")
    write_finding(run, png=png())
    r = read([comparison(tmp_path)])
    charts = [a for a in r.all("svg") if a.get("role") == "img"]
    assert len(charts) >= 8
    assert all(a.get("aria-labelledby") for a in charts)
    assert len(r.all("title")) >= len(charts)
    assert all(a.get("aria-hidden") == "true" for a in r.all("svg") if a.get("role") != "img")
    assert [a["alt"] for a in r.all("img")] == ["Two bars."]


def test_the_same_runs_give_the_same_bytes(tmp_path):
    root = comparison(tmp_path)
    write_finding(root / "fedavg" / "seed-0", png=png())
    first = page(gather([root]))
    assert page(gather([root])) == first


def test_colours_stand_out_from_their_paper():
    css = (Path(svg.__file__).parent / "page.css").read_text()
    for block in css.split("@media screen")[:2]:
        named = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for name in [f"c{i}" for i in range(svg.COLOURS)]:
            assert contrast(named[name], named["card"]) >= 3, name  # WCAG 1.4.11
        for name in ("ink", "soft", "accent", "good", "bad", "warn"):
            assert contrast(named[name], named["card"]) >= 4.5, name  # WCAG 1.4.3


def contrast(a, b):
    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


# ---- size
def test_a_thousand_clients_and_rounds_stay_below_three_megabytes(tmp_path):
    rng = np.random.RandomState(0)
    counts = rng.randint(0, 9, (1000, 10)).tolist()
    for name in ("fedavg", "moon", "scaffold", "local", "fedetf", "fedprox"):
        accs = (rng.rand(1000) if name != "local" else np.full(1000, None)).tolist()
        write_run(tmp_path / name, name, accs=accs, personal=rng.rand(1000).tolist(), counts=counts)
    text = page(gather([tmp_path]))
    assert len(text.encode()) < 3_000_000
    assert f"{COLUMNS} of 1,000 clients" in Reader(text).text


# ---- making it again


# ---- axes


# ---- the command
@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_here")
def test_the_command_writes_beside_the_runs_and_replaces_its_own_page():
    comparison(Path("runs"))
    end = headway("report", "runs", "--title", "Mine & yours")
    assert (end.code, end.out.startswith("runs/report.html: 6 runs, ")) == (0, True)
    first = Path("runs/report.html").read_bytes()
    assert b"<h1>Mine &amp; yours</h1>" in first
    assert headway("report", "runs", "--title", "Mine & yours").code == 0
    assert Path("runs/report.html").read_bytes() == first


@pytest.mark.usefixtures("_here")
def test_json_has_the_leaderboard_and_nothing_else_is_printed():
    comparison(Path("runs"))
    end = headway("report", "runs/fedavg", "runs/scaffold", "--json", "--out=x/page.html")
    assert (end.code, end.err, end.json["report"]) == (0, "", "x/page.html")
    assert [row["recipe"] for row in end.json["leaderboard"]] == ["scaffold", "fedavg"]
    assert end.json["leaderboard"][0]["tests"]["global"]["mark"] == "better"
    assert end.json["bytes"] == Path("x/page.html").stat().st_size


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["nothing"], "there is no such folder"),
        (["empty"], "no run is in this folder"),
        ([""], "it is empty"),
        (["a", "--out", "notes.html"], "it is not a report of headway"),
        (["a", "--out", "empty"], "it is a folder"),
        (["a", "--out", "page.pdf"], "ends in .html"),
        (["a", "--out", ""], "such as --out report.html"),
        (["a", "--title", " "], "title=' ': it is empty"),
        (["unborn"], "has not ended a single round"),
        (["broken"], "config.json is damaged"),
    ],
)
@pytest.mark.usefixtures("_here")
def test_a_wrong_request_is_one_sentence_and_writes_nothing(words, wanted):
    write_run(Path("a"))
    write_run(Path("unborn"), accs=(), finished=False)
    (write_run(Path("broken")) / "config.json").write_text("{")
    Path("empty").mkdir()
    Path("notes.html").write_text("mine")
    before = {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}
    end = headway("report", *words)
    assert (end.code, end.out) == (2, "")
    assert wanted in end.err
    assert end.err.count("\n") == 1
    assert {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()} == before


@pytest.mark.usefixtures("_here")
def test_overwrite_replaces_a_file_that_is_no_report():
    write_run(Path("a"))
    Path("notes.html").write_text("mine")
    assert headway("report", "a", "--out=notes.html", "--overwrite").code == 0
    assert "headway report" in Path("notes.html").read_text()


@pytest.mark.usefixtures("_here")
def test_real_runs_of_every_kind_from_python():
    task = {"clients": 3, "rounds": 2, "train_size": 200, "test_size": 80, "model": "mlp_small"}
    table = package.compare(["fedavg", "fedtc", "local", "fedavg+ccvr"], seeds=[0], out="c", **task)
    assert table.report() == Path("c/report.html")
    r = Reader(Path("c/report.html").read_text())
    assert {"fedavg", "fedtc", "local", "fedavg+ccvr"} <= set(r.text.split())
    one = Run(Path("c/fedtc/seed-0"))
    assert one.report() == Path("c/fedtc/seed-0/report.html")
    assert report([one.path], "d.html") == Path("d.html")
    assert Path("d.html").read_bytes() == (one.path / "report.html").read_bytes()
    central = package.run("centralized", out="e", **task)
    assert central.report().exists()
    assert json.loads((one.path / "summary.json").read_text())["failed"] is None


@pytest.mark.usefixtures("_here")
def test_classes_are_called_by_their_names_where_the_run_has_them():
    write_run(Path("a"))
    whole = json.loads(Path("a/partition.json").read_text())
    assert len(whole["clients"][0]["counts"]) == 2
    whole["class_names"] = [EVIL, "left ear"]
    Path("a/partition.json").write_text(json.dumps(whole))
    shown = read([Path("a")])
    assert "left ear" in shown.text
    assert "<script>alert(1)</" in shown.text  # as text, shortened
    assert len(shown.all("script")) == 1

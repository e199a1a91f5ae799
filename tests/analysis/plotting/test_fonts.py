"""Figures say which run they are of, and write class names in fonts that have their letters."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from calling import headway
from diagnosed import blobs, finished, task_on
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from PIL import Image

from headway.analysis.diagnostics import diagnose, finding
from headway.analysis.diagnostics.finding import Finding, footer
from headway.analysis.plotting import fonts as lettering
from headway.analysis.plotting.fonts import lettering_of, written
from headway.analysis.plotting.style import blank, label

CAT, DOG = "猫", "犬"
NAMES = ("plain", CAT, DOG + " dog")


@pytest.fixture(autouse=True)
def _no_other_fonts(monkeypatch):
    """Whatever this machine has, only the usual font and that of the tests count."""
    real = lettering.installed
    monkeypatch.setattr(lettering, "installed", lambda: [font for font in real() if font[0] == "Signs of Tests"])
    lettering_of.cache_clear()
    yield
    lettering_of.cache_clear()


@pytest.fixture
def font(tmp_path):
    """A font, installed for the length of a test, that has the two signs and nothing else."""
    signs = {ord(CAT): "cat", ord(DOG[0]): "dog"}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", *signs.values()])
    builder.setupCharacterMap(signs)
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for point in ((500, 800), (900, 0)):
        pen.lineTo(point)
    pen.closePath()
    shape = pen.glyph()
    builder.setupGlyf(dict.fromkeys((".notdef", *signs.values()), shape))
    builder.setupHorizontalMetrics(dict.fromkeys((".notdef", *signs.values()), (1000, 100)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Signs of Tests", "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=800, usWeightClass=400)
    builder.setupPost()
    builder.save(tmp_path / "signs.ttf")
    before = list(fontManager.ttflist)
    fontManager.addfont(str(tmp_path / "signs.ttf"))
    yield "Signs of Tests"
    fontManager.ttflist[:] = before


def legend_of(names) -> Figure:
    figure = blank(4, 3)
    axes = figure.add_subplot()
    for name in names:
        axes.plot([0, 1], label=label(name))
    axes.legend()
    return figure


# ---- letters
def test_a_font_that_has_the_letters_is_fallen_back_to(font, capsys):
    assert lettering_of(NAMES).fonts == (font,)
    with lettering.lettering(NAMES), warnings.catch_warnings():
        warnings.simplefilter("error")  # the plotter's own about letters it lacks
        legend_of(NAMES).savefig(io.BytesIO())
        assert label(CAT) == CAT
    assert capsys.readouterr().err == ""


def test_without_such_a_font_the_class_is_its_number_and_one_line_says_so(capsys):
    for _ in range(3):  # figures of one look
        with lettering.lettering(NAMES), warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [label(n) for n in NAMES] == ["plain", "1", "2"]
            legend_of(NAMES).savefig(io.BytesIO())
    err = capsys.readouterr().err
    assert err.startswith("headway: warning: no font of this machine can write 2 of 3 class names, such as")
    assert err.count("\n") == 1
    assert written(CAT) == CAT  # outside, a name is a name


def test_letters_of_the_usual_font_need_no_search(monkeypatch):
    monkeypatch.setattr(lettering, "installed", None)  # it would fail
    assert lettering_of(("Äpfel", "яблоки", "0", "")).fonts == ()


def test_a_font_whose_file_is_gone_is_passed_over(monkeypatch, tmp_path):
    monkeypatch.setattr(lettering, "installed", lambda: [("gone", str(tmp_path / "gone.ttf"))])
    assert set(lettering_of(NAMES).numbers) == set(NAMES[1:])


def test_diagnose_and_partition_warn_in_one_line_and_tables_keep_the_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for c, name in enumerate(("cats", CAT, DOG)):
        for part in range(12):
            folder = Path("images") / name
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), 20 * part + c, dtype=np.uint8)).save(folder / f"{part}.png")
    few = ("--data=images", "--clients=2", "--rounds=1", "--model=mlp_small")
    end = headway("partition", "--data=images", "--clients=2", "--out=p")
    assert (end.code, end.err.count("headway: warning: no font")) == (0, 1)
    lettering_of.cache_clear()
    assert headway("run", "fedavg", *few, "--quiet", "--out=a").code == 0
    end = headway("diagnose", "a", "--only=labels,per_class,classifier_norms", "--quiet")
    assert end.code == 0
    assert (end.err.count("\n"), end.err.count("headway: warning: no font")) == (1, 1)
    assert CAT in Path("a/diagnostics/labels.counts.csv").read_text()


# ---- which run
def footers(monkeypatch, subject, names, folder) -> dict[str, str]:
    """What stands under each figure."""
    seen: list[str] = []
    whole = finding.footer

    def watched(width, run):
        figure = whole(width, run)
        seen.append(figure.texts[0].get_text())
        return figure

    monkeypatch.setattr(finding, "footer", watched)
    results = diagnose.diagnose(subject, names, folder, lambda done, name: None)
    assert not results.failed
    return dict(zip([f.name for f in results.findings], seen, strict=True))


def test_every_figure_says_which_run_it_is_of(tmp_path, monkeypatch):
    subject = finished("fedprox(mu=0.1)", tmp_path / "run", seed=3)
    names = ["labels", "norms", "per_class", "classifier_norms"]
    assert footers(monkeypatch, subject, names, tmp_path) == dict.fromkeys(names, "fedprox(mu=0.1), digits, seed 3")


def test_own_data_is_named_too(tmp_path, monkeypatch):
    subject = finished("fedavg", tmp_path / "run", task_on(blobs(3)))
    assert footers(monkeypatch, subject, ["norms"], tmp_path) == {"norms": "fedavg, blobs, seed 0"}


@pytest.mark.parametrize("width", [3.0, 5.0, 15.0])
def test_a_long_recipe_is_shortened_and_data_and_seed_stay(width):
    figure = footer(width, ("+".join(["fedavg(momentum=0.123456)"] * 20), "digits", "seed 0"))
    text = figure.texts[0]
    box = text.get_window_extent()
    assert text.get_text().startswith("fedavg(momentum")
    assert text.get_text().endswith("…, digits, seed 0")
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert 0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert box.width > 0.9 * figure.bbox.width


def test_the_footer_changes_nothing_in_the_drawing():
    plain = Finding("a", "a", "About.", {}, draw=lambda: legend_of("ab"))
    small = Image.open(io.BytesIO(plain.picture()))
    large = Image.open(io.BytesIO(replace(plain, run=("fedavg", "digits", "seed 0")).picture()))
    assert large.size == (small.width, small.height + round(finding.FOOTER * finding.DPI))
    assert np.array_equal(np.asarray(large)[: small.height], np.asarray(small))
    assert np.asarray(large)[small.height :].min() < 200  # something is written


def test_markup_in_names_is_only_text():
    figure = footer(6.0, ("a$b$", "d\n_{x}", "seed 0"))
    assert figure.texts[0].get_text() == "a$b$, d _{x}, seed 0"
    figure.savefig(io.BytesIO())

"""Markup: text of others is no markup, backticks are code, and the smallest numbers are nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_pages import EVIL, Reader, png
from report_runs import write_finding, write_run

from headway.analysis.report.gather import gather
from headway.analysis.report.page import page


@pytest.mark.usefixtures("in_tmp")
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


def test_no_name_becomes_markup(tmp_path):
    run = write_run(tmp_path / "a <b>&", label=EVIL, failed=EVIL, data=EVIL.replace("\x00", ""))
    write_finding(run, title=EVIL, about=EVIL, alt=EVIL, summary={EVIL: EVIL}, tables={EVIL: [{EVIL: EVIL}]}, png=png())
    write_run(tmp_path / "b", "moon", label="[bold]" + EVIL)
    text = page(gather([tmp_path]), EVIL)
    r = Reader(text)
    assert len(r.all("script")) == 1
    assert "<script>alert(1)" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;") > 10
    assert "\x00" not in text
    assert "\u202e" not in text

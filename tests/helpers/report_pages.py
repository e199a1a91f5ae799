"""Report pages as their tests read them."""

from __future__ import annotations

import io
from html.parser import HTMLParser

import numpy as np
from report_runs import write_run

from headway.analysis.report.gather import gather
from headway.analysis.report.page import page

EVIL = "<script>alert(1)</script>\"'&\x00\u202e"


class Reader(HTMLParser):
    """Tags with their attributes, all text, and whether every tag that opens also closes, in order."""

    VOID = ("meta", "input", "img", "br")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.words, self.open = [], [], []
        self.feed(text)
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        assert len({k for k, _ in attrs}) == len(attrs), (tag, attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attrs for t, attrs in self.tags if t == tag]


def png():
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(out, format="PNG")
    return out.getvalue()


def comparison(tmp_path, seeds=3):
    for seed in range(seeds):
        write_run(tmp_path / "fedavg" / f"seed-{seed}", "fedavg", seed, accs=(0.25, 0.5))
        write_run(
            tmp_path / "scaffold" / f"seed-{seed}",
            "scaffold",
            seed,
            accs=(0.5, 0.75 + seed / 100),
            personal=(0.5, 1, 1),
        )
    return tmp_path


def read(paths, **more):
    return Reader(page(gather(paths), **more))

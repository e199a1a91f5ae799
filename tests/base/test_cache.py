"""Where files are kept between runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.base.cache import cache_dir


def test_the_cache_folder_comes_from_the_argument_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "env"))
    assert cache_dir(tmp_path / "given") == tmp_path / "given"
    assert cache_dir() == tmp_path / "env"
    monkeypatch.delenv("HEADWAY_CACHE")
    assert cache_dir().name == "headway"

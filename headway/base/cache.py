"""The folder on this machine where downloads, decoded data, compiled code and timings are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir(cache: Path | None = None) -> Path:
    """The folder given, else HEADWAY_CACHE, else the user's cache folder."""
    from platformdirs import user_cache_dir

    return Path(cache or os.environ.get("HEADWAY_CACHE") or user_cache_dir("headway"))

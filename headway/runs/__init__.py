"""Runs: from a request to a finished run directory, continuing one, and reading one back.

Modules: options, watched, run, runner, directory, contents, lock, identity, rebuild, checkpoint, finish, posthoc,
compare, figures, search, monitor, tracking/, cluster_jobs. They may import engines and every folder below; the methods
`report` of Run and Comparison also import analysis.report.page.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.runs.run import Run


class _CallablePackage(ModuleType):
    """`headway.runs(...)` is a public function and `headway.runs` is this package: the package answers the call."""

    def __call__(self, folder: str | Path = "runs", where: str | Sequence[str] = ()) -> list[Run]:
        from headway.runs.search import runs  # which imports this package

        return runs(folder, where)


sys.modules[__name__].__class__ = _CallablePackage

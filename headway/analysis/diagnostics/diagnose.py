"""Run several diagnostics of one run. Each is saved at once, so that one that fails does not lose the others."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from headway.analysis.diagnostics.catalogue import WITHOUT_MODEL, diagnostic
from headway.analysis.diagnostics.finding import Finding, NotApplicable, forget
from headway.analysis.diagnostics.subject import Subject
from headway.base.errors import DiskError, HeadwayError, to_copy
from headway.engines.memory import give_back

FEWER = to_copy("diagnose", "RUN", "--clients", 5)  # a command in Python too, which has no such call
NO_MEMORY = f"there is not enough memory; analyse fewer clients with {FEWER}, or use a larger machine"


@dataclass
class Results:
    """What the diagnostics of one run gave."""

    run: Path
    folder: Path
    findings: list[Finding] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # name -> why it does not apply to this run
    failed: dict[str, str] = field(default_factory=dict)  # name -> what went wrong
    bugs: list[str] = field(default_factory=list)  # of the failed, those that an error in headway caused
    no_model: str = ""  # why diagnostics that need a trained model were skipped

    def record(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "folder": str(self.folder),
            "findings": {f.name: dict(f.summary) for f in self.findings},
            "skipped": self.skipped,
            "failed": self.failed,
        }


def diagnose(subject: Subject, names: Sequence[str], folder: Path, step: Callable[[int, str], None]) -> Results:
    """Compute these diagnostics and save them in the folder.

    `step` is called with the number that are done and the name of the next one.
    """
    results = Results(subject.saved.run.path, folder, no_model=subject.no_model)
    for done, name in enumerate(names):
        step(done, name)
        give_back()
        why = ""
        try:
            if subject.no_model and name not in WITHOUT_MODEL:
                raise NotApplicable(subject.no_model)
            finding = replace(diagnostic(name)(subject), run=subject.title, class_names=subject.names)
            finding.save(folder)
            results.findings.append(finding)
            continue
        except NotApplicable as reason:
            results.skipped[name] = str(reason)
        except ModuleNotFoundError as error:
            results.skipped[name] = f"it needs {error.name}, which is not installed"
        except DiskError:
            raise
        except HeadwayError as error:
            why = str(error)
        except (MemoryError, torch.OutOfMemoryError):
            why = NO_MEMORY
        except Exception as error:  # reported at the end, when all others are done
            why = NO_MEMORY
            if not out_of_memory(error):
                why = error_text(error)
                results.bugs.append(name)
        if why:
            results.failed[name] = why
        forget(folder, name)  # an earlier finding of this name is out of date
    step(len(names), "")
    return results


def error_text(error: Exception) -> str:
    """The error with its kind, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}".split()) + at


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: torch raises a plain RuntimeError for that on a CPU."""
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("not enough memory", "can't allocate memory")
    )

"""Several diagnostics of one run, each saved as soon as it is known; one that fails does not lose the others."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from headway.diagnostics.catalogue import WITHOUT_MODEL, diagnostic
from headway.diagnostics.finding import Finding, NotApplicable, forget
from headway.diagnostics.subject import Subject
from headway.engine.memory import give_back
from headway.errors import DiskError, HeadwayError

OWN = "headway.diagnostics"


@dataclass
class Looked:
    """What came of looking at one run."""

    run: Path
    folder: Path
    findings: list[Finding] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # name -> why there is nothing to look at
    failed: dict[str, str] = field(default_factory=dict)  # name -> what went wrong
    bugs: list[str] = field(default_factory=list)  # those of the failed that are nobody's fault but headway's
    no_model: str = ""  # why what needs a trained model was skipped

    def record(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "folder": str(self.folder),
            "findings": {f.name: dict(f.summary) for f in self.findings},
            "skipped": self.skipped,
            "failed": self.failed,
        }


def look(subject: Subject, names: Sequence[str], folder: Path, step: Callable[[int, str], None]) -> Looked:
    """The diagnostics of these names, saved into the folder; `step` hears how many are done and which one is next."""
    looked = Looked(subject.saved.run.path, folder, no_model=subject.no_model)
    for done, name in enumerate(names):
        step(done, name)
        give_back()
        why = ""
        try:
            if subject.no_model and name not in WITHOUT_MODEL:
                raise NotApplicable(subject.no_model)
            finding = replace(diagnostic(name)(subject), run=subject.title, class_names=subject.names)
            finding.save(folder)
            looked.findings.append(finding)
            continue
        except NotApplicable as reason:
            looked.skipped[name] = str(reason)
        except ModuleNotFoundError as error:
            looked.skipped[name] = f"it needs {error.name}, which is not installed"
        except DiskError:
            raise
        except HeadwayError as error:
            why = str(error)
        except (MemoryError, torch.OutOfMemoryError):
            why = "there is not enough memory; look at fewer clients with --clients, or on a larger machine"
        except Exception as error:  # told at the end, when everything else is done
            why = "there is not enough memory; look at fewer clients with --clients, or on a larger machine"
            if not out_of_memory(error):
                why = told(error)
                looked.bugs.append(name)
        if why:
            looked.failed[name] = why
        forget(folder, name)  # what an earlier look left there is no longer what this one says
    step(len(names), "")
    return looked


def told(error: Exception) -> str:
    """What was raised, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}".split()) + at


def out_of_memory(error: Exception) -> bool:
    """torch has no class of its own for a CPU that has no memory left."""
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("not enough memory", "can't allocate memory")
    )

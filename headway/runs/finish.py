"""The end of a run: calibration, personal models and their files, the figures of summary.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.base.names import in_body
from headway.core.compatibility import two_headed
from headway.core.recipe import Recipe
from headway.core.state import Server
from headway.metrics.accuracy import GlobalScore, PersonalScore, curve_figures, failure, global_score, rounds_to
from headway.models.net import Net
from headway.runs.directory import save_tensors
from headway.training import rounds

if TYPE_CHECKING:
    from headway.training.engine import Engine
    from headway.training.task import Task


def calibration_note(net: Net) -> dict[str, str]:
    """The note on a calibrated model that is not finite: its accuracy alone would not show it."""
    broken = (net.params() | net.stats()).not_finite()  # a fixed buffer may be infinite, such as a mask
    return {} if not broken else {"note": "the calibrated model is not finite; use a smaller lr"}


def notes_in(summary: Mapping[str, Any]) -> list[str]:
    """The notes of a summary on calibration and personal models."""
    parts = (summary.get("calibrated"), summary["personal"])
    return [part["note"] for part in parts if part and "note" in part]


@dataclass(frozen=True)
class Evaluated:
    """What an evaluated round showed of the server's model."""

    score: GlobalScore
    received: PersonalScore  # every client's model as it receives the global one


@dataclass(frozen=True)
class Outcome:
    """Computes, once after the last round, what summary.json and the model files hold."""

    server: Server
    recipe: Recipe
    task: Task
    engine: Engine
    ids: Sequence[int]  # the clients evaluated personally
    out: Path
    say: Callable[[str], None]
    known: Evaluated | None = None  # of the last round, if it was evaluated

    def score(self, server: Server, net: Net) -> GlobalScore:
        """The model's score on the global test set; known if it is the model of the last round."""
        if self.known is not None and server is self.server:
            return self.known.score
        return global_score(net, self.engine, self.task)

    def figures(self, rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], Net]:
        """The summary without sums over rounds, and the final model."""
        server, recipe, task = self.server, self.recipe, self.task
        start = rounds.calibration_start(server, recipe, self.engine.store)
        net = rounds.global_net(start, recipe, task)
        score = self.score(start, net)
        shared = rounds.has_global_model(recipe, task)
        judged = (
            "global_acc" if shared and recipe.share("head.weight") else "personal_acc"
        )  # a head that is not shared is not trained
        failed = failure(rows, task.classes, judged)
        diverged = any(row["diverged"] for row in rows)
        summary: dict[str, Any] = {
            "recipe": str(recipe),
            "label": recipe.title,
            "seed": task.seed,
            "rounds": server.round,
            "failed": failed,
            "global_acc": score.acc if shared else None,
            **curve_figures(rows),
            "rounds_to": rounds_to(rows),
            "global_loss": score.loss if shared else None,
            "balanced_acc": score.balanced if shared else None,
            "per_class": score.per_class if shared else None,
        }
        if "averaged model" in recipe.provides():
            raw = rounds.global_net(server, recipe, task, iterate=True)
            summary["iterate_acc"] = global_score(raw, self.engine, task).acc
        if recipe.acting("calibrate") and not diverged:
            self.say("calibrating")
            sizes: list[int] = []
            net = rounds.finish(server, recipe, task, self.engine, sizes)
            summary["survey_bytes_up"] = sum(sizes)
            summary["survey_bytes_down"] = len(sizes) * (server.w.only(in_body).nbytes() + server.stats.nbytes())
            after = global_score(net, self.engine, task)
            figures = {"loss": after.loss, "balanced_acc": after.balanced, "per_class": after.per_class}
            before = {f"{name}_before": summary["global_loss" if name == "loss" else name] for name in figures}
            note = calibration_note(net)
            summary["calibrated"] = {"before": score.acc, "after": after.acc, **figures, **before, **note}
            summary |= {
                "global_acc": after.acc,
                "global_loss": after.loss,
            }  # the figures are those of model.safetensors
            summary |= {"balanced_acc": after.balanced, "per_class": after.per_class}
        start = rounds.predicting(server, recipe)
        if task.settings.personal_from == "calibrated":
            start = replace(start, w=net.params().copy())
        return summary | self.personal(diverged, start), net

    def personal(self, diverged: bool = False, start: Server | None = None) -> dict[str, Any]:
        """The personal models on their clients' test data, after every stage that makes them personal."""
        recipe, task = self.recipe, self.task
        start = start or rounds.predicting(self.server, recipe)
        if not self.ids or diverged:
            return {"personal": None}
        self.say("personal models")
        phases = rounds.personal_phases(recipe, task)
        has_own = rounds.has_own_model(recipe, task)
        keep = bool(has_own or recipe.acting("personalise"))
        if keep:
            (self.out / "clients").mkdir(exist_ok=True)
        results, broken, fixed = [], 0, task.net(recipe).fixed().keys()
        same = self.known is not None and task.settings.personal_from == "global"
        known = self.known.received.correct if same and self.known is not None else None
        cast = rounds.cast_of(start, recipe)
        for result in self.engine.personal(recipe, task, cast, self.ids, phases, keep, known):
            if keep:
                save_tensors(
                    result.tensors, self.out / "clients" / f"{result.client}.safetensors", str(recipe), recipe.head()
                )
            broken += bool(result.tensors.not_finite() - fixed)
            results.append(
                replace(result, tensors=type(result.tensors)())
            )  # they are on disk: do not collect them in memory
        n = {r.client: r.n for r in results}
        final = PersonalScore({r.client: r.last for r in results}, n)
        stages = {
            stage: PersonalScore({r.client: r.correct[stage] for r in results}, n).mean for stage in results[0].correct
        }
        own: dict[str, Any] = {
            "mean": final.mean,
            "std": final.std,
            "pooled": final.pooled,
            "clients": len(results),
            "of": len(task.data),
            "stages": stages,
            "per_client": {str(k): acc for k, acc in final.accs.items()},
        }
        if broken:
            verb = "is" if broken == 1 else "are"
            own["note"] = f"{broken} of {len(results)} clients' models {verb} not finite; use a smaller lr"
        return {"personal": own} | self.mean_head()

    def mean_head(self) -> dict[str, Any]:
        """Where heads are personal, the global accuracy with their mean: the global head is not trained."""
        mean = rounds.with_mean_of_personal(self.server, self.engine.store)
        if mean is self.server or two_headed(self.recipe):  # a second classifier is no part of the global model
            return {}
        net = rounds.global_net(mean, self.recipe, self.task)
        return {"global_acc_mean_of_personal": global_score(net, self.engine, self.task).acc}

"""Which of a run's models is meant: global, calibrated or a client's own; the run's, or one made of it later."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.base.errors import CheckpointError, ConfigError, HeadwayError, nearest, to_copy
from headway.base.text import slug
from headway.base.wording import option
from headway.core.recipe import spell
from headway.methods import recipe as parse_recipe
from headway.models.net import Net
from headway.runs.directory import read_model
from headway.runs.posthoc import load
from headway.runs.rebuild import recorded_recipe
from headway.runs.run import Run
from headway.training import rounds
from headway.training.client import personal_net
from headway.training.task import Task

FORM = re.compile(r"(global|calibrated|client):?(\d*)(?:@(.+))?")


@dataclass(frozen=True)
class Chosen:
    """A model, and how it is asked."""

    net: Net
    what: str  # global, calibrated, client 3
    recipe: str
    head: dict[str, Any]  # the shape of its head
    personal: bool = False  # it answers as the client would
    note: str | None = None

    @property
    def file_name(self) -> str:
        return slug(self.what.replace(" ", "-"))


def choose(run: Run, text: str | None, task: Task) -> Chosen:
    """`global`, `calibrated`, `client:3`; @NAME names one of several. Nothing: what the run ended with."""
    own = "calibrated" in run.summary
    if text is None:
        return of_file(
            run.path / "model.safetensors", "calibrated" if own else "global", task, note=untrained(run, task)
        )
    parts = FORM.fullmatch(text.strip())
    if not parts or (parts[1] == "client") != bool(parts[2]) or (parts[1] == "global" and parts[3]):
        raise ConfigError(
            f"model={text or repr(text)}: write global, calibrated or client:3, and @NAME for one of several"
        )
    kind, number, name = parts[1], parts[2], parts[3]
    if kind == "client":
        return of_client(run, int(number), name, task)
    if kind == "calibrated":
        return calibrated(run, name, own, task)
    if not own:
        return of_file(run.path / "model.safetensors", "global", task, note=untrained(run, task))
    saved = load(run.path, task=task)  # model.safetensors is the calibrated one: the checkpoint has the model before
    net = rounds.global_net(saved.server, saved.recipe, task).cpu().eval()
    return Chosen(net, "global", str(saved.recipe), net.head_spec, note=untrained(run, task))


def untrained(run: Run, task: Task) -> str | None:
    """What must be known of a global model whose parts clients keep; where nothing is shared there is none."""
    recipe = recorded_recipe(run.path, run.config)
    if not rounds.has_global_model(recipe, task):
        raise ConfigError(
            f"model=global: {recipe.title} shares no body, so there is no global model; "
            f"use {option('model', 'client:0')}"
        )
    kept = [name for name in task.first_params(recipe) if not recipe.share(name)]
    if "head.weight" in kept and "calibrated" not in run.summary:
        named = option("model", "client:K")
        return f"clients of this recipe keep their classifiers, so the global one is untrained; {named} has one"
    return None


def calibrated(run: Run, name: str | None, own: bool, task: Task) -> Chosen:
    """Of a later `headway calibrate` the newest or the named one, else the run's own."""
    made = newest_first((run.path / "calibrated").glob("*.safetensors"))
    found = named(made, name, lambda p: p.stem, "calibration") if made and name != "run" else None
    if found:
        return of_file(found, "calibrated", task, f"calibrated {found.stem}")
    if not own or (name and name != "run"):
        raise CheckpointError(
            f"model=calibrated: {run.path} was never calibrated{f' with {name}' if name else ''}; "
            f"{to_copy('calibrate', run.path, '--with', 'ccvr')} first"
        )
    return of_file(run.path / "model.safetensors", "calibrated", task)


def of_client(run: Run, k: int, name: str | None, task: Task) -> Chosen:
    """The run's own personal models, or those of a later `headway personalise`."""
    if k >= len(task.data):
        raise ConfigError(f"model=client:{k}: there is no such client; the run has clients 0 to {len(task.data) - 1}")
    own = run.path / "clients"
    made = newest_first((run.path / "personalised").glob("*/clients"))
    if name and name != "run":
        folder = named(made, name, lambda p: p.parent.name, "personalisation")
    else:
        folder = own if own.is_dir() or not made or name else made[0]
    if folder is None or not folder.is_dir():
        if not name and (made_now := rebuild_personal(run, k, task)):
            return made_now
        raise CheckpointError(
            f"model=client:{k}: {run.path} has no personal models{f' of {name}' if name else ''}; "
            f"{to_copy('personalise', run.path, '--with', 'ft')} makes them"
        )
    file = folder / f"{k}.safetensors"
    if not file.exists():
        raise CheckpointError(
            f"model=client:{k}: it has no model of its own, as clients without training or test data have none; "
            f"choose one of {folder}"
        )
    what = f"client {k}" if folder == own else f"client {k} {folder.parent.name}"
    return of_file(file, what, task, personal=True)


def rebuild_personal(run: Run, k: int, task: Task) -> Chosen | None:
    """The model of a client that no file holds: its pieces keep no state, its head predicts per client."""
    recipe = recorded_recipe(run.path, run.config)
    if not task.net(recipe).head.own_prediction or not task.data.size(k):
        return None
    saved = load(run.path, task=task)
    start = rounds.predicting(saved.server, recipe)
    if task.settings.personal_from == "calibrated":
        start = replace(start, w=start.w | read_model(run.path / "model.safetensors")[0].only(start.w.__contains__))
    cast = rounds.cast_of(start, recipe)
    client = saved.engine.client(recipe, task, cast, k)
    stages = list(personal_net(recipe, task, cast, client, rounds.personal_phases(recipe, task)))
    return Chosen(stages[-1][1].cpu().eval(), f"client {k}", str(recipe), recipe.head(), personal=True)


def of_file(
    path: Path, kind: str, task: Task, what: str | None = None, *, personal: bool = False, note: str | None = None
) -> Chosen:
    tensors, header = read_model(path)
    net = task.net_of(header["head"]).cpu().load(tensors).eval()
    return Chosen(net, what or kind, header["recipe"], header["head"], personal, note)


def newest_first(paths: Any) -> list[Path]:
    return sorted(paths, key=lambda p: (-p.stat().st_mtime_ns, p.name))


def named(paths: list[Path], name: str | None, called: Any, kind: str) -> Path | None:
    """The newest, or the one of this name; a beginning that fits only one is enough."""
    if name is None:
        return paths[0] if paths else None
    spelled = spellings(name)
    exact = [p for p in paths if called(p) in spelled]
    close = exact or [p for p in paths if called(p).startswith(tuple(spelled))]
    if paths and len(close) != 1:
        names = ", ".join(map(called, close))
        fix = f"{len(close)} begin like that; write one of {names}" if close else nearest(name, map(called, paths))
        raise CheckpointError(f"model=@{name}: there is no such {kind}; {fix}")
    return close[0] if close else None


def spellings(name: str) -> list[str]:
    """How a piece may be called in file names: as given, or under its full name where `ft` stands for `finetune`."""
    given = [name, slug(name)]
    with suppress(HeadwayError):
        given += [slug(spell(p)) for p in parse_recipe(name).pieces if p.name != "fedavg"]
    return given

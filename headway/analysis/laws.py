"""The laws: what every recipe keeps, so that its runs can be resumed, moved and compared. `headway check` runs them.

Each law trains small label-skewed clients in two ways that must agree, or looks at what the hooks gave back.
"""

from __future__ import annotations

import copy
import inspect
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headway.base.errors import HeadwayError, RecipeError, nearest
from headway.base.serialise import flatten, to_bytes, unflatten
from headway.base.tree import stream
from headway.core.piece import HOOKS, Piece
from headway.core.recipe import Recipe, idea_line
from headway.core.reports import Part, Reports
from headway.core.setting import neutral_settings
from headway.core.state import Broadcast, Client, Report, Server
from headway.engines import ClientStore, DirectoryStore, LocalEngine, PoolEngine
from headway.engines.choice import set_threads
from headway.methods import REGISTRY
from headway.methods.plugins import place_in_plugin
from headway.models import seeded
from headway.runs.checkpoint import Checkpoints
from headway.runs.options import Options
from headway.training import rounds
from headway.training.client import first_client, train_client
from headway.training.settings import settings
from headway.training.task import Task, build

PARTNERS = ("scaffold", "fn", "fedrep", "moon", "etf", "fedavgm", "ccvr(epochs=2)")  # pieces of every kind


class Broken(Exception):
    """A law does not hold; the message says where."""


class Untried(Exception):
    """A law says nothing about this recipe; the message says why."""


class LawBody(nn.Module):
    """Two layers with running statistics and dropout, which have spoilt reproducibility before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 12)
        )
        self.dim = 12

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.layers(x)
        return h


def law_body() -> tuple[nn.Module, dict[str, Any]]:
    with seeded(stream(0, "init")):
        return LawBody(), {"bias": True, "init": None}


@cache
def law_task() -> Task:
    """Six label-skewed clients, three of them a round, with momentum that lasts, weight decay and augmentation."""
    s = settings({
        "data": "digits", "model": "mlp_small", "partition": "dir(0.1)", "clients": 6, "rounds": 4, "sampling": 0.5,
        "train_size": 300, "momentum": 0.9, "persist_momentum": True, "weight_decay": 1e-3, "lr": 0.05,
        "augment": "flip",
    })  # fmt: skip
    return replace(build(s), make_body=law_body)


@dataclass(frozen=True)
class Trial:
    """A recipe on trial, and the task it is tried on."""

    recipe: Recipe
    whole: Task

    @cached_property
    def task(self) -> Task:
        return self.whole.for_recipe(self.recipe)

    def trained(
        self,
        count: int = 3,
        server: Server | None = None,
        engine: LocalEngine | None = None,
        recipe: Recipe | None = None,
    ) -> tuple[Server, LocalEngine]:
        """(server, engine) after this many rounds."""
        recipe = recipe or self.recipe
        engine = engine or LocalEngine()
        return rounds.run(recipe, self.whole.for_recipe(recipe), engine, count, server), engine

    def state(self, count: int = 3, **more: Any) -> Any:
        """Everything that lasts after this many rounds."""
        return state_of(*self.trained(count, **more))

    def round_three(self) -> tuple[Server, Broadcast, list[Client]]:
        """The server, its broadcast and the chosen clients before the third round."""
        server, engine = self.trained(2)
        cast = rounds.cast_of(server, self.recipe)
        known = {k: engine.store.get(k) for k in self.task.sampling(2)}
        return server, cast, [c or first_client(self.recipe, self.task, cast, k) for k, c in known.items()]


def state_of(server: Server, engine: LocalEngine) -> Any:
    """Everything that lasts, as a copy."""
    return copy.deepcopy((server, {k: engine.store.get(k) for k in engine.store.ids()}))


def difference(a: Any, b: Any, path: str = "") -> str | None:
    """The first place in which two values differ, tensors bit for bit; None where they are the same."""
    here = path or "the value"
    if type(a) is not type(b):
        return f"{here} is {type(a).__name__} and {type(b).__name__}"
    if isinstance(a, Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        return None if same else f"{here} differs"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{here} has the keys {list(a)} and {list(b)}"
        pairs = [(str(key), a[key], b[key]) for key in a]
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            return f"{here} has {len(a)} and {len(b)} entries"
        pairs = [(str(i), x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    elif hasattr(a, "__dataclass_fields__"):
        names = [f.name for f in fields(a) if not f.name.startswith("_")]
        pairs = [(name, getattr(a, name), getattr(b, name)) for name in names]
    else:
        return None if a == b or (a != a and b != b) else f"{here} is {a!r} and {b!r}"
    return next(filter(None, (difference(x, y, f"{path}/{key}") for key, x, y in pairs)), None)


def must_equal(a: Any, b: Any, what: str) -> None:
    if where := difference(a, b):
        raise Broken(f"{what}: {where}")


# ---- the laws
def hooks(trial: Trial) -> None:
    """Its methods are hooks; helpers of its own begin with _."""
    for piece in trial.recipe.pieces:
        own = [name for name, thing in vars(type(piece)).items() if inspect.isfunction(thing) and name[0] != "_"]
        for name in (name for name in own if name not in HOOKS):
            fix = nearest(name, HOOKS, "begin it with _")
            raise Broken(f"{piece.name}.{name} is no hook and is never called; {fix}")


def documented(trial: Trial) -> None:
    """Its class says what it does, and each setting says what it means."""
    for piece in trial.recipe.pieces:
        line = vars(type(piece)).get("__doc__") or ""
        if not line.strip() or line.startswith(f"{type(piece).__name__}("):  # as dataclass() writes it
            raise Broken(f"{piece.name}: its class has no docstring; say in one line what it does")
        for f in fields(piece):
            if not f.metadata.get("about"):
                raise Broken(f"{piece.name}.{f.name} is not described; write it as headway.setting(default, 'meaning')")
        assert idea_line(piece)


def neutral(trial: Trial) -> None:
    """At its neutral settings the result is that of the recipe without it, bit for bit."""
    tried = {
        p: at_rest for p in trial.recipe.pieces
        if type(p) is not REGISTRY.default_base and (at_rest := neutral_settings(type(p))) is not None
    }  # fmt: skip
    if not tried:
        raise Untried("none of its settings is declared neutral")
    for piece, at_rest in tried.items():
        rest = [p for p in trial.recipe.pieces if p is not piece]
        still = Recipe((*rest, replace(piece, **at_rest)))
        without = REGISTRY.sum_of(rest)
        (one, _), (other, _) = trial.trained(recipe=still), trial.trained(recipe=without)
        must_equal((one.w, one.stats), (other.w, other.stats), f"{piece.name} at {at_rest or 'its defaults'}")


def repeatable(trial: Trial) -> None:
    """Two runs give the same bits: what lasts is in `kept`, and no hook draws random numbers of its own."""
    first = trial.state()
    torch.rand(3), random.random()  # noqa: S311 - the global generators stand elsewhere now
    must_equal(trial.state(), first, "the second run")


def resumed(trial: Trial) -> None:
    """Two rounds, saved, loaded, and a third equal three rounds, bit for bit."""
    straight = trial.state(3)
    server, engine = trial.trained(2)
    with tempfile.TemporaryDirectory() as folder:
        Checkpoints(Path(folder), {"recipe": str(trial.recipe)}).save(server, engine.store, {"line": 2})
        found, damaged = Checkpoints(Path(folder), {"recipe": str(trial.recipe)}).load(torch.device("cpu"))
        if found is None or damaged or found.extra != {"line": 2}:
            raise Broken("the checkpoint cannot be read")
        store = ClientStore()
        found.fill(store)
    must_equal(trial.state(3, server=found.server, engine=LocalEngine(store)), straight, "the resumed run")


class SerialisingEngine(LocalEngine):
    """Clients in a random order, and every value that is sent goes through bytes, as on another machine."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.order = random.Random(seed)  # noqa: S311

    def train(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Part]:
        there = Broadcast(**through_bytes(cast))
        ids = self.order.sample(list(ids), len(ids))
        pairs = [train_client(recipe, task, there, self.client(recipe, task, there, k)) for k in ids]
        self._pending = [Client(**through_bytes(client)) for _, client in pairs]
        return [Report(**through_bytes(report)) for report, _ in pairs]


def through_bytes(value: Any) -> Any:
    tensors: dict[str, Tensor] = {}
    skeleton = json.loads(json.dumps(flatten(value, tensors)))
    return unflatten(skeleton, {k: v.clone() for k, v in tensors.items()})


def other_machine(trial: Trial) -> None:
    """Clients in another order, on another machine, give the same bits."""
    must_equal(trial.state(engine=SerialisingEngine(7)), trial.state(), "clients on another machine")


def workers(trial: Trial) -> None:
    """Two worker processes give the same bits as one."""
    engine = PoolEngine(trial.recipe, trial.task, 2)
    try:
        side_by_side = trial.state(2, engine=engine)
    finally:
        engine.close()
    must_equal(side_by_side, trial.state(2), "two workers")


def on_disk(trial: Trial) -> None:
    """Client states on disk give the same bits as in memory."""
    with tempfile.TemporaryDirectory() as folder:
        must_equal(trial.state(engine=LocalEngine(DirectoryStore(Path(folder)))), trial.state(), "states on disk")


def order(trial: Trial) -> None:
    """The order in which a recipe names its pieces carries no meaning."""
    pieces = list(trial.recipe.pieces)
    for other in (pieces[::-1], pieces[1:] + pieces[:1]):
        turned = Recipe(tuple(other))
        if str(turned) != str(trial.recipe):
            raise Broken(f"in another order the recipe is {turned} instead of {trial.recipe}")
        must_equal(trial.state(2, recipe=turned), trial.state(2), f"the order {'+'.join(p.name for p in other)}")


def unchanged_arguments(trial: Trial) -> None:
    """Hooks leave what they are given as it is, and give back new values."""
    server, cast, clients = trial.round_three()
    before = copy.deepcopy((server, cast, clients))
    reports = [train_client(trial.recipe, trial.task, cast, client)[0] for client in clients]
    sent = copy.deepcopy(reports)
    rounds.combined(server, cast, Reports.of(reports), trial.recipe, trial.task)
    must_equal((server, cast, clients), before, "a hook changed what it was given")
    must_equal(reports, sent, "a hook of the server changed the reports")


def storable(trial: Trial) -> None:
    """What a piece keeps or sends is tensors, trees, numbers, texts, and dicts and lists of them."""
    server, engine = trial.trained(2)
    clients = [client for k in engine.store.ids() if (client := engine.store.get(k)) is not None]
    for value in (server, *clients):
        try:
            to_bytes(value)
        except (TypeError, ValueError, HeadwayError) as error:
            raise Broken(f"what a piece keeps cannot be stored: {error}") from None
        must_equal(type(value)(**through_bytes(value)), value, "what a piece keeps, after storing and reading")


def unsent(trial: Trial) -> None:
    """Parameters that a recipe keeps on clients, and frozen tensors, are not sent."""
    recipe, task = trial.recipe, trial.task
    cast = rounds.cast_of(rounds.begin(recipe, task), recipe)
    report, client = train_client(recipe, task, cast, first_client(recipe, task, cast, 0))
    net = task.net(recipe)
    for what, names in (("personal", set(client.personal)), ("frozen", set(net.frozen()))):
        if gone := sorted(names & set(report.w)):
            raise Broken(f"the {what} tensor {gone[0]} is sent to the server")
    there = set(report.w) | set(report.stats) | set(client.personal)
    if there != set(net.params()) | set(net.stats()) or set(cast.w) != set(report.w):
        raise Broken("what clients send, keep and receive is not the whole model")


def frozen(trial: Trial) -> None:
    """Frozen tensors do not move in training, with momentum and weight decay on."""
    recipe, task = trial.recipe, trial.task
    server, cast, clients = trial.round_three()
    moved_by_the_server = recipe.equip(recipe.broadcast(server.kept), task.data[0][1][:4])
    first = task.net(recipe).frozen().only(lambda name: name not in moved_by_the_server)
    for client in clients:
        train_client(recipe, task, cast, client)
        after = task.working_net(recipe).frozen()
        must_equal(after.only(lambda name: name in first), first, "a frozen tensor moved")


def same_start(trial: Trial) -> None:
    """The body starts at the same weights as under FedAvg."""
    mine, plain = (
        trial.whole.first_params(r).only(lambda n: n.startswith("body."))
        for r in (trial.recipe, REGISTRY.sum_of([REGISTRY.default_base()]))
    )
    must_equal(mine, plain, "the first weights of the body")


def composes(trial: Trial) -> None:
    """Beside pieces of every kind it trains, or is refused in one sentence."""
    for text in PARTNERS:
        with suppress(RecipeError):
            partner = REGISTRY.parse(text)
            there = {p.name for p in trial.recipe.pieces}
            both = REGISTRY.sum_of([*trial.recipe.pieces, *(p for p in partner.pieces if p.name not in there)])
            try:
                trial.trained(2, recipe=both)
            except HeadwayError:
                raise
            except Exception as error:
                said = " ".join(f"{type(error).__name__}: {error}".split())
                raise Broken(f"{both.names} ends in {said[:200]}; refuse it with `requires` or in `check`") from None


LAWS: dict[str, Callable[[Trial], None]] = {
    "hooks": hooks,
    "documented": documented,
    "neutral": neutral,
    "repeatable": repeatable,
    "resume": resumed,
    "machine": other_machine,
    "workers": workers,
    "disk": on_disk,
    "order": order,
    "arguments": unchanged_arguments,
    "values": storable,
    "unsent": unsent,
    "frozen": frozen,
    "start": same_start,
    "composes": composes,
}


def about(law: str) -> str:
    """The law in one line."""
    return (inspect.getdoc(LAWS[law]) or "").splitlines()[0]


@dataclass(frozen=True)
class Verdict:
    """What came of one law for one recipe."""

    recipe: str
    law: str
    broken: str = ""  # how; empty where the law holds
    untried: str = ""  # why the law says nothing here


def verdicts(recipe: Recipe, task: Task | None = None) -> Iterator[Verdict]:
    """The laws on a recipe, one after another."""
    set_threads(Options())  # bits depend on the number of threads
    trial = Trial(recipe, task or law_task())
    for name, law in LAWS.items():
        yield verdict(name, law, trial)


def verdict(name: str, law: Callable[[Trial], None], trial: Trial) -> Verdict:
    """What comes of one law; what a hook raises breaks it too."""
    text = str(trial.recipe)
    try:
        law(trial)
    except Untried as reason:
        return Verdict(text, name, untried=str(reason))
    except (Broken, HeadwayError) as error:
        return Verdict(text, name, broken=str(error))
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return Verdict(text, name, broken=f"{place}: {said}" if (place := place_in_plugin(error)) else said)
    return Verdict(text, name)


def recipes_of(pieces: Sequence[type[Piece]]) -> list[Recipe]:
    """A recipe for each piece: beside FedAvg, at its defaults."""
    return [REGISTRY.sum_of([piece()]) for piece in pieces]

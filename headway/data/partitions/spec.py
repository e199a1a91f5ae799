"""How a partition is asked for: `dir(0.1, variant=guarded)` read into a name and checked settings."""

from __future__ import annotations

import inspect
import math
import os
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headway.base.errors import PartitionError, nearest
from headway.base.registered import about_of, check_new_name, claim, is_known, nearest_known, release

Value = int | float | str
ALPHA_MAX = 1e6  # beyond it every draw is uniform to the last sample, and the gamma draws may overflow


@dataclass(frozen=True)
class Setting:
    """One setting: what it may be; without `default` it must be given (`None` means: chosen by the draw)."""

    kind: type[int] | type[float] | tuple[str, ...]
    says: str
    low: int = 0
    required: bool = False
    default: Value | None = None
    most: float | None = None  # of a float: it is above 0 and at most this; None: any finite number


# The first setting of a name may be given without its key: dir(0.1) is dir(alpha=0.1).
SETTINGS: dict[str, dict[str, Setting]] = {
    "iid": {},
    "dir": {
        "alpha": Setting(float, f"a number above 0 and at most {ALPHA_MAX:,.0f}", required=True, most=ALPHA_MAX),
        "variant": Setting(("plain", "guarded", "perclient"), "", default="plain"),
        "min_size": Setting(int, "a whole number, 0 or more"),
        "empty": Setting(("refill", "error", "drop"), "", default="refill"),
    },
    "shard": {"s": Setting(int, "a whole number, 1 or more", low=1, required=True)},
    "classes": {
        "n": Setting(int, "a whole number, 1 or more", low=1, required=True),
        "missing": Setting(("refuse", "allow"), "", default="refuse"),
    },
    "natural": {},
}

PARTITIONS: dict[str, str] = {
    "iid": "iid: every class split evenly over the clients; no settings",
    "dir": (
        "dir(alpha, variant=plain|guarded|perclient, min_size=INT, empty=refill|error|drop): label mix drawn "
        "from a Dirichlet, smaller alpha is more skewed"
    ),
    "shard": "shard(s): s one-class shards per client; s * clients must be a multiple of the classes",
    "classes": "classes(n, missing=refuse|allow): n classes per client, each split evenly over its holders",
    "natural": "natural: one client per group of the data (a writer, a hospital), or as many as clients says",
}


FORMS = ("iid", "dir(a)", "shard(s)", "classes(n)", "natural")  # as options and docstrings name them
Draw = Callable[..., Any]  # (labels, clients, classes, rng, **settings) -> one list of sample positions a client
REGISTERED: dict[str, Draw] = {}  # partitions of a user's own, by name
GIVEN = ("labels", "clients", "classes", "rng")  # what every such function is called with


def register_partition(name: str, draw: Draw, *, about: str = "") -> None:
    """Make a partition of one's own known by name: `--partition "NAME(key=value)"`, `headway list partitions`.

    Args:
        name: Small letters, digits, - and _; a name of headway's own partitions is refused, and one that another
            file or module registered; one's own is replaced.
        draw: A function `(labels, clients, classes, rng, ...)` that returns one list or array of sample positions a
            client. `labels` are int64 [N], `rng` is a `numpy.random.RandomState` that depends on the name and the
            run's seed alone. No sample may be given twice; samples given to no client are left out. Further parameters
            are the settings: annotate each with int (0 or more), float or Literal[words], or give it a default.
        about: One line for the list; else the first line of the function's docstring.

    Raises:
        PartitionError: The name cannot be used, or the function's parameters are others.

    >>> import numpy as np
    >>> from headway.data.partitions.partition import draw
    >>> from headway.data.partitions.spec import register_partition
    >>> def blocks(labels, clients, classes, rng, size: int = 2):
    ...     return [np.arange(k * size, (k + 1) * size) for k in range(clients)]
    >>> register_partition("blocks", blocks, about="equal blocks in the order of the data")
    >>> draw("blocks(3)", np.zeros(10), clients=2, seed=0, classes=2)[1].tolist()
    [3, 4, 5]
    """
    call = "register_partition"
    check_new_name("partitions", call, name, SETTINGS.keys() - REGISTERED.keys(), draw, PartitionError)
    if not callable(draw):
        raise PartitionError(f"{call}: draw of '{name}' is {draw!r}; give a function ({', '.join(GIVEN)}, ...)")
    settings = _settings_of(call, name, draw)
    keys = [key if setting.required else f"{key}={setting.default}" for key, setting in settings.items()]
    SETTINGS[name], REGISTERED[name] = settings, draw
    PARTITIONS[name] = f"{name}({', '.join(keys)}): {about_of(draw, about)}".replace("()", "", 1)
    claim("partitions", name, draw)


def unregister_partition(name: str) -> None:
    """Remove a partition that `register_partition` added."""
    for table in (SETTINGS, REGISTERED, PARTITIONS):
        table.pop(name)
    release("partitions", name)


def _settings_of(call: str, name: str, draw: Draw) -> dict[str, Setting]:
    """The settings of a user's function, read off its signature."""
    parameters = list(inspect.signature(draw).parameters.values())
    first, rest = [p.name for p in parameters[: len(GIVEN)]], parameters[len(GIVEN) :]
    if tuple(first) != GIVEN:
        found = ", ".join(p.name for p in parameters) or "nothing"
        raise PartitionError(f"{call}: draw of '{name}' takes {found}; its first parameters must be {', '.join(GIVEN)}")
    hints = typing.get_type_hints(draw)
    return {p.name: _setting_of(f"{call}: setting {p.name} of '{name}'", p, hints.get(p.name)) for p in rest}


def _setting_of(where: str, p: inspect.Parameter, hint: Any) -> Setting:
    required = p.default is p.empty
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or not re.fullmatch(r"[a-z][a-z0-9_]*", p.name):
        raise PartitionError(f"{where} has no name that can be written; name each setting, in small letters")
    kind = hint if hint is not None or required else type(p.default)
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    given = None if required else p.default
    if choices and all(isinstance(word, str) and word == word.lower() for word in choices):
        good, setting = given in (None, *choices), Setting(choices, "", 0, required, given)
    elif kind is int:
        good, setting = type(given) in (int, type(None)), Setting(int, "a whole number, 0 or more", 0, required, given)
    elif kind is float:
        good = type(given) in (int, float, type(None))
        setting = Setting(float, "a finite number", 0, required, None if given is None else float(given))
    else:
        raise PartitionError(f"{where} has no known type; annotate it with int, float or Literal of lower-case words")
    if not good or (not required and given is None):
        raise PartitionError(f"{where} has the default {given!r}; give one of its type, or none")
    return setting


@dataclass(frozen=True)
class Spec:
    """A partition by name with every setting filled in; `text` is the one way to write it."""

    name: str
    values: Mapping[str, Value | None]

    @property
    def text(self) -> str:
        """Canonical: defaults left out, settings in their fixed order, numbers at full precision."""
        parts = []
        for place, (key, setting) in enumerate(SETTINGS[self.name].items()):
            value = self.values[key]
            if setting.required:
                parts.append(_number(value) if place == 0 else f"{key}={_number(value)}")
            elif value is not None and value != self.default(key):
                parts.append(f"{key}={value}")
        return f"{self.name}({','.join(parts)})" if parts else self.name

    def default(self, key: str) -> Value | None:
        # guarded scales its min_size to the data, so only the draw knows it; the other two ask for 2
        if self.name == "dir" and key == "min_size" and self.values["variant"] != "guarded":
            return 2
        return SETTINGS[self.name][key].default

    def number(self, key: str) -> int:
        return int(self.values[key] or 0)


def saved(text: object) -> Path | None:
    """The file of a saved partition asked for by its path or its folder; a known name wins over a folder."""
    path = text.strip() if isinstance(text, str) else ""
    if path.lower().endswith(".json"):
        return Path(path)
    folder = path and name_of(path) not in SETTINGS and ("/" in path or os.path.isdir(path))
    return Path(path) / "partition.json" if folder else None


def brings_clients(text: object) -> bool:
    """Whether the partition itself says how many clients there are."""
    return saved(text) is not None or (isinstance(text, str) and name_of(text) == "natural")


def name_of(text: str) -> str:
    """The name of the partition that a text asks for, before its settings are read."""
    return "".join(text.lower().split()).partition("(")[0]


def parse(text: str) -> Spec:
    """`name` or `name(value, key=value, ...)`, in any case and with any spaces; else PartitionError."""
    if not isinstance(text, str):
        raise PartitionError(f"partition {_shown(text)} is not text; write one such as 'dir(0.1)', 'shard(2)' or 'iid'")
    found = re.fullmatch(r"([a-z][a-z0-9_-]*)(?:\((.*)\))?", "".join(text.lower().split()))
    if found is None:
        raise PartitionError(
            f"partition {_shown(text)} does not read as name or name(value, key=value); "
            "write it like 'dir(0.1)', 'shard(2)' or 'iid'"
        )
    name, inside = found.group(1), found.group(2) or ""
    if not is_known(name, SETTINGS):
        raise PartitionError(f"partition '{name[:40]}' is unknown; {nearest_known(name, SETTINGS)}")
    settings = SETTINGS[name]
    given = _given(name, inside, list(settings))
    values: dict[str, Value | None] = {}
    for key, setting in settings.items():
        if key in given:
            values[key] = _value(name, key, setting, given[key])
        elif setting.required:
            raise PartitionError(
                f"partition {name} needs {key}, {setting.says}, for example {name}({_example(setting)})"
            )
        else:
            values[key] = setting.default
    spec = Spec(name, MappingProxyType(values))
    if name == "dir" and values["min_size"] is None:
        return Spec(name, MappingProxyType(values | {"min_size": spec.default("min_size")}))
    return spec


def _given(name: str, inside: str, keys: list[str]) -> dict[str, str]:
    """The settings between the brackets, still as text."""
    given: dict[str, str] = {}
    for place, part in enumerate(inside.split(",") if inside else []):
        key, equals, value = part.partition("=")
        if not equals:
            if not keys:
                raise PartitionError(f"partition {name} takes no settings and got {_shown(part)}; write '{name}'")
            if place > 0:
                raise PartitionError(
                    f"partition {name}: {_shown(part)} has no key; only the first setting, {keys[0]}, "
                    "may be written without one"
                )
            key, value = keys[0], part
        if key not in keys:
            hint = nearest(key, keys) if keys else "it takes no settings"
            raise PartitionError(f"partition {name}: setting {_shown(key)} is unknown; {hint}")
        if key in given:
            raise PartitionError(f"partition {name}: setting {key} is given twice; keep one")
        given[key] = value
    return given


def _value(name: str, key: str, setting: Setting, text: str) -> Value:
    if isinstance(setting.kind, tuple):
        if text in setting.kind:
            return text
        raise PartitionError(f"partition {name}: {key}={_shown(text)} is unknown; {nearest(text, setting.kind)}")
    refusal = PartitionError(f"partition {name}: {key} is {_shown(text)} and must be {setting.says}")
    if setting.kind is int:
        # 18 digits always fit the machine's integers; longer ones are typing accidents
        if not re.fullmatch(r"\+?[0-9]{1,18}", text) or int(text) < setting.low:
            raise refusal
        return int(text)
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", text):
        raise refusal
    number = float(text)
    if not math.isfinite(number) or (setting.most is not None and not 0 < number <= setting.most):
        raise refusal
    return number


def _number(value: Value | None) -> str:
    return repr(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _example(setting: Setting) -> str:
    return "0.1" if setting.kind is float else "2"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

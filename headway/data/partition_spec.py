"""How a partition is asked for: `dir(0.1, variant=guarded)` read into a name and checked settings."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from headway.errors import PartitionError, nearest

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


# The first setting of a name may be given without its key: dir(0.1) is dir(alpha=0.1).
SETTINGS: dict[str, dict[str, Setting]] = {
    "iid": {},
    "dir": {
        "alpha": Setting(float, f"a number above 0 and at most {ALPHA_MAX:,.0f}", required=True),
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


@dataclass(frozen=True)
class Spec:
    """A partition by name with every setting filled in; `text` is the one way to write it."""

    name: str
    values: Mapping[str, Value | None]

    @property
    def text(self) -> str:
        """Canonical: defaults left out, settings in their fixed order, numbers at full precision."""
        parts = []
        for key, setting in SETTINGS[self.name].items():
            value = self.values[key]
            if setting.required:
                parts.append(_number(value))
            elif value is not None and value != self.default(key):
                parts.append(f"{key}={value}")
        return f"{self.name}({','.join(parts)})" if parts else self.name

    def default(self, key: str) -> Value | None:
        # guarded scales its min_size to the data, so only the draw knows it; the other two ask for 2
        if key == "min_size" and self.values["variant"] != "guarded":
            return 2
        return SETTINGS[self.name][key].default

    def number(self, key: str) -> int:
        return int(self.values[key] or 0)


def saved(text: object) -> Path | None:
    """The file of a saved partition asked for by its path or its folder; a known name wins over a folder."""
    path = text.strip() if isinstance(text, str) else ""
    if path.lower().endswith(".json"):
        return Path(path)
    folder = path and _name(path) not in SETTINGS and ("/" in path or os.path.isdir(path))
    return Path(path) / "partition.json" if folder else None


def brings_clients(text: object) -> bool:
    """Whether the partition itself says how many clients there are."""
    return saved(text) is not None or (isinstance(text, str) and _name(text) == "natural")


def _name(text: str) -> str:
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
    if name not in SETTINGS:
        raise PartitionError(f"partition '{name[:40]}' is unknown; {nearest(name, SETTINGS)}")
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
    if "min_size" in values and values["min_size"] is None:
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
    if not re.fullmatch(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", text):
        raise refusal
    number = float(text)
    if not (math.isfinite(number) and 0 < number <= ALPHA_MAX):
        raise refusal
    return number


def _number(value: Value | None) -> str:
    return repr(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _example(setting: Setting) -> str:
    return "0.1" if setting.kind is float else "2"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

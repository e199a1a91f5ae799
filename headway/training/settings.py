"""Settings of a task: what two methods must have in common to be compared; checked before anything is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from headway.base.errors import ConfigError, nearest
from headway.data.partitions.spec import FORMS, brings_clients
from headway.models import MODELS

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
CLIENTS = 20  # the default, unless the partition determines the number
Count = Annotated[int, Field(ge=1, le=10**9)]


class Settings(BaseModel):
    """The task as text. Every field is an option of `headway run` or a `--set field=value`."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    data: str = Field("digits", description="name of a data set, or a path to .npz, .csv, .parquet or an image folder")
    data_dir: str | None = Field(None, description="folder with the data set's own archives")
    train_size: Count | None = Field(None, description="take a fixed subset of this many training samples")
    test_size: Count | None = Field(None, description="take a fixed subset of this many test samples")
    model: str = Field("auto", description="a model of `headway list models`, or file.py:Name of your own")
    weights: str | None = Field(None, description="safetensors file the body starts from")
    weights_head: bool = Field(False, description="the classifier starts from --weights too (LG-FedAvg's warm start)")
    bn: Literal["auto", "running", "batch", "group"] = Field("auto", description="normalisation; auto: as published")
    normalise: Literal["dataset", "half", "imagenet", "none"] = Field("dataset", description="input statistics")
    augment: str = Field("none", description="crop(4)+flip, cutout(16), rotate(15)")
    partition: str = Field("dir(0.1)", description=f"{', '.join(FORMS)}, or a saved file")
    clients: Count | None = Field(
        None, description=f"number of clients, K [{CLIENTS}; natural and saved partitions: all of theirs]"
    )
    local_test: str = Field(
        "shard", description="shard: the test set with each client's labels; 0.3: own hold-out; none"
    )
    merge_test: bool = Field(False, description="partition training and test data together (FedTC's protocol)")
    sampling: float = Field(1.0, gt=0, le=1, allow_inf_nan=False, description="share of clients in a round")
    rounds: Count = Field(20, description="rounds, T")
    epochs: Count = Field(1, description="local epochs, E")
    batch_size: Count = Field(32, description="local batch size, B")
    lr: Positive = Field(0.05, description="client learning rate, eta")
    lr_decay: str = Field("1", description="factor per round (0.99), or factor@rounds (0.1@160,240)")
    momentum: float = Field(0.9, ge=0, lt=1, allow_inf_nan=False, description="client momentum, reset every round")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False, description="on every trained parameter")
    clip_norm: Positive | None = Field(None, description="largest gradient norm of a local step")
    aggregation: Literal["weighted", "uniform"] = Field("weighted", description="weights p_k: by n_k, or all equal")
    persist_momentum: bool = Field(False, description="clients keep momentum buffers across rounds")
    amp: bool = Field(False, description="passes in bfloat16 where that is safe; for --device cuda")
    seed: int = Field(0, ge=0, description="partition, sampling, first weights, data order")
    eval_every: Count | Literal["auto"] = Field(
        1, description="evaluate after every so many rounds, and after the last; auto: a fifth of the time at most"
    )
    personal_from: Literal["global", "calibrated"] = Field(
        "global", description="the model that clients personalise: the global one, or the calibrated"
    )
    personal_clients: Count = Field(1000, description="at most this many clients are evaluated personally")

    @model_validator(mode="before")
    @classmethod
    def _clients_by_default(cls, values: Any) -> Any:
        """Set the default number of clients; None for partitions that determine it, in which case `build` sets it."""
        if not isinstance(values, Mapping) or values.get("clients") is not None:
            return values
        return {**values, "clients": None if brings_clients(values.get("partition")) else CLIENTS}

    @field_validator("lr_decay", mode="before")
    @classmethod
    def _decay_as_text(cls, value: Any) -> Any:
        return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value

    @field_validator("lr_decay")
    @classmethod
    def _decay_parses(cls, value: str) -> str:
        parse_decay(value)
        return value

    def bn_of(self, model: str) -> str:
        """The normalisation of this model: what its paper used, unless the user gives another."""
        return (MODELS[model].bn if model in MODELS else "running") if self.bn == "auto" else self.bn

    def evaluated_every(self, trained: int, tested: int) -> int:
        """The rounds from one evaluation to the next, for so many training samples of all clients and test samples.

        With `auto` evaluation takes a fifth of the time at most: a forward pass, where training takes three.
        """
        if self.eval_every != "auto":
            return self.eval_every
        return min(self.rounds, max(1, math.ceil(4 * tested / max(1.0, 3 * trained * self.sampling * self.epochs))))

    def lr_at(self, t: int) -> float:
        """The learning rate of round t, eta_t."""
        factor, milestones = parse_decay(self.lr_decay)
        power = t if milestones is None else sum(t >= m for m in milestones)
        return float(self.lr * factor**power)


def parse_decay(text: str) -> tuple[float, tuple[int, ...] | None]:
    """(factor, rounds): '0.99' -> (0.99, None), in every round; '0.1@160,240' -> (0.1, (160, 240)), at these rounds."""
    factor_text, at, rounds_text = text.partition("@")
    try:
        factor = float(factor_text)
        rounds = tuple(int(r) for r in rounds_text.split(",")) if at else None
    except ValueError:
        raise ValueError("write a factor per round such as 0.99, or factor@rounds such as 0.1@160,240") from None
    if not math.isfinite(factor) or not 0 < factor <= 1:
        raise ValueError("the factor must be above 0 and at most 1, such as 0.99")
    if rounds is not None and min(rounds) < 1:
        raise ValueError("the rounds after @ must be 1 or more, such as 0.1@160,240")
    if rounds is not None and any(a >= b for a, b in pairwise(rounds)):
        ordered = ",".join(map(str, sorted(set(rounds))))
        raise ValueError(f"the rounds after @ must grow, each given once; write {factor_text}@{ordered}")
    return factor, rounds


def settings(values: Mapping[str, Any]) -> Settings:
    """Checked settings. Raises ConfigError with one sentence about each mistake."""
    known = list(Settings.model_fields)
    unknown = [name for name in values if name not in known]
    if unknown:
        name = unknown[0]
        raise ConfigError(f"{name}={values[name]}: there is no setting '{name}'; {nearest(name, known)}")
    for name, value in values.items():
        if isinstance(value, bool) and Settings.model_fields[name].annotation is not bool:
            raise ConfigError(f"{name}={value}: {name} must be {_allowed(name)}")
        if isinstance(value, str) and not value.strip():
            raise ConfigError(f"{name}={value!r}: it is empty; give a value, or leave {name} out")
    try:
        return Settings.model_validate(dict(values))
    except ValidationError as error:
        sentences = dict.fromkeys(_sentence(e) for e in error.errors())  # a field of two kinds has two errors
        raise ConfigError("; ".join(sentences)) from None


LIMITS = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
KINDS = {"integer": "a whole number", "number": "a finite number", "boolean": "true or false", "string": "text"}


def _sentence(error: Any) -> str:
    """pydantic's error as a sentence: the field, its value, the allowed values."""
    field = str(error["loc"][0])
    own = error.get("ctx", {}).get("error")  # the message of a validator above
    return f"{field}={error['input']}: {own or f'{field} must be {_allowed(field)}'}"


def _allowed(field: str) -> str:
    """The allowed values of a field, from its declaration, such as `a number above 0 and at most 1`."""
    schema = Settings.model_json_schema()["properties"][field]
    rule = next(r for r in schema.get("anyOf", [schema]) if r["type"] != "null")
    if "enum" in rule:
        return f"one of {', '.join(rule['enum'])}"
    kind = KINDS[rule["type"]]
    if "minimum" in rule and "maximum" in rule:
        words = "".join(f", or {r['const']}" for r in schema.get("anyOf", []) if "const" in r)
        return f"{kind} from {rule['minimum']} to {rule['maximum']:,}{words}"
    limits = [f"{word} {rule[key]}" for key, word in LIMITS.items() if key in rule]
    return f"{kind} {' and '.join(limits)}".rstrip()

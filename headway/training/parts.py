"""Parts that a task is built from: the body, the augmentation, and the data set as the settings describe it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headway.base.errors import ConfigError
from headway.base.registered import is_known
from headway.base.tree import stream
from headway.data import Dataset, augment
from headway.data.partitions.partition import Lists
from headway.data.partitions.splits import Split
from headway.models import MODELS, body, custom, pretrained, seeded
from headway.training.settings import Settings

MakeBody = Callable[[], tuple[nn.Module, dict[str, Any]]]  # a body at its first weights; options of its own classifier


def auto_model(dataset: Dataset) -> str:
    """The model for `model=auto`: an MLP for tables and tiny images, a two-layer CNN for other images."""
    return "mlp" if len(dataset.shape) != 3 or min(dataset.shape[1:]) < 16 else "mcmahan_cnn"


def body_maker(s: Settings, name: str, model: Callable[..., nn.Module] | nn.Module | None, d: Dataset) -> MakeBody:
    """A function that builds the body at its first weights: a built-in model, or the user's own network."""

    def from_registry() -> tuple[nn.Module, dict[str, Any]]:
        made = body(name, d.shape, bn=s.bn_of(name), seed_stream=stream(s.seed, "init"))
        entry = MODELS[name]
        return made, {"bias": entry.bias, "init": entry.init_head}

    def from_user() -> tuple[nn.Module, dict[str, Any]]:
        factory = model or registered or custom.from_spec(name)
        with seeded(stream(s.seed, "init")):
            whole = (
                copy.deepcopy(factory)
                if isinstance(factory, nn.Module)
                else custom.construct(factory, d.classes, d.shape)
            )
        made, last = custom.split(whole, torch.zeros(2, *d.shape))
        if last.out_features != d.classes:
            raise ConfigError(
                f"model={name}: it gives {last.out_features} logits and {d.name} has {d.classes} classes; "
                f"make it give {d.classes}, or give it an argument `classes`"
            )
        first = last.weight.detach().clone()
        return made, {
            "bias": last.bias is not None,
            "init": lambda w, rng: first.clone() if w.shape == first.shape else w,
            "bias_start": None if last.bias is None else last.bias.detach().clone(),
        }

    spec = model is not None or ":" in name or name.endswith(".py")
    registered = MODELS[name].make if not spec and is_known(name, MODELS) else None  # now: it may be replaced later
    own = spec or registered is not None
    make = from_user if own else from_registry
    if s.weights is None:
        return make

    def with_weights() -> tuple[nn.Module, dict[str, Any]]:
        made, native = make()
        pretrained.load_body(made, Path(str(s.weights)))
        return made, native

    return with_weights


def augment_for(s: Settings, d: Dataset) -> augment.Augment:
    """The augmentation of training inputs; pixels covered by cutout get the data's mean."""
    aug = augment.parse(s.augment)
    if not aug:
        return aug
    if len(d.shape) != 3:
        raise ConfigError(f"augment={s.augment}: only images can be augmented and {d.name} is a table; use none")
    aug.check_fits(d.shape[1], d.shape[2])
    return replace(aug, fill=tuple(m / d.scale for m in d.mean))


def renormalised(d: Dataset, how: str) -> Dataset:
    """The data set with the input statistics the user chose."""
    channels = d.shape[0]
    if how == "dataset":
        return d
    if how == "imagenet" and channels != 3:
        raise ConfigError(f"normalise=imagenet: it has three channels and {d.name} has {channels}; use dataset or half")
    mean, std = {
        "half": ((0.5,) * channels, (0.5,) * channels),
        "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "none": ((0.0,) * channels, (1.0,) * channels),
    }[how]
    return replace(d, mean=mean, std=std)


def merged(d: Dataset, s: Settings) -> Dataset:
    """Training and test data as one data set; the global test set will be the union of the clients' own hold-outs."""
    try:
        share = float(s.local_test)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ConfigError(f"merge_test=true: local_test={s.local_test} leaves no test data; use a share such as 0.25")
    both = None if d.group is None or d.group_test is None else torch.cat([d.group, d.group_test])
    return replace(d, x=torch.cat([d.x, d.x_test]), y=torch.cat([d.y, d.y_test]), group=both, group_test=None)


def chosen_tests(dataset: Dataset, local: Split) -> tuple[Dataset, Split]:
    """Reduce the global test set of a natural partition to the union of its clients' own test parts."""
    union = np.sort(local.test.index)
    renumbered = Lists(np.searchsorted(union, local.test.index).astype(np.int64), local.test.offsets)
    i = torch.from_numpy(union)
    group = None if dataset.group_test is None else dataset.group_test[i]
    chosen = replace(dataset, x_test=dataset.x_test[i], y_test=dataset.y_test[i], group_test=group)
    return chosen, replace(local, test=renumbered)

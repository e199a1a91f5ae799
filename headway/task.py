"""Task: data, body, schedule, sampling list, weights and seed: all that two compared methods share."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway import heads, models, native
from headway.data import Dataset, augment, load
from headway.data.partition import Lists, Partition, draw
from headway.data.splits import Split, split
from headway.errors import ConfigError
from headway.models import custom, pretrained
from headway.models.net import NATIVE, Net, Normalise
from headway.recipes import Recipe
from headway.settings import Settings
from headway.state import Report
from headway.tree import Tree, stream

MakeBody = Callable[[], tuple[nn.Module, dict[str, Any]]]  # a body with its first weights; its native head's choices


class ClientData:
    """Client k -> its training tensors, gathered when asked for: nothing is copied for clients that do not train."""

    def __init__(self, x: Tensor, y: Tensor, parts: Any):
        self.x, self.y, self.parts = x, y, parts

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        i = torch.from_numpy(np.ascontiguousarray(self.parts[k])).to(self.x.device)
        return self.x.index_select(0, i), self.y.index_select(0, i)

    def size(self, k: int) -> int:
        return int(self.parts.offsets[k + 1] - self.parts.offsets[k])


@dataclass(frozen=True, eq=False)
class Task:
    """Everything a run needs besides its recipe."""

    settings: Settings
    dataset: Dataset
    partition: Partition
    local: Split
    make_body: MakeBody
    device: torch.device
    data: ClientData
    tests: ClientData
    augment: augment.Augment
    layout: str = "channels_first"  # of images in memory (tuning.py)
    gpus: tuple[torch.device, ...] = ()  # several: each has a worker of its own, and the run itself stays on the CPU
    _nets: dict[str, Net] = field(default_factory=dict, repr=False)

    # ---- what hooks and the loop read
    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def epochs(self) -> int:
        return self.settings.epochs

    @property
    def batch_size(self) -> int:
        return self.settings.batch_size

    @property
    def momentum(self) -> float:
        return self.settings.momentum

    @property
    def weight_decay(self) -> float:
        return self.settings.weight_decay

    @property
    def clip_norm(self) -> float | None:
        return self.settings.clip_norm

    @property
    def persist_momentum(self) -> bool:
        return self.settings.persist_momentum

    @property
    def classes(self) -> int:
        return self.dataset.classes

    @property
    def dim(self) -> int:
        return int(self._template({}).body.dim)  # type: ignore[arg-type]

    def lr(self, t: int) -> float:
        return self.settings.lr_at(t)

    def test(self, k: int) -> tuple[Tensor, Tensor]:
        """Client k's own test data."""
        return self.tests[k]

    def sampling(self, t: int) -> list[int]:
        """The clients of round t, from a stream no method draws from (D2); empty clients never take part (D10)."""
        sizes = np.diff(self.data.parts.offsets)
        able = np.flatnonzero(sizes > 0)
        m = max(1, int(self.settings.sampling * len(sizes) + 1e-9))
        order = torch.randperm(len(able), generator=stream(self.seed, "sampling", t))[:m]
        return sorted(int(able[i]) for i in order)

    def everyone(self) -> list[int]:
        """All clients that have data."""
        return [int(k) for k in np.flatnonzero(np.diff(self.data.parts.offsets) > 0)]

    def weights(self, reports: Sequence[Report]) -> list[float]:
        """p_k, summing to one over the round's reports (D1)."""
        n = [r.n if self.settings.aggregation == "weighted" else 1 for r in reports]
        return [n_k / sum(n) for n_k in n]

    # ---- the model
    def net(self, recipe: Recipe) -> Net:
        """A fresh net at the first weights; the body's do not depend on the recipe."""
        return self.net_of(recipe.head())

    def net_of(self, spec: dict[str, Any]) -> Net:
        """A fresh net whose head has this shape."""
        return copy.deepcopy(self._template(spec))

    def working_net(self, recipe: Recipe) -> Net:
        """A net whose parameters and statistics the caller is about to set: made once and used again and again."""
        key = f"working {json.dumps(recipe.head(), sort_keys=True)}"
        if key not in self._nets:
            self._nets[key] = self.net(recipe)
        net = self._nets[key].set_mode(body=True, head=True, rest=True)
        return net.load(self._template(recipe.head()).frozen()) if recipe.acting("equip") else net

    def first_params(self, recipe: Recipe) -> Tree:
        return self._template(recipe.head()).params().copy()

    def first_stats(self, recipe: Recipe) -> Tree:
        return self._template(recipe.head()).stats()

    def first_passing(self, recipe: Recipe) -> Tree:
        """The body's buffers that a client's training may move and nobody hears of: the next client starts anew."""
        return Tree(self._template(recipe.head()).parts().passing)

    def first_personal(self, recipe: Recipe) -> Tree:
        """What a client that has not taken part yet keeps for itself; the shared rest is not even copied."""
        parts = self._template(recipe.head()).parts()
        return (Tree(parts.params) | parts.running).only(lambda name: not recipe.share(name)).copy()

    def _template(self, spec: dict[str, Any]) -> Net:
        key = json.dumps(spec, sort_keys=True)
        if key not in self._nets:
            body, native = self.make_body()
            rng = stream(self.seed, "head")
            head = heads.build(spec, int(body.dim), self.classes, rng, **native)  # type: ignore[arg-type]
            if self.settings.weights_head:
                pretrained.load_head(head, Path(str(self.settings.weights)))
            d = self.dataset
            inputs = Normalise(d.mean, d.std, d.scale, len(d.shape))
            net = Net(body, head, self.classes, inputs).to(self.device).tried_on(tuple(d.shape))
            self._nets[key] = net.laid_out(self.layout, self.batch_size)
        return self._nets[key]

    def in_layout(self, layout: str) -> Task:
        """The same task with its nets in this layout; tables have one."""
        table = len(self.dataset.shape) != 3 and layout.startswith("channels_last")
        if table or layout == self.layout:
            return self
        if layout.endswith(NATIVE):
            native.ready()  # what is missing for it should be said before the first round
        return replace(self, layout=layout, _nets={})

    @property
    def accelerator(self) -> str:
        """What clients train on: cpu or cuda."""
        return "cuda" if self.gpus else self.device.type

    def on(self, device: torch.device) -> Task:
        """The same task as one worker holds it, its data and nets on this device."""
        data = ClientData(uploaded(self.data.x, device), uploaded(self.data.y, device), self.data.parts)
        same = self.tests.x is self.data.x  # where local tests are a part of the training data
        own = (data.x, data.y) if same else (uploaded(self.tests.x, device), uploaded(self.tests.y, device))
        return replace(self, device=device, data=data, tests=ClientData(*own, self.tests.parts), gpus=(), _nets={})

    def in_one_process(self) -> Task:
        """The same task for whoever has no workers: of several GPUs the first."""
        return self.on(self.gpus[0]) if self.gpus else self

    def for_recipe(self, recipe: Recipe) -> Task:
        """The task as this recipe sees it: pooled at one client, where the recipe says so."""
        if not recipe.pools_data:
            return self
        train, test = (
            Lists(parts.index, np.array([0, len(parts.index)])) for parts in (self.local.train, self.local.test)
        )
        data, tests = ClientData(self.data.x, self.data.y, train), ClientData(self.tests.x, self.tests.y, test)
        return replace(self, local=Split(train, test, self.local.test_from), data=data, tests=tests)

    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be continued here."""
        hashes = {"data_hash": self.dataset.hash(), "partition_hash": self.partition.hash()}
        return self.settings.model_dump() | hashes | self.model_fingerprint()

    def model_fingerprint(self) -> dict[str, str]:
        """What tells a model from another of the same name: the files it is made from, the weights of a user's own."""
        hashes = {}
        files = {"weights": self.settings.weights, "model": self.settings.model.rpartition(":")[0]}
        for name, path in files.items():
            if path and Path(path).is_file():
                hashes[f"{name}_hash"] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        if self.settings.model not in models.MODELS:  # of a user's own module the name says too little
            first = self._template({}).body.state_dict()
            told = [f"{name}{tuple(v.shape)}{v.cpu().double().sum()}" for name, v in first.items()]
            hashes["body_hash"] = hashlib.sha256("".join(told).encode()).hexdigest()
        return hashes


def build(
    s: Settings,
    *,
    dataset: Dataset | None = None,
    model: Callable[..., nn.Module] | nn.Module | None = None,
    device: str = "cpu",
    partition: Partition | None = None,
) -> Task:
    """The task that settings describe; data and model may also be handed in as objects."""
    where = resolve_device(device)
    gpus = all_gpus() if where.type == "cuda" and where.index is None else ()
    if s.amp and where.type != "cuda":
        raise ConfigError(f"amp=true: on {device} bfloat16 is slower than float32; use --device cuda, or leave amp out")
    if s.weights_head and s.weights is None:
        raise ConfigError("weights_head=true: there is no file to take it from; give --weights FILE.safetensors")
    if dataset is None:
        dataset = load(s.data, source=Path(s.data_dir) if s.data_dir else None)
    dataset = renormalised(dataset.subset(s.train_size, s.test_size), s.normalise)
    if s.merge_test:
        dataset = merged(dataset, s)
    labels, test_labels = dataset.y.numpy(), dataset.y_test.numpy()
    groups = {"group": _numpy(dataset.group), "group_test": _numpy(dataset.group_test)}
    if partition is None:
        partition = draw(s.partition, labels, s.clients, s.seed, classes=dataset.classes, group=groups["group"])
    local = split(partition, s.local_test, labels, test_labels, s.seed, **groups)
    if partition.spec == "natural" and s.local_test == "shard" and dataset.group_test is not None:
        dataset, local = chosen_tests(dataset, local)
    if s.merge_test:
        positions = torch.from_numpy(np.ascontiguousarray(local.test.index))
        dataset = replace(dataset, x_test=dataset.x[positions], y_test=dataset.y[positions])
    where = torch.device("cpu") if gpus else where
    x, y = dataset.x.to(where), dataset.y.to(where)
    own = (x, y) if local.test_from == "train" else (dataset.x_test.to(where), dataset.y_test.to(where))
    aug = augment_for(s, dataset)
    name = auto_model(dataset) if s.model == "auto" else s.model
    resolved = s.model_copy(update={"model": name, "clients": len(partition)})
    return Task(
        resolved, dataset, partition, local, body_maker(s, name, model, dataset), where,
        ClientData(x, y, local.train), ClientData(*own, local.test), aug, gpus=gpus,
    )  # fmt: skip


def chosen_tests(dataset: Dataset, local: Split) -> tuple[Dataset, Split]:
    """The global test set of a natural partition: the union of its clients' own test parts."""
    union = np.sort(local.test.index)
    renumbered = Lists(np.searchsorted(union, local.test.index).astype(np.int64), local.test.offsets)
    i = torch.from_numpy(union)
    group = None if dataset.group_test is None else dataset.group_test[i]
    chosen = replace(dataset, x_test=dataset.x_test[i], y_test=dataset.y_test[i], group_test=group)
    return chosen, replace(local, test=renumbered)


def augment_for(s: Settings, d: Dataset) -> augment.Augment:
    """What is done to training inputs; what a cutout covers is filled with the data's mean."""
    aug = augment.parse(s.augment)
    if not aug:
        return aug
    if len(d.shape) != 3:
        raise ConfigError(f"augment={s.augment}: only images can be augmented and {d.name} is a table; use none")
    aug.check_fits(d.shape[1], d.shape[2])
    return replace(aug, fill=tuple(m / d.scale for m in d.mean))


def auto_model(dataset: Dataset) -> str:
    """A small model that fits: an MLP for tables and tiny images, a two-layer CNN for the rest."""
    return "mlp" if len(dataset.shape) != 3 or min(dataset.shape[1:]) < 16 else "mcmahan_cnn"


def body_maker(s: Settings, name: str, model: Callable[..., nn.Module] | nn.Module | None, d: Dataset) -> MakeBody:
    """How to build the body at its first weights: from the registry, or from the user's own module."""

    def from_registry() -> tuple[nn.Module, dict[str, Any]]:
        body = models.body(name, d.shape, bn=s.bn_of(name), seed_stream=stream(s.seed, "init"))
        entry = models.MODELS[name]
        return body, {"bias": entry.bias, "init": entry.init_head}

    def from_user() -> tuple[nn.Module, dict[str, Any]]:
        factory = custom.from_spec(name) if model is None else model
        with models.seeded(stream(s.seed, "init")):
            whole = (
                copy.deepcopy(factory)
                if isinstance(factory, nn.Module)
                else custom.construct(factory, d.classes, d.shape)
            )
        body, last = custom.split(whole, torch.zeros(2, *d.shape))
        if last.out_features != d.classes:
            raise ConfigError(
                f"model={name}: it gives {last.out_features} logits and {d.name} has {d.classes} classes; "
                f"make it give {d.classes}, or let it take them as an argument `classes`"
            )
        first = last.weight.detach().clone()
        return body, {
            "bias": last.bias is not None,
            "init": lambda w, rng: first.clone() if w.shape == first.shape else w,
            "bias_start": None if last.bias is None else last.bias.detach().clone(),
        }

    make = from_user if model is not None or ":" in name or name.endswith(".py") else from_registry
    if s.weights is None:
        return make

    def with_weights() -> tuple[nn.Module, dict[str, Any]]:
        body, native = make()
        pretrained.load_body(body, Path(str(s.weights)))
        return body, native

    return with_weights


def all_gpus() -> tuple[torch.device, ...]:
    """The machine's GPUs, where there are several; one alone serves the run's own process."""
    count = torch.cuda.device_count()
    return tuple(torch.device("cuda", i) for i in range(count)) if count > 1 else ()


def uploaded(t: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; to a GPU from page-locked memory, on a stream beside the one that computes."""
    if device.type != "cuda":
        return t.to(device)
    beside, computes = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(beside):
        moved = t.pin_memory().to(device, non_blocking=True)
    computes.wait_stream(beside)
    moved.record_stream(computes)
    return moved


def resolve_device(name: str) -> torch.device:
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to look without waking CUDA: workers are forked
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name}: headway runs on cpu and cuda; use cpu, cuda or cuda:0")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name}: this machine has no CUDA device that torch can use; use cpu")
    return device


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
    """Training and test data as one pool; the global test set becomes the union of the clients' own hold-outs."""
    try:
        share = float(s.local_test)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ConfigError(
            f"merge_test=true: local_test={s.local_test} leaves nothing to test on; use a share such as 0.25"
        )
    both = None if d.group is None or d.group_test is None else torch.cat([d.group, d.group_test])
    return replace(d, x=torch.cat([d.x, d.x_test]), y=torch.cat([d.y, d.y_test]), group=both, group_test=None)


def _numpy(t: Tensor | None) -> Any:
    return None if t is None else t.numpy()

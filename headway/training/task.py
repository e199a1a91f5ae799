"""Task: what two compared methods have in common: data, body, schedule, client sampling, weights and seed."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headway.base.errors import ConfigError
from headway.base.tree import Tree, stream
from headway.base.wording import option
from headway.core.recipe import Recipe
from headway.core.reports import Reports
from headway.data import Dataset, augment, load
from headway.data.partitions.partition import Lists, Partition, draw
from headway.data.partitions.splits import Split, split
from headway.models import MODELS, heads, native, pretrained, rewrite
from headway.models.net import NATIVE, WHOLE, Net, Normalise
from headway.training.devices import all_gpus, resolve_device, uploaded
from headway.training.nets import kept, share_nets
from headway.training.parts import MakeBody, augment_for, auto_model, body_maker, chosen_tests, merged, renormalised
from headway.training.sampling import first_of_randperm
from headway.training.settings import Settings


class ClientData:
    """Maps client k to its tensors x, y, which are gathered at each access: clients that do not train cost nothing."""

    def __init__(self, x: Tensor, y: Tensor, parts: Any):
        self.x, self.y, self.parts = x, y, parts

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        i = torch.from_numpy(np.ascontiguousarray(self.parts[k])).to(self.x.device)
        return self.x.index_select(0, i), self.y.index_select(0, i)

    def together(self, ids: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        """(x, y, rows, sizes): tensors that hold the samples of these clients, and where those of each are, [M, n].

        Rows shorter than n end in zeros.
        """
        if type(self.parts) is Lists:
            index, offsets = self.parts.index, self.parts.offsets[np.asarray(ids)]
            sizes = self.parts.offsets[np.asarray(ids) + 1] - offsets
            columns = np.arange(sizes.max())
            held = columns < sizes[:, None]
            rows = np.where(held, index[np.where(held, offsets[:, None] + columns, 0)], 0)
            return self.x, self.y, torch.from_numpy(rows), sizes.tolist()
        return self.x, self.y, *padded([np.asarray(self.parts[k]) for k in ids])

    def size(self, k: int) -> int:
        return int(self.parts.offsets[k + 1] - self.parts.offsets[k])


def padded(each: Sequence[npt.NDArray[np.int64]]) -> tuple[Tensor, list[int]]:
    """Lists of positions as the rows of one tensor that end in zeros, and their lengths."""
    sizes = [len(positions) for positions in each]
    rows = torch.zeros((len(each), max(sizes)), dtype=torch.int64)
    for row, positions in zip(rows, each, strict=True):
        row[: len(positions)] = torch.from_numpy(np.ascontiguousarray(positions))
    return rows, sizes


@dataclass(frozen=True, eq=False)
class Task:
    """What a run needs besides its recipe; immutable. The nets built for it are kept in nets.py."""

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
    chunk: int = WHOLE  # samples that are evaluated at once
    folded: bool = False  # predictions with normalisation folded into convolutions (models/rewrite.py)
    cohort: int = 1  # clients that train together at most (cohort.py)
    at_once: int = 0  # clients of a perceptron that native code trains in one call; 0: it does not (perceptron.py)
    gpus: tuple[torch.device, ...] = ()  # if there are several: one worker each, and the run itself uses the CPU

    # ---- settings and data, as hooks and the training loop read them
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
        """The clients of round t, from a random stream that no method uses; clients without data are never chosen."""
        able = self.data.parts.able
        m = max(1, int(self.settings.sampling * len(self.data) + 1e-9))
        return sorted(able[first_of_randperm(len(able), m, stream(self.seed, "sampling", t))].tolist())

    def everyone(self) -> list[int]:
        """All clients that have data."""
        everyone: list[int] = self.data.parts.able.tolist()
        return everyone

    def weights(self, reports: Reports) -> list[float]:
        """The weights p_k of the reports, which sum to one."""
        n = reports.numbers("n") if self.settings.aggregation == "weighted" else [1] * len(reports)
        total = sum(n)
        return [n_k / total for n_k in n]

    # ---- the model
    def net(self, recipe: Recipe) -> Net:
        """A new net at its first weights; those of the body do not depend on the recipe."""
        return self.net_of(recipe.head())

    def net_of(self, spec: dict[str, Any]) -> Net:
        """A new net with the head that `spec` describes."""
        return copy.deepcopy(self._template(spec))

    def working_net(self, recipe: Recipe) -> Net:
        """A net that is made once and reused; the caller must load all of its parameters and statistics."""
        key = f"working {json.dumps(recipe.head(), sort_keys=True)}"
        net = kept(self, key, lambda: self.net(recipe)).set_mode(body=True, head=True, rest=True)
        return net.load(self._template(recipe.head()).frozen()) if recipe.acting("equip") else net

    def first_params(self, recipe: Recipe) -> Tree:
        return self._template(recipe.head()).params().copy()

    def first_stats(self, recipe: Recipe) -> Tree:
        return self._template(recipe.head()).stats()

    def first_local_buffers(self, recipe: Recipe) -> Tree:
        """The first values of the body's buffers that are neither sent nor averaged; every client starts with them."""
        return Tree(self._template(recipe.head()).parts().local_buffers)

    def first_personal(self, recipe: Recipe) -> Tree:
        """The first values of a client's personal tensors."""
        if not recipe.acting("share"):
            return Tree()  # everything is shared
        parts = self._template(recipe.head()).parts()
        return (Tree(parts.params) | parts.running).only(lambda name: not recipe.share(name)).copy()

    def _template(self, spec: dict[str, Any]) -> Net:
        return kept(self, json.dumps(spec, sort_keys=True), lambda: self._built(spec))

    def _built(self, spec: dict[str, Any]) -> Net:
        body, native = self.make_body()
        rng = stream(self.seed, "head")
        head = heads.build(spec, int(body.dim), self.classes, rng, **native)  # type: ignore[arg-type]
        if self.settings.weights_head:
            pretrained.load_head(head, Path(str(self.settings.weights)))
        d = self.dataset
        inputs = Normalise(d.mean, d.std, d.scale, len(d.shape))
        net = Net(body, head, self.classes, inputs).to(self.device).find_moving_buffers(tuple(d.shape))
        net.chunk = self.chunk
        return net.set_layout(self.layout, self.batch_size, tuple(d.shape), self.folded)

    def in_layout(self, layout: str) -> Task:
        """The same task with its nets in this layout; channels_last has no effect on tables."""
        table = len(self.dataset.shape) != 3 and layout.startswith("channels_last")
        if table or layout == self.layout:
            return self
        if layout.endswith(NATIVE):  # now, so that an error occurs before the first round
            native.ready(rewrite.kernels(self.net_of({}).body))
        return replace(self, layout=layout)

    @property
    def accelerator(self) -> str:
        """The type of device that clients train on: cpu or cuda."""
        return "cuda" if self.gpus else self.device.type

    def on(self, device: torch.device) -> Task:
        """The same task with its data and nets on this device, as a worker uses it."""
        data = ClientData(uploaded(self.data.x, device), uploaded(self.data.y, device), self.data.parts)
        same = self.tests.x is self.data.x  # if local test samples are part of the training set
        own = (data.x, data.y) if same else (uploaded(self.tests.x, device), uploaded(self.tests.y, device))
        return replace(self, device=device, data=data, tests=ClientData(*own, self.tests.parts), gpus=())

    def in_one_process(self) -> Task:
        """The same task for use without workers: on the first of several GPUs."""
        return self.on(self.gpus[0]) if self.gpus else self

    def for_recipe(self, recipe: Recipe) -> Task:
        """The task for this recipe: with all data at one client if the recipe pools them."""
        if not recipe.pools_data:
            return self
        train, test = (
            Lists(parts.index, np.array([0, len(parts.index)])) for parts in (self.local.train, self.local.test)
        )
        data, tests = ClientData(self.data.x, self.data.y, train), ClientData(self.tests.x, self.tests.y, test)
        return self.with_data(data, tests, Split(train, test, self.local.test_from))

    def with_data(self, data: ClientData, tests: ClientData, local: Split | None = None) -> Task:
        """The same task with other samples for its clients; it shares the nets of this one."""
        return share_nets(self, replace(self, data=data, tests=tests, local=local or self.local))

    def fingerprint(self) -> dict[str, Any]:
        """The values by which a checkpoint is checked: settings and hashes of data, partition and model."""
        hashes = {"data_hash": self.dataset.hash(), "partition_hash": self.partition.hash()}
        return self.settings.model_dump() | hashes | self.model_fingerprint()

    def model_fingerprint(self) -> dict[str, str]:
        """Hashes that distinguish models of the same name: of its files, and of the weights of a user's own network."""
        hashes = {}
        files = {"weights": self.settings.weights, "model": self.settings.model.rpartition(":")[0]}
        for name, path in files.items():
            if path and Path(path).is_file():
                hashes[f"{name}_hash"] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        if (known := MODELS.get(self.settings.model)) is None or known.make:  # a user's own network
            first = self._template({}).body.state_dict()
            summary = [f"{name}{tuple(v.shape)}{v.cpu().double().sum()}" for name, v in first.items()]
            hashes["body_hash"] = hashlib.sha256("".join(summary).encode()).hexdigest()
        return hashes


def build(
    s: Settings,
    *,
    dataset: Dataset | None = None,
    model: Callable[..., nn.Module] | nn.Module | None = None,
    device: str = "cpu",
    partition: Partition | None = None,
) -> Task:
    """The task that settings describe; data set, model and partition may also be given as objects."""
    where = resolve_device(device)
    gpus = all_gpus() if where.type == "cuda" and where.index is None else ()
    if s.amp and where.type != "cuda":
        raise ConfigError(
            f"amp=true: on {device} bfloat16 is slower than float32; use {option('device', 'cuda')}, or leave amp out"
        )
    if s.weights_head and s.weights is None:
        raise ConfigError(f"weights_head=true: no weights file is given; give {option('weights', 'FILE.safetensors')}")
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
    every = s.evaluated_every(len(local.train.index), len(dataset.y_test))
    resolved = s.model_copy(update={"model": name, "clients": len(partition), "eval_every": every})
    return Task(
        resolved, dataset, partition, local, body_maker(s, name, model, dataset), where,
        ClientData(x, y, local.train), ClientData(*own, local.test), aug, gpus=gpus,
    )  # fmt: skip


def _numpy(t: Tensor | None) -> Any:
    return None if t is None else t.numpy()

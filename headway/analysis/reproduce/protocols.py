"""How each of the five papers trains: what its tables leave out, and how it is cut for two cores.

What of it is assumed is said in `assumptions.py`: a change here needs a word there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.analysis.published import Published


@dataclass(frozen=True)
class Cut:
    """What `--scale cpu` leaves of a paper's setting; data set, partition and method settings stay."""

    train_size: int
    test_size: int
    rounds: int


@dataclass(frozen=True)
class Protocol:
    """One paper's training, where its tables do not say."""

    settings: Mapping[str, Any]
    rounds: int  # where a table does not name them
    seeds: tuple[int, ...]
    cut: Cut
    window: int = 1  # the last rounds whose accuracies are averaged, of `rounds`
    guarded: str | None = None  # settings of dir(alpha): the cap on client sizes of the paper's code
    pieces: Mapping[str, str] = field(default_factory=dict)  # a piece of a method -> the paper's settings of it

    def window_of(self, rounds: int) -> int:
        """The same share of a shorter run, five rounds at least."""
        return 1 if self.window == 1 else max(min(5, self.window), round(self.window * rounds / self.rounds))


PROTOCOLS = {
    "fedetf": Protocol(
        settings={
            "batch_size": 128, "weight_decay": 5e-4, "lr_decay": "0.99", "normalise": "half", "local_test": "0.3",
        },
        rounds=200, seeds=(8, 9, 10), window=5, cut=Cut(8_000, 2_000, 40),
        pieces={"ditto": "ditto(pull=0.001)"},
    ),
    "fedfn": Protocol(
        settings={"batch_size": 50, "augment": "flip"},
        rounds=320, seeds=(0, 1), cut=Cut(50_000, 10_000, 20), guarded="variant=guarded,min_size=10",
        pieces={"fedrep": "fedrep(body_epochs=1)"},
    ),
    "fedtc": Protocol(
        settings={
            "batch_size": 64, "weight_decay": 1e-5, "lr_decay": "0.9", "normalise": "half", "merge_test": True,
            "local_test": "0.25",
        },
        rounds=100, seeds=(0, 1), cut=Cut(50_000, 10_000, 10), guarded="variant=guarded,min_size=40",
    ),
    "fedavg-etf-gmv": Protocol(
        settings={
            "batch_size": 64, "weight_decay": 5e-4, "augment": "crop(4)+flip", "local_test": "none",
            "aggregation": "uniform",
        },
        rounds=1000, seeds=(0, 1), window=50, cut=Cut(10_000, 2_000, 200), pieces={"moon": "moon(mu=0.01)"},
    ),
    "ccvr": Protocol(
        settings={"batch_size": 64, "weight_decay": 1e-5, "augment": "crop(4)+flip", "local_test": "none"},
        rounds=100, seeds=(0, 1, 2), cut=Cut(5_000, 2_000, 10), guarded="variant=guarded,min_size=10",
        pieces={"moon": "moon(mu=5)", "fedprox": "fedavg+prox(mu=0.01)", "clsprox": "clsprox(mu=0.01)"},
    ),
}  # fmt: skip

# a paper's name of a model -> ours; and what stands for it on two cores
OURS = {
    ("fedavg-etf-gmv", "vgg11"): "vgg11_nofc",
    ("ccvr", "mobilenetv2"): "mobilenetv2_std",
    ("fedtc", "resnet18-torchvision"): "resnet18_tv",
    ("fedfn", "mobilenetv2-spherefed"): "mobilenetv2_std",
    ("fedfn", "resnet18-pretrained"): "resnet18_tv",
}
TOO_LONG = (  # networks whose rows take hours on two cores
    "mcmahan_cnn", "vgg11", "vgg11_nofc", "resnet18", "resnet18_tv", "resnet20", "resnet32", "resnet56", "wrn56_4",
    "densenet121", "mobilenet", "mobilenetv2", "mobilenetv2_std", "efficientnet_b0",
)  # fmt: skip
SMALL = dict.fromkeys(TOO_LONG, "moon_cnn")  # the smallest network of the five papers, CCVR's own


def rate(row: Published) -> float:
    """The learning rate of a cell: as its table names it, else as the paper's text does."""
    if "lr" in row.extra:
        return float(row.extra["lr"])
    many = row.dataset != "cifar10"
    if row.paper == "fedetf":
        return 0.01 if many else 0.04
    if row.paper == "fedfn":
        if "fn" in row.method.split("+") or row.method.startswith("fedfn"):
            return 0.1 if row.model.startswith("resnet18") else 0.5 if many else 0.03
        if row.method.startswith("spherefed"):
            return 4.5 if "mse" in row.method else 0.3
        return 0.1 if many else 0.01
    return {"fedtc": 0.01, "fedavg-etf-gmv": 0.03, "ccvr": 0.01}[row.paper]


BEST_MEMORY = {  # fedavg-etf-gmv, Table 3: (partition, epochs) -> alpha and the first of 1000 rounds with the memory
    ("classes(2)", 2): (1.0, 900), ("classes(5)", 2): (0.5, 900), ("classes(20)", 2): (0.1, 600),
    ("classes(2)", 5): (0.5, 900), ("classes(5)", 5): (1.0, 600), ("classes(20)", 5): (1.0, 600),
}  # fmt: skip


def recipe_for(row: Published, rounds: int) -> str:
    """The recipe of a cell, with the settings its paper gives to the pieces."""
    protocol = PROTOCOLS[row.paper]
    parts = [settled(part, row, rounds, protocol) for part in row.method.split("+")]
    if row.method == "fedetf" and row.metric == "personal_acc":
        parts.append("algorithm2")
    return "+".join(parts)


def settled(part: str, row: Published, rounds: int, protocol: Protocol) -> str:
    """One part of a method's name with what the cell, or the paper, sets of it."""
    extra = row.extra
    if part == "ccvr":
        tukey = ",transform=virtual" if row.paper == "ccvr" else ""  # its own paper's; FedETF's does not speak of it
        return f"ccvr(per_class={extra.get('virtual') or virtual_features(row)}{tukey})"
    if part == "oracle" and "samples_per_class" in extra:
        return f"oracle(per_class={extra['samples_per_class']})"
    if part == "gmv":
        alpha, start = BEST_MEMORY.get((row.partition, row.epochs or 2), (0.5, 500))
        alpha, start = float(extra.get("gmv_alpha", alpha)), int(extra.get("r_warm", start))
        return f"gmv(alpha={alpha:g},warmup={max(1, round(start / protocol.rounds * rounds))})"
    if part == "etf" and "etf_beta" in extra:
        return f"etf(scale={extra['etf_beta']})"
    if part == "spherefed-ce" and "tau" in extra:
        return f"sphere(tau={extra['tau']})"
    if part == "fedfr" and "mu" in extra:
        return f"featnorm(mu={extra['mu']})"
    if part == "ft":
        factor = extra.get("ft_lr", "0.1*eta").split("*")[0]
        return f"finetune(epochs={extra.get('ft_epochs', '5')},factor={factor})"
    return protocol.pieces.get(part, part)


def virtual_features(row: Published) -> int:
    """M_c of CCVR: as FedETF's text says of its baseline; in CCVR's own paper as its tables and text do."""
    if row.paper == "fedetf":
        return 10
    return {"cifar100": 500, "cinic10": 1000}.get(row.dataset, 100 if row.partition == "dir(0.5)" else 2000)

"""Assumptions where a paper does not say; each is listed only with the cells that depend on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headway.analysis.reproduce.plan import Cell
from headway.analysis.reproduce.protocols import recipe_for
from headway.core.piece import Piece
from headway.methods import recipe as parse_recipe

SGD = "SGD with momentum 0.9, buffers reset every round"
Condition = Callable[[Cell], bool]


@lru_cache
def pieces_of(recipe: str) -> dict[str, Piece]:
    return {piece.name: piece for piece in parse_recipe(recipe).pieces}


def pieces(cell: Cell) -> dict[str, Piece]:
    """All that makes the cell, what comes after the rounds too."""
    return pieces_of(recipe_for(cell.row, cell.settings.rounds))


# ---- conditions
def always(cell: Cell) -> bool:
    return True


def uses(*names: str) -> Condition:
    return lambda cell: any(name in pieces(cell) for name in names)


def on(*datasets: str) -> Condition:
    return lambda cell: cell.row.dataset in datasets


def in_table(*tables: str) -> Condition:
    return lambda cell: cell.row.table in tables


def flagged(word: str) -> Condition:
    """By a word of the published row's last column."""
    return lambda cell: word in cell.row.extra


def runs(model: str) -> Condition:
    """Not where a smaller network stands for it."""
    return lambda cell: cell.settings.model == model


def every(*conditions: Condition) -> Condition:
    return lambda cell: all(condition(cell) for condition in conditions)


def personal(cell: Cell) -> bool:
    return cell.row.metric == "personal_acc" or "algorithm2" in pieces(cell)


def other_epochs_than_algorithm2(cell: Cell) -> bool:
    stages: Any = pieces(cell).get("algorithm2")
    return stages is not None and stages.epochs != cell.settings.epochs


@dataclass(frozen=True)
class Assumption:
    text: str
    where: Condition = always


ASSUMPTIONS = {
    "fedetf": (
        Assumption(
            f"{SGD}, weight decay 5e-4, batch 128 (the paper's code), learning rate 0.04 on CIFAR-10 and 0.01 "
            "elsewhere, x0.99 a round; inputs normalised by 0.5, no augmentation (code)"
        ),
        Assumption("general: the mean over the last 5 rounds, on the whole test set (the code leaves out 2 % of it)"),
        Assumption(
            "personal: each client's own 30 % hold-out; FedETF after its Algorithm 2, the others after one more local "
            "training", personal,
        ),
        Assumption(
            "Algorithm 2: 20 turns of 3 epochs a stage; stage 0 at the rate the rounds end with, the classifier at 0.1 "
            "without momentum and weight decay, the projection at 0.05 with 0.9 and 5e-4: the code's, the paper names "
            "none", uses("algorithm2"),
        ),
        Assumption(
            "Algorithm 2 keeps its 3 epochs a stage where the rounds have more or fewer", other_epochs_than_algorithm2
        ),
        Assumption(
            "a class that a client has no sample of counts as one sample in the balanced loss (code)",
            uses("balanced", "fedrod"),
        ),
        Assumption(
            "fedetf-fixedtemp: beta = 1.0; the paper does not say", lambda c: c.row.method == "fedetf-fixedtemp"
        ),
        Assumption(
            "CCVR is the published method with the 10 virtual features a class and 100 epochs that the paper names, "
            "retraining by SGD at 0.01 with momentum 0.9 in batches of 64; the code's variant is a weaker one. Its "
            "personal figure is the calibrated model as it is in Table 1 on CIFAR, elsewhere after one more training",
            uses("ccvr"),
        ),
        Assumption("Ditto's lambda 0.001, as in the code; the paper does not say", uses("ditto")),
        Assumption(
            "the rounds of Table 4 are not sure: its FedAvg and FedETF are lower than Table 1's in the same setting; "
            "200 are taken", flagged("rounds_unsure"),
        ),
    ),
    "fedfn": (
        Assumption(
            f"{SGD}, batch 50, horizontal flips (paper); weight decay 1e-5 in Tables 2 and A8 and none elsewhere, "
            "where all clients weigh the same: defaults of the two codes the paper builds on"
        ),
        Assumption(
            "learning rate as the table names it; else 0.01 on CIFAR-10 and 0.1 on CIFAR-100, with +fn 0.03 (VGG11), "
            "0.5 (MobileNet) and 0.1 (ResNet18), SphereFed 0.3 with cross-entropy and 4.5 with the square loss"
        ),
        Assumption("x0.1 at one half and at three quarters of the rounds (also where the paper anneals by a cosine)"),
        Assumption("the paper has one run a cell"),
        Assumption(
            "table A12 names neither clients, sampling nor epochs: 100, 0.1 and 10 are taken", in_table("A12")
        ),
        Assumption(
            "Table 3 does not name its epochs: 15 are taken, as in the paper's other runs on CIFAR-10",
            flagged("epochs_assumed"),
        ),
        Assumption(
            "MobileNet's BatchNorm takes the statistics of each batch, in tests too (FedBABU's code)",
            every(runs("mobilenet"), lambda c: c.settings.bn_of("mobilenet") == "batch"),
        ),
        Assumption(
            "FedRep trains the classifier for the table's epochs and the body for one (FedBABU's code)", uses("fedrep")
        ),
        Assumption(
            "FedExP is judged on the mean of its last two iterates, as its authors do; the paper does not say",
            uses("fedexp"),
        ),
        Assumption(
            "pretrained rows: torchvision's ResNet-18 (resnet18_tv, 7x7 stem) on images of 32x32; the paper does not "
            "say whether it enlarged them", every(runs("resnet18_tv"), lambda c: c.row.model == "resnet18-pretrained"),
        ),
    ),
    "fedtc": (
        Assumption(f"{SGD}, weight decay 1e-5, batch 64, learning rate 0.01 x0.9 a round (FedTC's classifier 1e-4)"),
        Assumption(
            "training and test data are one pool of which each client holds out a quarter for its test (PFLlib)"
        ),
        Assumption("the paper does not state its rounds: 100; by round 60 the learning rate is below 2e-5"),
        Assumption(
            "accuracies are those of the last round on receiving the global model, before training; the paper may "
            "print the best round"
        ),
        Assumption(
            "the local classifier is kept by its client (text, Figure 2), not overwritten (Algorithm 1, line 13)",
            uses("fedtc"),
        ),
    ),
    "fedavg-etf-gmv": (
        Assumption(f"{SGD}, weight decay 5e-4, batch 64, learning rate 0.03 to the end; random crops and flips (code)"),
        Assumption("accuracy: the mean over the last 50 of 1000 rounds, and over the same share of a shorter run"),
        Assumption(
            "VGG11 has no fully connected layers and its classifier no bias (code); the paper does not say",
            runs("vgg11_nofc"),
        ),
        Assumption(
            "+gmv: alpha and the first round that uses the memory are the best of the paper's Table 3 for the scene; "
            "in a shorter run the memory starts after the same share of the rounds", uses("gmv"),
        ),
        Assumption(
            "FEMNIST is not in Table 3: the memory has alpha 0.5 and starts at round 500 of 1000, the least that the "
            "paper suggests",
            every(on("femnist"), uses("gmv")),
        ),
        Assumption(
            "beta_E multiplies the ETF; FedOpt is server SGD with momentum 0.9 and rate 0.1; SCAFFOLD's server rate is "
            "1; MOON's mu 0.01: the paper names none of them"
        ),
        Assumption(
            "FEMNIST: 100 writers and their own tests, no augmentation: a mirrored letter is another letter",
            on("femnist"),
        ),
        Assumption("six methods of Table 1 lost their names in print and are not run", in_table("1")),
    ),
    "ccvr": (
        Assumption(
            f"{SGD}, weight decay 1e-5, batch 64, learning rate 0.01 to the end, random crops and flips: defaults of "
            "the code the paper builds on; it tunes its methods on held-out data, we take mu = 0.01 for the proximal "
            "terms and MOON's own mu = 5"
        ),
        Assumption("CIFAR-100: images are also turned by up to 15 degrees (the same code)", on("cifar100")),
        Assumption(
            "10 epochs, 100 rounds and learning rate 0.01 are CIFAR-10's, taken over for CIFAR-100 and CINIC-10: the "
            "paper's Table 8 is missing", on("cifar100", "cinic10"),
        ),
        Assumption(
            "MobileNetV2 has standard inverted residuals, with strides for small images (mobilenetv2_std): the paper's "
            "Table 7 is missing", runs("mobilenetv2_std"),
        ),
        Assumption("our seeds draw new partitions too, the paper keeps one"),
        Assumption("Table 4 does not say how many clients take part in a round: all", in_table("4")),
    ),
}  # fmt: skip


def assumptions(cells: Sequence[Cell]) -> tuple[str, ...]:
    """The assumptions behind the cells of one paper."""
    paper = cells[0].row.paper
    texts = [a.text for a in ASSUMPTIONS[paper] if any(a.where(cell) for cell in cells)]
    return (*texts, *(retraining(cells) if paper == "ccvr" else ()))


def retraining(cells: Sequence[Cell]) -> list[str]:
    """How CCVR's own paper calibrates: the virtual features its table does not name, and the retraining."""
    counts: dict[str, dict[int, list[str]]] = {}  # data set -> virtual features -> partitions
    for cell in cells:
        piece: Any = pieces(cell).get("ccvr")
        if piece is not None and "virtual" not in cell.row.extra:
            counts.setdefault(cell.row.dataset, {}).setdefault(piece.per_class, []).append(cell.row.partition)
    texts = [
        f"{data} " + ", ".join(f"{n} at {' and '.join(dict.fromkeys(parts))}" for n, parts in found.items())
        for data, found in counts.items()
    ]
    source = " (CIFAR-10: what Tables 2 and 3 agree on; the others: the text)"
    lines = [f"virtual features a class: {'; '.join(texts)}{source}"] if texts else []
    if any(uses("ccvr", "oracle")(cell) for cell in cells):
        lines.append("retraining by SGD at 0.01 with momentum 0.9 for 100 epochs in batches of 64")
    if any(map(uses("ccvr"), cells)):
        lines.append(
            "CCVR's ReLU and Tukey's transform (0.5) act on virtual features and, as part of the calibrated "
            "classifier, on test features too; the oracle has neither: the paper does not say"
        )
    return lines

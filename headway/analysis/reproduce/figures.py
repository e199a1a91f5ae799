"""The papers' figures as presets: which runs, which diagnostics; and the list of all that can be made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.analysis.published import NAMES, Published
from headway.analysis.reproduce import plan
from headway.analysis.reproduce.trainings import folder_of
from headway.base.errors import ConfigError

USUAL = {  # a paper's usual setting on a data set: model, clients, sampling, epochs
    ("fedetf", "cifar10"): ("resnet20", 20, 1.0, 3),
    ("fedetf", "cifar100"): ("resnet20", 20, 1.0, 3),
    ("fedfn", "cifar10"): ("vgg11", 100, 0.1, 15),
    ("fedfn", "cifar100"): ("mobilenet", 100, 0.1, 5),
    ("fedtc", "cifar10"): ("mcmahan_cnn", 10, 1.0, 5),
    ("fedavg-etf-gmv", "cifar10"): ("vgg11", 100, 0.1, 2),
    ("fedavg-etf-gmv", "cifar100"): ("vgg11", 100, 0.1, 2),
    ("ccvr", "cifar10"): ("moon_cnn", 10, 1.0, 10),
    ("ccvr", "cifar100"): ("mobilenetv2", 10, 1.0, 10),
    ("ccvr", "cinic10"): ("mobilenetv2", 10, 1.0, 10),
}
FEDAVG = ("fedavg",)
ETF_TABLE = (
    "fedavg", "fedprox", "feddyn", "ditto", "fedrep", "ccvr", "fedproto", "fedrod", "fednh", "fedetf",
)  # fmt: skip
MEMORY = ("fedavg", "fedavg+etf", "fedavg+gmv", "fedavg+etf+gmv")
CALIBRATED = ("fedavg", "fedprox", "moon")
REGULARISED = (*CALIBRATED, "fedavg+clsnorm", "fedavg+clsprox")
DIMENSIONS = tuple(f"fedavg+etfproj(d={d})+balanced+algorithm2" for d in (10, 32, 64, 128, 256))
FEATURE_NORMS = tuple(f"fedfr(mu={mu})" for mu in ("0", "0.0001", "0.0005", "0.001", "0.005", "0.01", "0.05"))
SHARDS = ("iid", "shard(10)", "shard(5)", "shard(2)")
ALPHAS = ("dir(0.5)", "dir(0.1)", "dir(0.05)")


@dataclass(frozen=True)
class Scene:
    """Every method under every partition on one data set, in the paper's usual setting of it."""

    methods: tuple[str, ...]
    partitions: tuple[str, ...]
    dataset: str = "cifar10"
    epochs: tuple[int, ...] = ()  # none: the usual


@dataclass(frozen=True)
class Preset:
    """A figure: its runs scene by scene, what is looked at in each, and how they are drawn together."""

    name: str
    shows: str
    scenes: tuple[Scene, ...]
    diagnostics: tuple[str, ...] = ()
    watch: tuple[str, ...] = ()  # looked at in every round, as far as it can be
    joint: str = ""  # a drawing of joint.JOINTS, beside the learning curves
    metric: str = "global_acc"
    chosen: str = ""  # what the paper does not say of this figure, and what is taken

    @property
    def paper(self) -> str:
        return self.name.partition("/")[0]

    def rows(self) -> list[Published]:
        """The runs as rows of a table; a number that the paper prints with the figure is among them."""
        printed = {(r.dataset, r.partition, r.method): r for r in plan.tables().get(self.name, ())}
        return [
            printed.get((scene.dataset, partition, method)) or self.row(scene, partition, method, epochs)
            for scene in self.scenes
            for epochs in scene.epochs or (None,)
            for partition in scene.partitions
            for method in scene.methods
        ]

    def row(self, scene: Scene, partition: str, method: str, epochs: int | None) -> Published:
        model, clients, sampling, usual = USUAL[self.paper, scene.dataset]
        return Published(
            self.paper, self.name.partition("/")[2], scene.dataset, model, partition, clients, sampling,
            epochs or usual, None, method, self.metric, None, None, {},
        )  # fmt: skip

    def cells(self, scale: str, changes: Mapping[str, Any], words: str | None = None) -> list[plan.Cell]:
        """The trainings of the figure, or of the rows that are asked for; what `changes` make equal is one."""
        counted = {"rounds": 1} if self.diagnostics == ("labels",) else {}  # no training changes who holds what
        made = plan.cells(plan.chosen(self.rows(), words), scale, counted | dict(changes))
        alike: dict[tuple[str | None, ...], plan.Cell] = {}
        for cell in made:
            alike.setdefault((folder_of(cell), cell.calibration, cell.personalisation), cell)
        return list(alike.values())


FIGURES = {
    preset.name: preset
    for preset in (
        Preset("fedetf/fig1", "classifiers and prototypes of clients drift apart under label skew",
               (Scene(FEDAVG, ("dir(0.5)", "dir(0.05)")),), ("labels", "consistency", "class_vectors"),
               joint="classifiers", chosen="alpha 0.5 and 0.05: the paper does not name those of this figure"),
        Preset("fedetf/fig4", "accuracy of the global model over rounds, alpha 0.05",
               (Scene(ETF_TABLE, ("dir(0.05)",)), Scene(ETF_TABLE, ("dir(0.05)",), "cifar100"))),
        Preset("fedetf/fig5", "prototype consistency and neural-collapse error over rounds",
               (Scene(("fedavg", "fedetf"), ("dir(0.05)",)),), ("traces", "consistency", "collapse"),
               ("consistency", "collapse"), "alignment"),
        Preset("fedetf/fig6", "feature dimension against accuracy and neural-collapse error; stages of Algorithm 2",
               (Scene((*DIMENSIONS, *FEDAVG), ("dir(0.1)",)),), ("collapse", "traces"), joint="dimension",
               chosen="dimensions 10, 32, 64, 128 and 256: the paper's text does not name them"),
        Preset("fedetf/fig7", "who holds which labels", (Scene(FEDAVG, ("dir(0.1)", "dir(0.05)")),), ("labels",),
               joint="labels"),
        Preset("fedetf/fig8", "accuracy of the global model over rounds, alpha 0.1",
               (Scene(ETF_TABLE, ("dir(0.1)",)), Scene(ETF_TABLE, ("dir(0.1)",), "cifar100"))),
        Preset("fedfn/fig1", "four-factor analysis of FedAvg", (Scene(FEDAVG, ("shard(10)", "shard(2)")),),
               ("four_factors",), joint="four_factors"),
        Preset("fedfn/fig2", "norms of classifier rows and features, local and global, over rounds",
               (Scene(FEDAVG, ("shard(2)",)),), ("norms",), ("norms",)),
        Preset("fedfn/fig3", "the gap of feature norms between local and global models under growing skew",
               (Scene(FEDAVG, SHARDS),), ("norms",), ("norms",), "feature_gap"),
        Preset("fedfn/fig4", "accuracy and feature norms under a growing penalty on feature norms",
               (Scene(FEATURE_NORMS, ("shard(2)", "shard(3)", "shard(5)", "shard(10)")),
                Scene(FEATURE_NORMS[:1], ("iid",))), ("norms",), ("norms",), "penalty"),
        Preset("fedfn/fig5", "four-factor analysis of FedFN", (Scene(("fedfn",), ("shard(10)", "shard(2)")),),
               ("four_factors",), joint="four_factors"),
        Preset("fedfn/figA1", "weight norms of FedFN's local and global models", (Scene(("fedfn",), ("shard(2)",)),),
               ("norms",), ("norms",)),
        Preset("fedfn/figA2", "the gap of FedFN's weight norms between local and global models under growing skew",
               (Scene(("fedfn",), SHARDS),), ("norms",), ("norms",), "weight_gap"),
        Preset("fedfn/figA3", "the modules in centralised training",
               (Scene(("centralized", "centralized+babu", "centralized+fn"), ("iid",), "cifar100", (1,)),),
               chosen="320 rounds of one epoch over all data, learning rate 0.1 and with fn 0.5: the paper names none"),
        Preset("fedtc/fig3", "accuracy of FedAvg and of local training against alpha",
               (Scene(("fedavg", "local"), ("dir(0.1)", "dir(0.5)", "dir(5.0)")),), joint="alpha",
               metric="pooled_local_acc"),
        Preset("fedtc/fig4", "who holds which labels", (Scene(FEDAVG, ("dir(0.1)", "dir(0.5)", "dir(5.0)")),),
               ("labels",), joint="labels"),
        Preset("fedavg-etf-gmv/fig5", "accuracy over rounds, smoothed",
               (Scene(MEMORY, ("classes(2)", "classes(5)"), epochs=(2, 5)),
                Scene(MEMORY, ("classes(20)",), "cifar100", (2, 5))), ("traces",), joint="smoothed"),
        Preset("ccvr/fig1", "CKA of layers between client models", (Scene(FEDAVG, ("dir(0.1)",)),), ("cka",)),
        Preset("ccvr/fig2", "mean CKA of every layer", (Scene(FEDAVG, ("iid", *ALPHAS)),), ("cka",), joint="layers"),
        Preset("ccvr/fig3", "classifier weight norms beside label counts, by round and partition",
               (Scene(FEDAVG, ("iid", *ALPHAS)),), ("labels", "classifier_norms"), ("classifiers",), "class_norms"),
        Preset("ccvr/fig5", "t-SNE of features: truth, before and after calibration",
               (Scene(FEDAVG, ("dir(0.5)",), "cinic10"),), ("tsne",)),
        Preset("ccvr/fig6", "separability of the class Gaussians against the oracle's gain",
               (Scene(("fedavg", "fedprox", "fedavgm", "moon"), ("dir(0.1)",)),), ("separability",),
               joint="separability"),
        Preset("ccvr/fig8", "an image made again from its feature", (Scene(FEDAVG, ("dir(0.1)",)),), ("inversion",)),
        Preset("ccvr/fig9", "an image made again from the mean of features", (Scene(FEDAVG, ("dir(0.1)",)),),
               ("inversion",)),
        Preset("ccvr/fig10", "classifier weight norms before and after calibration",
               (Scene(CALIBRATED, ("dir(0.1)",)),), ("classifier_norms",), joint="class_norms"),
        Preset("ccvr/fig11", "mean CKA of every layer, by method", (Scene(REGULARISED, ("dir(0.1)",)),), ("cka",),
               joint="layers"),
        Preset("ccvr/fig12", "classifier weight norms of clients in different rounds, by method",
               (Scene(CALIBRATED, ("dir(0.1)",)),), ("classifier_norms",), ("classifiers",), "class_norms"),
        Preset("ccvr/fig13", "t-SNE of features, by method", (Scene(CALIBRATED, ("dir(0.5)",), "cinic10"),), ("tsne",)),
        Preset("ccvr/fig15", "who holds which labels",
               (Scene(FEDAVG, ALPHAS), Scene(FEDAVG, ("dir(0.5)",), "cifar100"),
                Scene(FEDAVG, ("dir(0.5)",), "cinic10")), ("labels",), joint="labels"),
    )
}  # fmt: skip
AS_TABLES = {  # figures that plot a table's numbers
    "ccvr/fig4": "ccvr/table5", "ccvr/fig7": "ccvr/table3", "ccvr/fig14": "ccvr/table3",
}  # fmt: skip
DRAWINGS = {  # nothing is measured in them
    "fedetf": ("fig2", "fig3"), "fedtc": ("fig1", "fig2"), "fedavg-etf-gmv": ("fig1", "fig2", "fig3", "fig4"),
}  # fmt: skip


def find(name: str) -> Preset | None:
    """The preset of a figure; None where the name is not a figure's."""
    known = {key.lower(): key for key in (*FIGURES, *AS_TABLES)}
    paper, _, part = name.strip().lower().partition("/")
    part = part.replace("figure", "fig")
    if part in DRAWINGS.get(paper, ()):
        raise ConfigError(f"table={name}: that figure is a drawing, nothing is measured in it; see `headway reproduce`")
    key = known.get(f"{paper}/{part}")
    if key in AS_TABLES:
        raise ConfigError(f"table={name}: it plots the numbers of {AS_TABLES[key]}; reproduce that")
    if part.startswith("fig") and key is None and f"{paper}/{part}" not in plan.tables():
        theirs = [k.partition("/")[2] for k in FIGURES if k.startswith(f"{paper}/")]
        raise ConfigError(f"table={name}: {paper} has {', '.join(theirs) or 'no figure'} here; see `headway reproduce`")
    return None if key is None else FIGURES[key]


def listing() -> list[dict[str, Any]]:
    """Every table and figure that can be made again."""
    entries = []
    for name, rows in plan.tables().items():
        if name in FIGURES:
            continue
        values = {key: sorted({str(getattr(r, key)) for r in rows}) for key in ("dataset", "partition", "method")}
        entries.append({"name": name, "kind": "table", "rows": len(rows), **values})
    entries += [
        {"name": p.name, "kind": "figure", "shows": p.shows, "diagnostics": list(p.diagnostics)}
        | {key: list(dict.fromkeys(getattr(r, key) for r in p.rows())) for key in ("dataset", "partition", "method")}
        for p in FIGURES.values()
    ]
    entries += [{"name": k, "kind": "figure", "shows": f"the numbers of {v}"} for k, v in AS_TABLES.items()]
    order = list(NAMES)
    return sorted(entries, key=lambda t: (order.index(t["name"].partition("/")[0]), t["kind"] == "figure"))


def show_listing(console: Console, listed: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("name", "what", "data"):
        table.add_column(column, no_wrap=column == "name")
    for entry in listed:
        what = entry.get("shows") or f"{entry['rows']} numbers: {few(entry['method'])}; {few(entry['partition'])}"
        table.add_row(entry["name"], escape(what), ", ".join(entry.get("dataset", [])))
    console.print(table)
    console.print(
        "\n`headway reproduce fedetf/table4 --rows 'dir(0.05)'` runs some rows of one at CPU scale", markup=False
    )


def few(values: list[str], most: int = 6) -> str:
    return ", ".join(values[:most]) + (f" and {len(values) - most} more" if len(values) > most else "")

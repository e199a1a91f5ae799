"""The papers' figures as presets: which runs, which diagnostics; and the list of all that can be made again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.errors import ConfigError
from headway.published import NAMES, Published
from headway.reproduce import plan

CIFAR10 = {  # a paper's usual setting on CIFAR-10: model, clients, sampling, epochs
    "fedetf": ("resnet20", 20, 1.0, 3),
    "fedfn": ("vgg11", 100, 0.1, 15),
    "fedtc": ("mcmahan_cnn", 10, 1.0, 5),
    "fedavg-etf-gmv": ("vgg11", 100, 0.1, 2),
    "ccvr": ("moon_cnn", 10, 1.0, 10),
}
ETF_TABLE = ("fedavg", "fedprox", "feddyn", "fedrod", "fednh", "fedetf")
MEMORY = ("fedavg", "fedavg+etf", "fedavg+gmv", "fedavg+etf+gmv")
CALIBRATED = ("fedavg", "fedprox", "moon")


@dataclass(frozen=True)
class Preset:
    """A figure: every method under every partition, and what is looked at; curves are drawn of all runs together."""

    name: str
    shows: str
    methods: tuple[str, ...]
    partitions: tuple[str, ...]
    diagnostics: tuple[str, ...] = ()
    watch: tuple[str, ...] = ()  # looked at in every round
    dataset: str = "cifar10"

    @property
    def paper(self) -> str:
        return self.name.partition("/")[0]

    def cells(self, scale: str, changes: dict[str, Any]) -> list[plan.Cell]:
        """The trainings of the figure, in the paper's usual setting."""
        model, clients, sampling, epochs = CIFAR10[self.paper]
        table = self.name.partition("/")[2]
        rows = [
            Published(self.paper, table, self.dataset, model, partition, clients, sampling, epochs, None, method,
                      "global_acc", None, None, {})
            for partition in self.partitions for method in self.methods
        ]  # fmt: skip
        return plan.cells(rows, scale, changes)


FIGURES = {
    preset.name: preset
    for preset in (
        Preset("fedetf/fig1", "classifiers and prototypes of clients drift apart under label skew", ("fedavg",),
               ("dir(0.05)", "dir(0.5)"), ("consistency", "class_vectors")),
        Preset("fedetf/fig4", "accuracy of the global model over rounds, alpha 0.05", ETF_TABLE, ("dir(0.05)",)),
        Preset("fedetf/fig5", "prototype consistency and neural-collapse error over rounds", ("fedavg", "fedetf"),
               ("dir(0.05)",), ("traces", "consistency", "collapse"), ("consistency", "collapse")),
        Preset("fedetf/fig6", "feature dimension against accuracy and neural-collapse error; stages of Algorithm 2",
               tuple(f"fedavg+etfproj(d={d})+balanced+algorithm2" for d in (10, 32, 64, 128, 256)), ("dir(0.1)",),
               ("collapse", "traces")),
        Preset("fedetf/fig7", "who holds which labels", ("fedavg",), ("dir(0.1)", "dir(0.05)"), ("labels",)),
        Preset("fedetf/fig8", "accuracy of the global model over rounds, alpha 0.1", ETF_TABLE, ("dir(0.1)",)),
        Preset("fedfn/fig1", "four-factor analysis of FedAvg", ("fedavg",), ("shard(10)", "shard(2)"),
               ("four_factors",)),
        Preset("fedfn/fig2", "norms of classifier rows and features, local and global, over rounds", ("fedavg",),
               ("shard(2)",), ("norms",), ("norms",)),
        Preset("fedfn/fig3", "the gap of feature norms between local and global models under growing skew", ("fedavg",),
               ("shard(10)", "shard(5)", "shard(3)", "shard(2)"), ("norms",), ("norms",)),
        Preset("fedfn/fig5", "four-factor analysis of FedFN", ("fedfn",), ("shard(10)", "shard(2)"), ("four_factors",)),
        Preset("fedfn/figA1", "weight norms of FedFN's local and global models", ("fedavg", "fedfn"), ("shard(2)",),
               ("norms",), ("norms",)),
        Preset("fedfn/figA2", "the same under growing skew", ("fedfn",),
               ("shard(10)", "shard(5)", "shard(3)", "shard(2)"), ("norms",), ("norms",)),
        Preset("fedfn/figA3", "the modules in centralised training",
               ("centralized", "centralized+babu", "centralized+fn"), ("shard(10)",)),
        Preset("fedtc/fig3", "FedAvg and local training over rounds", ("fedavg", "local"),
               ("dir(0.1)", "dir(0.5)", "dir(5.0)")),
        Preset("fedtc/fig4", "who holds which labels", ("fedavg",), ("dir(0.1)", "dir(0.5)", "dir(5.0)"), ("labels",)),
        Preset("fedavg-etf-gmv/fig5", "accuracy over rounds, smoothed", MEMORY, ("classes(2)", "classes(5)"),
               ("traces",)),
        Preset("ccvr/fig1", "CKA of layers between client models", ("fedavg",), ("dir(0.1)",), ("cka",)),
        Preset("ccvr/fig2", "mean CKA of every layer", ("fedavg",), ("dir(0.5)", "dir(0.1)", "dir(0.05)"), ("cka",)),
        Preset("ccvr/fig3", "classifier weight norms beside label counts", ("fedavg",), ("dir(0.1)",),
               ("labels", "classifier_norms")),
        Preset("ccvr/fig5", "t-SNE of features: truth, before and after calibration", ("fedavg",), ("dir(0.5)",),
               ("tsne",), (), "cinic10"),
        Preset("ccvr/fig6", "separability of the class Gaussians against the oracle's gain",
               ("fedavg", "fedprox", "fedavgm", "moon"), ("dir(0.1)",), ("separability",)),
        Preset("ccvr/fig8", "an image made again from its feature", ("fedavg",), ("dir(0.1)",), ("inversion",)),
        Preset("ccvr/fig9", "an image made again from the mean of features", ("fedavg",), ("dir(0.1)",),
               ("inversion",)),
        Preset("ccvr/fig10", "classifier weight norms before and after calibration", CALIBRATED, ("dir(0.1)",),
               ("classifier_norms",)),
        Preset("ccvr/fig11", "mean CKA of every layer, by method", CALIBRATED, ("dir(0.1)",), ("cka",)),
        Preset("ccvr/fig12", "classifier weight norms of clients, by method", CALIBRATED, ("dir(0.1)",),
               ("classifier_norms",)),
        Preset("ccvr/fig13", "t-SNE of features, by method", CALIBRATED, ("dir(0.5)",), ("tsne",), (), "cinic10"),
        Preset("ccvr/fig15", "who holds which labels", ("fedavg",), ("dir(0.5)", "dir(0.1)", "dir(0.05)"), ("labels",)),
    )
}  # fmt: skip
AS_TABLES = {  # figures that plot a table's numbers
    "fedfn/fig4": "fedfn/tableA13", "ccvr/fig4": "ccvr/table5", "ccvr/fig7": "ccvr/table3", "ccvr/fig14": "ccvr/table3",
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
    told = []
    for name, rows in plan.tables().items():
        if name in FIGURES:
            continue
        values = {key: sorted({str(getattr(r, key)) for r in rows}) for key in ("dataset", "partition", "method")}
        told.append({"name": name, "kind": "table", "rows": len(rows), **values})
    told += [
        {"name": p.name, "kind": "figure", "shows": p.shows, "dataset": [p.dataset], "partition": list(p.partitions),
         "method": list(p.methods), "diagnostics": list(p.diagnostics)}
        for p in FIGURES.values()
    ]  # fmt: skip
    told += [{"name": k, "kind": "figure", "shows": f"the numbers of {v}"} for k, v in AS_TABLES.items()]
    order = list(NAMES)
    return sorted(told, key=lambda t: (order.index(t["name"].partition("/")[0]), t["kind"] == "figure"))


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

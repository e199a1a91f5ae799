"""The registry: the pieces in the order of their slots, and the names that stand for a sum of pieces."""

from __future__ import annotations

from headway.grammar import Registry
from headway.methods.babu import Babu
from headway.methods.balanced import Balanced
from headway.methods.ccvr import CCVR
from headway.methods.etf import ETF
from headway.methods.etfproj import ETFProj
from headway.methods.fedavg import FedAvg
from headway.methods.fedavgm import FedAvgM
from headway.methods.fedper import FedPer
from headway.methods.fedrep import FedRep
from headway.methods.fedtc import FedTC
from headway.methods.finetune import Finetune
from headway.methods.fn import FN
from headway.methods.gmv import GMV
from headway.methods.moon import Moon
from headway.methods.prox import Prox
from headway.methods.scaffold import Scaffold
from headway.recipes import Recipe

REGISTRY = Registry(
    pieces=[
        # base
        FedAvg, FedAvgM, Scaffold,
        # head
        FN, Babu, ETF, ETFProj,
        # loss
        Balanced,
        # reg
        Prox, Moon, GMV,
        # share
        FedPer, FedRep, FedTC,
        # personal
        Finetune,
        # calib
        CCVR,
    ],
    aliases={
        "fedprox": "fedavg+prox",
        "fedfn": "fedavg+fn",
        "fedbabu": "fedavg+babu",
        "fedavg_etf": "fedavg+etf",
        "fedetf": "fedavg+etfproj+balanced",
        "fedetf-nobalance": "fedavg+etfproj",
        "fedetf-noproj": "fedavg+etfproj(project=false)+balanced",
        "fedetf-fixedtemp": "fedavg+etfproj(temperature=fixed)+balanced",
        "ft": "finetune",
    },
    default_base=FedAvg,
)  # fmt: skip


def recipe(text: str) -> Recipe:
    """`scaffold+fn`, `moon(mu=5)+ccvr`: the recipe that the text describes."""
    return REGISTRY.parse(text)

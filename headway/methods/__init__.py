"""The methods: one file a paper, with the head it brings; here the registry of pieces and of names for sums of them.

May import core, models, data and base. Everything above asks the registry and names no method.
"""

from __future__ import annotations

from headway.base.registered import find_installed_by
from headway.core.compatibility import is_frozen
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.core.registry import Registry
from headway.methods.algorithm2 import Algorithm2
from headway.methods.babu import Babu
from headway.methods.balanced import Balanced
from headway.methods.ccvr import CCVR
from headway.methods.centralized import Centralized
from headway.methods.clsnorm import ClsNorm
from headway.methods.clsprox import ClsProx
from headway.methods.cosine import Cosine
from headway.methods.ditto import Ditto
from headway.methods.dotreg import DotReg
from headway.methods.etf import ETF
from headway.methods.etfproj import ETFProj
from headway.methods.featnorm import FeatNorm
from headway.methods.fedavg import FedAvg
from headway.methods.fedavgm import FedAvgM
from headway.methods.feddyn import FedDyn
from headway.methods.fedexp import FedExP
from headway.methods.fednh import Proto
from headway.methods.fednova import FedNova
from headway.methods.fedopt import FedAdagrad, FedAdam, FedOpt, FedYogi
from headway.methods.fedper import FedPer
from headway.methods.fedrep import FedRep
from headway.methods.fedrod import FedRoD
from headway.methods.fedtc import FedTC
from headway.methods.ffc import FFC
from headway.methods.finetune import Finetune
from headway.methods.fn import FN
from headway.methods.gmv import GMV
from headway.methods.lgfedavg import LGFedAvg
from headway.methods.linear import CE, All, Linear, NoBias
from headway.methods.local_only import LocalOnly
from headway.methods.mmd import MMD
from headway.methods.moon import Moon
from headway.methods.mse import MSE
from headway.methods.ntd import NTD
from headway.methods.oracle import Oracle
from headway.methods.ownmodel import OwnModel
from headway.methods.perfedavg import OneStep, PerFedAvg
from headway.methods.personal import Alternate, ExtraEpoch
from headway.methods.protoalign import ProtoAlign
from headway.methods.prox import Prox
from headway.methods.restricted import Restricted
from headway.methods.scaffold import Scaffold
from headway.methods.sphere import Sphere
from headway.methods.spread import Spread

REGISTRY = Registry(
    pieces=[
        # base
        FedAvg, FedAvgM, FedOpt, FedAdagrad, FedAdam, FedYogi, Scaffold, FedNova, FedDyn, FedExP, PerFedAvg, LocalOnly,
        Centralized,
        # head
        Linear, NoBias, FN, Babu, ETF, ETFProj, Sphere, ClsNorm, Cosine, Proto,
        # loss
        CE, Balanced, Restricted, MSE, DotReg,
        # reg
        Prox, ClsProx, FeatNorm, Moon, MMD, NTD, ProtoAlign, GMV,
        # share
        All, FedPer, FedRep, LGFedAvg, OwnModel, FedRoD, FedTC,
        # post
        Spread,
        # personal
        ExtraEpoch, Finetune, Alternate, Ditto, OneStep, Algorithm2,
        # calib
        CCVR, Oracle, FFC,
    ],
    aliases={
        "fedprox": "fedavg+prox",
        "fedmmd": "fedavg+mmd",
        "fedntd": "fedavg+ntd",
        "fedfr": "fedavg+featnorm",
        "fedrs": "fedavg+restricted+nobias",
        "fedaws": "fedavg+spread",
        "fedfn": "fedavg+fn",
        "fedbabu": "fedavg+babu",
        "fedavg_etf": "fedavg+etf",
        "fedetf": "fedavg+etfproj+balanced",
        "fedetf-nobalance": "fedavg+etfproj",
        "fedetf-noproj": "fedavg+etfproj(project=false)+balanced",
        "fedetf-fixedtemp": "fedavg+etfproj(temperature=fixed)+balanced",
        "spherefed-ce": "fedavg+sphere",
        "spherefed-mse": "fedavg+sphere+mse",
        "fednh": "fedavg+proto",
        "fedproto": "fedavg+ownmodel+protoalign",
        "body": "fedper",
        "head": "lgfedavg",
        "ema_proto": "proto",
        "phead": "fedrod",
        "dual": "fedrod",
        "twin": "fedtc",
        "ft": "finetune",
        "alg2": "algorithm2",
    },
    default_base=FedAvg,
    implied={"perfedavg": lambda p: OneStep(lr=getattr(p, "alpha", None))},
)  # fmt: skip


def _find_installed() -> None:
    """Register what installed packages bring (plugins.py), the first time that a name is not known here."""
    from headway.methods.plugins import load_entry_points  # it imports this module

    load_entry_points()


find_installed_by(_find_installed)


def calibration_bound(recipe: Recipe) -> Piece:
    """What a recipe's calibration cannot beat: the same retraining on real features."""
    return Oracle.bound_of(recipe)


def virtual_calibration(recipe: Recipe, shares_head: bool) -> tuple[Piece, Piece]:
    """The calibration on virtual features that fits a recipe, and its bound on real ones."""
    start = "server" if shares_head else "mean_of_personal"
    virtual = CCVR(replace_head=is_frozen(recipe), global_head=start)
    return virtual, Oracle(replace_head=is_frozen(recipe), global_head=start)


def recipe(text: str) -> Recipe:
    """`scaffold+fn`, `moon(mu=5)+ccvr`: the recipe that the text describes."""
    return REGISTRY.parse(text)

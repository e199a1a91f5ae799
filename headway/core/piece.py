"""Piece: the hooks of one round, in the order of the round, each with its FedAvg default and its folding rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from headway.base.lazy import F, Tensor, torch
from headway.base.tree import Tree
from headway.core.arrived import Arrived
from headway.core.local import Batch, Local
from headway.core.phase import Phase, Step
from headway.core.setting import check_setting
from headway.core.state import Note

if TYPE_CHECKING:
    from headway.core.compatibility import Setup
    from headway.models.net import Net

Hook = TypeVar("Hook", bound=Callable[..., Any])
HOOKS: dict[str, str] = {}  # hook name -> fold, in the order of the round; filled by the marks below
SLOTS = ("base", "head", "loss", "reg", "share", "post", "personal", "calib")  # in the order of a recipe


def _mark(fold: str) -> Callable[[Hook], Hook]:
    def mark(hook: Hook) -> Hook:
        HOOKS[hook.__name__] = fold
        return hook

    return mark


one, chain, total, merge, own, union = (_mark(fold) for fold in ("one", "chain", "total", "merge", "own", "union"))


class Grad(Protocol):
    """One forward and backward pass: the gradient of the recipe's loss over all parameters, personal ones too.

    `at`: at these parameters instead of the present ones, which are restored. `batch`: 0 is the step's own; 1, 2, ...
    are drawn from the client's data, the same one for the same number. `still`: do not update running statistics.
    """

    def __call__(self, at: Tree | None = None, batch: int = 0, still: bool = False) -> Tree: ...


@dataclass(frozen=True)
class Piece:
    """What one paper adds to the round. The default of every hook is FedAvg.

    A piece is a frozen dataclass: its fields are its settings, its class has a `name` and a `slot`, its methods are
    hooks. It has no other state than its notes: `kept` (between rounds), `sent` (between server and clients) and
    `ready` (during one round on one client). The mark on a hook says how a recipe combines several pieces:
      @one    a single piece decides                 @chain  each transforms the result of the one before
      @total  results are added up                   @merge  named values are combined; a conflict is an error
      @own    each has its own notes                 @union  the union of sets

    Args of the hooks:
        w: Shared parameters by name, a `Tree`, which adds and scales like one vector.
        g: Their gradient.
        net: The model: `net.features(x)`, `net.head(h)`, `net.params()`.
        local: The client as the piece sees it (core/local.py): its data, w^t, its notes.
        batch: x [B, ...], y [B], features h [B, d], logits z [B, C] of a step.
        arrived: The round as the server sees it (core/arrived.py): reports, weights p, the piece's note.
        kept, sent: The piece's own note, and what its server side sent.

    In the examples of the hooks w^t = (1, 2), and two of four clients answer (0, 4) and (2, 4) with p = (1/4, 3/4).

    Example:
        A regulariser of one hook, and a run with it:

        >>> import headway
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class SmallLogits(headway.Piece):
        ...     name, slot = "smalllogits", "reg"
        ...     mu: float = headway.setting(0.1, "mu, strength", ge=0, neutral=0.0)
        ...
        ...     def penalty(self, batch, local):
        ...         return self.mu * batch.z.square().mean()
        >>> run = headway.run(SmallLogits(mu=0.5), clients=2, rounds=1, train_size=100)
        >>> run.config["recipe"]
        'fedavg+smalllogits(mu=0.5)'
    """

    name: ClassVar[str]  # as recipes write it
    slot: ClassVar[str]  # base, head, loss, reg, share, post, personal or calib: its kind, and its place in a recipe
    paper: ClassVar[str] = ""  # key of its paper in methods/references.py, or BibTeX of its own

    def __post_init__(self) -> None:
        for f in fields(self):
            kinds = getattr(f.type, "__name__", str(f.type)).split(" | ")  # a class, or text such as int | None
            check_setting(self.name, f.name, getattr(self, f.name), f.metadata, whole="int" in kinds)

    # ---- what it requires and provides (core/traits.py lists the traits)
    @union
    def requires(self) -> set[str]:
        """Traits that the rest of the recipe must have. Used by FedProx, MOON, FedMMD, FedNTD, SCAFFOLD, CCVR, ...

        >>> sorted(methods.Prox().requires())
        ['global body', 'server']"""
        return set()

    @union
    def provides(self) -> set[str]:
        """Traits that the recipe has because of it. Used by local, centralized, Ditto, FedExP, CCVR.

        >>> methods.Ditto().provides()
        {'own model'}
        """
        return set()

    @own
    def check(self, setup: Setup) -> list[str]:
        """Raise RecipeError if it cannot work here; return advice. Used by FedETF, SphereFed, FedNova, GMV, CCVR.

        >>> methods.ETF().check(Setup(recipe("etf"), dim=64, classes=10))
        []
        """
        return []

    # ---- the model: h = body(x), z = head(h)
    @merge
    def head(self) -> dict[str, Any]:
        """Choices for the classifier (models/heads.py). Used by FedETF, FedFN, BABU, SphereFed, FedTC, FedRoD, ...

        >>> methods.FN().head()
        {'feat': 'l2', 'bias': False}
        """
        return {}

    # ---- first notes: of the server in round 0, of a client in its first round
    @own
    def init_server(self, w: Tree, net: Net) -> Note:
        """The server's first note; w are the shared parameters. Used by SCAFFOLD, FedDyn, FedOpt, FedProto, FedNH.

        >>> methods.FedDyn().init_server(w, net)
        {'h': {'u': tensor([0., 0.])}}
        """
        return {}

    @own
    def init_client(self, w: Tree) -> Note:
        """A client's first note; w is what it receives first. Used by SCAFFOLD, FedDyn, MOON, Ditto.

        >>> methods.Moon().init_client(w)
        {'w': {'u': tensor([1., 2.])}}
        """
        return {}

    # ---- server -> clients
    @one
    def share(self, name: str) -> bool:
        """Whether a parameter is shared; False: it stays on its client. Used by FedPer, FedRep, FedTC, LG-FedAvg.

        >>> methods.FedPer().share("head.weight"), methods.FedPer().share("body.weight")
        (False, True)
        """
        return True

    @own
    def broadcast(self, kept: Note) -> Note:
        """What it sends to every client in addition to w. Used by SCAFFOLD, GMV, FedProto, FedNH.

        >>> methods.Scaffold().broadcast({"c": w})
        {'c': {'u': tensor([1., 2.])}}
        """
        return {}

    @merge
    def equip(self, sent: Note, counts: Tensor | None) -> Tree:
        """Tensors put into the net, in training and evaluation: from what was sent, or from the client's class counts
        [C] (None for the global model). Used by FedNH, FedProto, FedRoD.

        >>> methods.Proto().equip({"W": torch.eye(2)}, None)
        {'head.weight': tensor([[1., 0.],
                [0., 1.]])}
        """
        return Tree()

    # ---- on the client, before the first step
    @one
    def phases(self, epochs: int) -> list[Phase]:
        """The phases of local training. Used by FedRep, FedTC.

        >>> [phase.epochs for phase in methods.FedRep(head_epochs=10).phases(1)]
        [10, 1]
        """
        return [Phase(epochs)]

    @chain
    def step(self, step: Step, name: str) -> Step:
        """The step of a parameter in local training. Used by FedProx, FedNova, FedRoD.

        >>> methods.Prox(mu=0.1, plain_sgd=True).step(Step(rate=0.5, momentum=0.9, decay=0.0), "u")
        Step(rate=0.5, momentum=0.0, decay=0.0, pull=0.1)
        """
        return step

    @own
    def prepare(self, local: Local) -> Note:
        """Teachers, priors or masks for this round, available as local.ready. Used by MOON, FedNTD, FedRS, FedETF.

        >>> methods.Ditto().prepare(local)
        {'received': {'u': tensor([0., 4.])}}
        """
        return {}

    # ---- on the client, every step
    @chain
    def lift(self, h: Tensor, y: Tensor, local: Local) -> Tensor:
        """Features [B, d] for the classifier, in training only. Used by GMV.

        >>> methods.GMV(alpha=0.5, warmup=1).lift(batch.h, batch.y, local)  # h + alpha mu_y
        tensor([[2., 0.],
                [0., 3.]])
        """
        return h

    @one
    def criterion(self, batch: Batch, local: Local) -> Tensor:
        """The loss of a batch, a scalar. Used by FedETF, FedRS, SphereFed, FedTC, FedRoD.

        >>> methods.MSE().criterion(batch, local)  # squared errors 1, 0, 0, 0
        tensor(0.2500)
        """
        return F.cross_entropy(batch.z, batch.y)

    @total
    def penalty(self, batch: Batch, local: Local) -> Tensor:
        """A term that is added to the loss, a scalar. Used by FedProx, MOON, FedDyn, FedNTD, FedFR, FedProto.

        >>> methods.Prox(mu=2.0).penalty(batch, local)  # mu/2 |(0, 4) - (1, 2)|^2
        tensor(5.)
        """
        return torch.zeros(())

    @one
    def gradient(self, grad: Grad, local: Local) -> Tree:
        """The gradient of a step, from one or several passes. Used by Per-FedAvg.

        >>> methods.FedAvg().gradient(grad, local)
        {'u': tensor([0.5000, 0.5000])}
        """
        return grad()

    @chain
    def correct(self, g: Tree, local: Local) -> Tree:
        """The corrected gradient of the shared parameters, before clipping and momentum. Used by SCAFFOLD.

        >>> methods.Scaffold().correct(grad(), local)  # g - c_k + c = (0.5, 0.5) - (1, 1) + (0, 0.5)
        {'u': tensor([-0.5000,  0.0000])}
        """
        return g

    # ---- on the client, after the last step
    @own
    def report(self, w: Tree, local: Local) -> tuple[Note, Note]:
        """(what it sends, what it keeps). A tree sent under the name "w" replaces the shared parameters in the report.
        Used by SCAFFOLD, MOON, FedDyn, FedNova, GMV, Ditto, FedTC.

        >>> sends, keeps = methods.Scaffold().report(local.w, local)
        >>> keeps  # c_k - c + (w^t - w_k) / (K eta), K = 2, eta = 1/2
        {'c': {'u': tensor([ 2.0000, -1.5000])}}
        """
        return {}, local.kept

    # ---- on the server
    @one
    def aggregate(self, arrived: Arrived) -> Tree:
        """The new shared parameters from the reports. Used by FedNova, FedExP, FedDyn, Per-FedAvg.

        >>> methods.FedAvg().aggregate(arrived)
        {'u': tensor([1.5000, 4.0000])}
        """
        return arrived.mean()

    @own
    def absorb(self, arrived: Arrived) -> Note:
        """The server's new note; numbers in it are written to the metrics. Used by SCAFFOLD, FedOpt, FedDyn, GMV.

        >>> methods.FedDyn(alpha=1.0).absorb(arrived)  # h - alpha 2/4 ((1.5, 4) - (1, 2))
        {'h': {'u': tensor([-0.2500, -1.0000])}}
        """
        return arrived.kept

    @chain
    def server_step(self, w: Tree, arrived: Arrived) -> Tree:
        """From the aggregated parameters w to the next w^t. Used by SCAFFOLD, FedOpt, FedDyn, FedAwS.

        >>> methods.FedDyn(alpha=0.5).server_step(arrived.w_new, arrived)  # w - h / alpha, h = 0
        {'u': tensor([1.5000, 4.0000])}
        """
        return w

    # ---- what is evaluated
    @chain
    def evaluated(self, w: Tree, kept: Note) -> Tree:
        """The parameters that predict: the server's, or a client's own, depending on whose note it is. It is not called
        for a piece whose note is empty. Used by FedExP, Ditto.

        >>> methods.Ditto().evaluated(w, {"v": local.w})
        {'u': tensor([0., 4.])}
        """
        return w

    # ---- after the last round
    @own
    def survey(self, net: Net, x: Tensor, y: Tensor) -> Note:
        """What every client sends about its data, without training. Used by CCVR, SphereFed's calibration.

        >>> sorted(methods.CCVR().survey(net, batch.x, batch.y))  # moments of each class
        ['0', '1']
        """
        return {}

    @one
    def calibrate(self, net: Net, surveys: Iterable[Note], rng: torch.Generator) -> Net:
        """A copy of the global model, calibrated on the server; read all surveys before changing the net.
        Used by CCVR, SphereFed's calibration.

        >>> methods.FedAvg().calibrate(net, [], rng) is net
        True
        """
        return net

    @one
    def personalise(self, epochs: int, lr: float) -> list[Phase]:
        """Phases by which each client personalises; lr is the task's first. Used by FedETF, FedBABU, Per-FedAvg.

        >>> [phase.epochs for phase in methods.Finetune(epochs=2).personalise(epochs=5, lr=0.1)]
        [2]
        """
        return []


def acts(piece: Piece, hook: str) -> bool:
    """Whether the piece's class defines this hook."""
    return getattr(type(piece), hook) is not getattr(Piece, hook)

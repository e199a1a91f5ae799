"""The draws behind the partitions. Each deals samples to clients and returns who got what, plus notes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headway.base.errors import PartitionError
from headway.base.tree import seed_of
from headway.data.partitions.spec import Draw, Spec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ATTEMPTS = 100
NO_CLIENT = -1


class Deal(NamedTuple):
    """Sample positions in dealing order, the client each went to (or NO_CLIENT), and what to remember."""

    pool: Ints
    owner: Ints
    notes: dict[str, Any]


def random_state(seed: int, *name: object) -> np.random.RandomState:
    # RandomState rather than Generator: its numbers never change between numpy versions
    return np.random.RandomState(seed_of("partition", *name, seed) % 2**32)


def iid(labels: Ints, clients: int, classes: int, seed: int) -> Deal:
    """Deal class after class in turn: per class and in total, clients differ by at most one sample."""
    pool = np.concatenate(shuffled_classes(labels, classes, random_state(seed, "iid")))
    owner = np.arange(len(pool), dtype=np.int64)
    owner %= clients
    return Deal(pool, owner, {})


def shard(spec: Spec, labels: Ints, clients: int, classes: int, seed: int) -> Deal:
    """Every class cut into the same number of shards; each client gets s shards, any mix of classes."""
    s = spec.number("s")
    sizes = np.bincount(labels, minlength=classes)
    if len(gone := np.flatnonzero(sizes == 0)):
        raise PartitionError(
            f"shard: class {gone[0]} has no samples and shards are cut from every class; add some or use iid"
        )
    most = int(sizes.min()) * classes  # shards, every class being cut into as many
    product = f"use s and clients whose product is a multiple of {classes} and at most {most}"
    if clients * s > len(labels):
        raise PartitionError(
            f"shard: {clients} clients x {s} shards = {clients * s} shards need as many samples and "
            f"there are {len(labels)}; {product}"
        )
    if (clients * s) % classes:
        step_s, step_k = classes // math.gcd(clients, classes), classes // math.gcd(s, classes)
        ways = {"s": _multiples(step_s, s, most // clients), "clients": _multiples(step_k, clients, most // s)}
        advice = " or ".join(f"{name} = {numbers}" for name, numbers in ways.items() if numbers)
        raise PartitionError(
            f"shard: {s} shards x {clients} clients = {clients * s} is not a multiple of the {classes} "
            f"classes; {f'use {advice}' if advice else product}"
        )
    per_class = clients * s // classes
    if len(short := np.flatnonzero(sizes < per_class)):
        raise PartitionError(
            f"shard: class {short[0]} has {sizes[short[0]]} samples for its {per_class} shards "
            f"({s} x {clients} clients / {classes} classes); {product}"
        )
    rng = random_state(seed, "shard")
    pool = np.concatenate(shuffled_classes(labels, classes, rng))
    # Shards are numbered class by class, so shuffling the numbers shuffles the multiset of labels and
    # picks an unused shard of each label in one go.
    holder = np.empty(classes * per_class, dtype=np.int64)
    holder[rng.permutation(len(holder))] = np.arange(len(holder)) // s
    place = np.arange(per_class)
    shard_sizes = sizes[:, None] // per_class + (place[None, :] < sizes[:, None] % per_class)
    return Deal(pool, np.repeat(holder, shard_sizes.ravel()), {})


def classes_each(spec: Spec, labels: Ints, clients: int, classes: int, seed: int) -> Deal:
    """n classes per client, read off one long row of permutations of the classes."""
    n = spec.number("n")
    if n > classes:
        raise PartitionError(f"classes: n is {n} and there are {classes} classes; use n from 1 to {classes}")
    sizes = np.bincount(labels, minlength=classes)
    if clients * n < classes and spec.values["missing"] != "allow":
        if len(gone := np.flatnonzero(sizes == 0)):
            raise PartitionError(f"classes: class {gone[0]} has no samples to distribute; add some or use iid")
        raise PartitionError(
            f"classes: {clients} clients x {n} classes = {clients * n} places cannot hold {classes} classes; "
            f"use at least {-(-classes // n)} clients, n >= {-(-classes // clients)} or missing=allow"
        )
    rng = random_state(seed, "classes")
    row = np.concatenate([rng.permutation(classes) for _ in range(-(-clients * n // classes))])[: clients * n]
    holders = np.bincount(row, minlength=classes)
    if len(gone := np.flatnonzero((sizes == 0) & (holders > 0))):
        raise PartitionError(f"classes: class {gone[0]} has no samples to distribute; add some or use iid")
    if len(short := np.flatnonzero(sizes < holders)):
        raise PartitionError(
            f"classes: class {short[0]} has {sizes[short[0]]} samples for {holders[short[0]]} places "
            f"({clients} clients x {n} classes / {classes}); use fewer clients or a smaller n"
        )
    by_class = np.argsort(row, kind="stable") // n  # clients, class after class, in the order of the row
    share = np.where(holders > 0, sizes // np.maximum(holders, 1), 0)
    left = sizes - share * holders
    owner = []
    for group, each, rest in zip(np.split(by_class, np.cumsum(holders)[:-1]), share, left, strict=True):
        owner += [np.repeat(group, each), np.full(rest, NO_CLIENT, dtype=np.int64)]
    pool = np.concatenate(shuffled_classes(labels, classes, rng))
    missing = np.flatnonzero(holders == 0).tolist()
    return Deal(pool, np.concatenate(owner), {"missing": missing} if missing else {})


def checked_groups(group: npt.NDArray[Any] | None, samples: int) -> npt.NDArray[Any]:
    """The natural client of every sample, or why there is none."""
    if group is None:
        raise PartitionError(
            "natural: this data has no groups; give one group per sample (a `group` array or column) "
            "or use another partition such as dir(0.1)"
        )
    group = np.asarray(group)
    if group.shape != (samples,):
        raise PartitionError(
            f"natural: groups have shape {group.shape} and there are {samples} samples; give one per sample"
        )
    return group


def natural(group: npt.NDArray[Any] | None, samples: int, clients: int | None, seed: int) -> tuple[Deal, int]:
    """One client per group, in the order of the group names, and how many; positions in the order of the data."""
    group = checked_groups(group, samples)
    names, member = np.unique(group, return_inverse=True)
    clients = max(1, len(names)) if clients is None else clients
    if clients > len(names):
        raise PartitionError(
            f"natural: {clients} clients asked for and the data has {len(names)} groups; "
            f"use at most {len(names)} clients, or leave clients out to take all groups"
        )
    client = np.full(len(names), NO_CLIENT, dtype=np.int64)
    chosen = np.arange(len(names))
    if clients < len(names):
        chosen = np.sort(random_state(seed, "natural").choice(len(names), clients, replace=False))
    client[chosen] = np.arange(clients)
    notes: dict[str, Any] = {"groups": len(names)}
    if clients < len(names):
        notes["note"] = f"{clients} of {len(names)} groups are clients; the other {len(names) - clients} are left out"
    return Deal(np.arange(samples, dtype=np.int64), client[member.reshape(-1)], notes), clients


def registered(spec: Spec, draw: Draw, labels: Ints, clients: int, classes: int, seed: int) -> Deal:
    """What a user's own function gives, checked: a list of positions for each client, no sample twice."""
    where = f"partition {spec.text}"
    try:
        given = draw(labels.copy(), clients, classes, random_state(seed, spec.name), **spec.values)
        parts = [np.asarray(part, dtype=np.float64 if np.size(part) == 0 else None) for part in given]
    except PartitionError:
        raise
    except Exception as error:
        raise PartitionError(f"{where} fails ({type(error).__name__}: {error}); correct its function") from error
    if len(parts) != clients:
        raise PartitionError(f"{where} gives {len(parts)} lists for {clients} clients; return one a client")
    for k, part in enumerate(parts):
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            raise PartitionError(
                f"{where} gives client {k} {part.dtype} {list(part.shape)}; give it a list of sample positions"
            )
    pool = np.concatenate([part.astype(np.int64) for part in parts])
    if len(out := pool[(pool < 0) | (pool >= len(labels))]):
        raise PartitionError(f"{where} gives position {out[0]}; positions run from 0 to {len(labels) - 1}")
    found, times = np.unique(pool, return_counts=True)
    if len(twice := found[times > 1]):
        raise PartitionError(f"{where} gives sample {twice[0]} more than once; give each sample to one client")
    return Deal(pool, np.repeat(np.arange(clients), [len(part) for part in parts]), {})


def dirichlet(spec: Spec, labels: Ints, clients: int, classes: int, seed: int) -> Deal:
    """Draw until every client has min_size samples, at most 100 times; then do as `empty` says."""
    alpha, variant, policy = float(spec.values["alpha"] or 0), spec.values["variant"], spec.values["empty"]
    asked = spec.values["min_size"]
    min_size = min(10, max(1, len(labels) // (2 * clients))) if asked is None else int(asked)
    least = max(min_size, 1)
    if clients * least > len(labels):
        raise PartitionError(
            f"dir: {clients} clients of at least {least} samples need {clients * least} samples and "
            f"there are {len(labels)}; {_way_out(len(labels), clients, least, str(policy))}"
        )
    draw_counts = VARIANTS[str(variant)]
    fewest, best, attempts = clients + 1, None, 0
    while attempts < ATTEMPTS and fewest > 0:
        pool, counts = draw_counts(labels, clients, classes, alpha, _attempt(seed, attempts))
        attempts += 1
        small = int((counts.sum(axis=0) < min_size).sum())
        if small < fewest:
            fewest, best = small, (pool, counts)
    assert best is not None
    pool, counts = best
    owner = np.repeat(np.tile(np.arange(clients), classes), counts.ravel())
    notes: dict[str, Any] = {"attempts": attempts, "min_size": min_size}
    if fewest and policy == "error":
        raise PartitionError(
            f"dir: none of {attempts} draws at alpha={alpha:g} gave all {clients} clients {min_size} of the "
            f"{len(labels)} samples (the best left {fewest} below); use a larger alpha, fewer clients, "
            "a smaller min_size or empty=refill"
        )
    if fewest and policy == "refill":
        pool, owner, moved = _refill(pool, owner, clients, min_size)
        notes |= {"refilled": moved, "clients_refilled": fewest}
    return Deal(pool, owner, notes)


def _way_out(samples: int, clients: int, least: int, policy: str) -> str:
    """Advice that a draw can follow; without refilling no number is sure to work."""
    if samples == 0:
        return "add samples"
    if policy == "error":
        return "use fewer clients or a smaller min_size"
    fewer, smaller = fewer_clients(samples // least), f"min_size={samples // clients}" if clients <= samples else ""
    if fewer and smaller:
        return f"{fewer} or {smaller}"
    return fewer or (f"use {smaller}" if smaller else f"{fewer_clients(samples)} and min_size=1")


def fewer_clients(most: int) -> str:
    return f"use at most {most} clients" if most > 1 else "use 1 client" if most else ""


def shuffled_classes(labels: Ints, classes: int, rng: np.random.RandomState) -> list[Ints]:
    """The positions of each class, each list shuffled, in class order."""
    lists = class_lists(labels, classes)
    for positions in lists:
        rng.shuffle(positions)
    return lists


def class_lists(labels: Ints, classes: int) -> list[Ints]:
    """The positions of each class, in the order of the data."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.cumsum(np.bincount(labels, minlength=classes))[:-1])


def _plain(labels: Ints, clients: int, classes: int, alpha: float, rng: np.random.RandomState) -> tuple[Ints, Ints]:
    """Rounded shares of each class, the last client the rest. Order of draws as in FedETF's code: parity."""
    lists = shuffled_classes(labels, classes, rng)
    q = _simplex(rng, alpha, clients, classes)
    sizes = np.array([len(positions) for positions in lists])
    ends = np.cumsum(np.rint(q * sizes[:, None]).astype(np.int64), axis=1)
    ends = np.minimum(ends, sizes[:, None])  # rounding up may overrun the class: later slices get shorter
    ends[:, -1] = sizes
    return np.concatenate(lists), np.diff(ends, axis=1, prepend=0)


def _guarded(labels: Ints, clients: int, classes: int, alpha: float, rng: np.random.RandomState) -> tuple[Ints, Ints]:
    """Class by class; clients that hold N/K samples already get no more."""
    full = len(labels) / clients
    held = np.zeros(clients, dtype=np.int64)
    lists = class_lists(labels, classes)
    counts = np.zeros((classes, clients), dtype=np.int64)
    for c, positions in enumerate(lists):
        rng.shuffle(positions)
        open_q = np.where(held < full, _simplex(rng, alpha, clients, 1)[0], 0.0)
        if len(positions) == 0:
            continue
        if open_q.sum() <= 0:  # all the mass fell on full clients
            open_q = (held < full).astype(np.float64)
        counts[c] = _floor_cuts(open_q / open_q.sum(), len(positions))
        held += counts[c]
    return np.concatenate(lists), counts


def _perclient(labels: Ints, clients: int, classes: int, alpha: float, rng: np.random.RandomState) -> tuple[Ints, Ints]:
    """Each client draws its own mix of classes; a class goes to the clients in proportion to those mixes."""
    lists = shuffled_classes(labels, classes, rng)
    mix = _simplex(rng, alpha, classes, clients)
    mix[:, mix.sum(axis=0) <= 0] = 1.0  # a class in no mix is shared evenly
    mix /= mix.sum(axis=0)
    counts = np.stack([_floor_cuts(mix[:, c], len(positions)) for c, positions in enumerate(lists)])
    return np.concatenate(lists), counts


VARIANTS: dict[str, Callable[[Ints, int, int, float, np.random.RandomState], tuple[Ints, Ints]]] = {
    "plain": _plain,
    "guarded": _guarded,
    "perclient": _perclient,
}


def _attempt(seed: int, attempt: int) -> np.random.RandomState:
    # The first draw uses the seed itself, so that published index lists can be drawn again.
    if attempt == 0 and 0 <= seed < 2**32:
        return np.random.RandomState(seed)
    return np.random.RandomState(seed_of("partition", seed, attempt) % 2**32)


def _simplex(rng: np.random.RandomState, alpha: float, width: int, rows: int) -> Floats:
    """`rows` draws of Dirichlet(alpha, ..., alpha) over `width` places."""
    with np.errstate(all="ignore"):
        q: Floats = rng.dirichlet(np.full(width, alpha), size=rows)
    # For tiny alpha all gamma draws underflow to 0/0; the limit of the law is all mass on one place.
    broken = np.flatnonzero(~np.isfinite(q).all(axis=1))
    if len(broken):
        q[broken] = 0.0
        q[broken, rng.randint(width, size=len(broken))] = 1.0
    return q


def _floor_cuts(q: Floats, size: int) -> Ints:
    """How many of `size` samples each client gets when cut at floor(cumsum(q) * size)."""
    ends = np.minimum((np.cumsum(q) * size).astype(np.int64), size)
    ends[-1] = size
    return np.diff(ends, prepend=0)


def _refill(pool: Ints, owner: Ints, clients: int, min_size: int) -> tuple[Ints, Ints, int]:
    """Move samples, one at a time, from the end of the largest client to those below min_size."""
    held = np.bincount(owner, minlength=clients)
    by_client = np.argsort(owner, kind="stable")
    ends = np.cumsum(held)
    largest = [(-int(size), k) for k, size in enumerate(held) if size > min_size]
    heapq.heapify(largest)
    donated, receivers = [], []
    for k in np.flatnonzero(held < min_size).tolist():
        for _ in range(min_size - int(held[k])):
            # The largest has more than min_size while anyone has less, since clients * min_size <= samples.
            _, donor = heapq.heapreplace(largest, (largest[0][0] + 1, largest[0][1]))
            ends[donor] -= 1
            donated.append(by_client[ends[donor]])
            receivers.append(k)
    # Donated samples go to the end of the pool, so that they come last in their new client.
    moved = np.array(donated, dtype=np.int64)
    kept = np.ones(len(pool), dtype=bool)
    kept[moved] = False
    return (
        np.concatenate([pool[kept], pool[moved]]),
        np.concatenate([owner[kept], np.array(receivers, dtype=np.int64)]),
        len(moved),
    )


def _multiples(step: int, near: int, most: int) -> str:
    """The multiples of `step` around `near` that are not above `most`, as advice."""
    below, above = near // step * step, -(-near // step) * step
    return " or ".join(str(m) for m in dict.fromkeys((below, above)) if 0 < m <= most)

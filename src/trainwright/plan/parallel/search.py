"""Searches the best plan of every strategy: by bounds first, then the whole model for those that the bounds leave.

Candidates are shapes (degrees, micro-batch, chunks), each with every choice inside its blocks. They are dropped by
limits, then by a lower bound of memory; the others are looked at in the order of a lower bound of time, until that
exceeds the best plan of their strategy. Nothing that could win is dropped, and the answer does not depend on the order
of the candidates.

What a stage takes and keeps does not depend on how often the model is replicated, so that bounds are computed once for
every way to work on a block, with every way to cut the chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainwright.errors import InputError
from trainwright.plan.byte_sizes import distinct_sizes
from trainwright.plan.forecast import Rejection
from trainwright.plan.parallel.candidates import LEVELS, MODES, Shapes, choices_of
from trainwright.plan.parallel.mesh import RECOMPUTE, Floats, Ints, Mesh
from trainwright.plan.parallel.pricing import Pricer, Prices
from trainwright.plan.parallel.recomputation import choices_of as recomputations_of
from trainwright.plan.parallel.roofline import framework_seconds
from trainwright.plan.parallel.strategies.pipeline import bubble_slots, most_in_flight
from trainwright.plan.parallel.strategies.tensor import falls_evenly
from trainwright.plan.plan_query import PlanQuery

__all__ = ["FamilyBest", "NoPlan", "beyond_memory", "bounds_of", "no_plan", "search"]

_SAFE = 1 - 1e-9  # sums in another order than those of the prices may come out a little larger


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Bounds:
    """Of every shape; bytes are those of one stage, the one that keeps most activations without recomputation."""

    choices: tuple[tuple[bool, int], ...]
    """(sequence parallelism, place in `RECOMPUTE`), of which "none" comes first."""
    seconds: Floats
    """(choices, shapes), infinite where a choice is none for a shape."""
    activations: Floats
    """(choices, shapes): bytes of what the stage's micro-batches in flight keep."""
    elements: Floats
    """(2, shapes): weights of the stage, and those of them that get gradients."""
    _pricer: Pricer

    def sizes(self, level: int, shard: Ints) -> Floats:
        """Return (choices, shapes): bytes of the fullest device with state divided over `shard` ranks, at least.

        They are infinite where a choice is none for a shape.
        """
        precision = self._pricer.arrays.precision
        optimizing, gradients, weights = (shard if level >= least else 1 for least in (1, 2, 3))
        optimizer_state = self._pricer.optimizer.optimizer_bytes(precision, *self.elements) / optimizing
        state = optimizer_state + self.elements[0] * (precision.resident_bytes(level) / weights)
        gradients_alone = self.elements[1] * precision.gradient_bytes / gradients  # they come while activations go
        found: Floats = _SAFE * (state + np.maximum(gradients_alone, self.activations))
        return np.where(self.seconds < np.inf, found, np.inf)


def bounds_of(pricer: Pricer, mesh: Mesh, recompute: str | None = None, also: Sequence[str] = ()) -> Bounds:
    """Return the bounds of every shape of `mesh`; what it says of the choices is not looked at.

    As in `candidates.shapes`, so many stages of so many chunks have one schedule.
    """
    tensor = mesh.axis("tensor") > 1
    choices = _choices(pricer, mesh, recompute, also)
    several = any(sequence for sequence, _ in choices)
    ways, place = replace(mesh, sequence=tensor & several).inner()
    # Sequence parallelism is no choice where there is no tensor parallelism.
    # Costs without sequence parallelism serve all shapes, those with it the tensor-parallel ones.
    without = pricer.costs(replace(ways, sequence=np.zeros_like(ways.sequence)))
    divided = pricer.costs(ways) if several else without
    inside = [(divided if sequence else without, recompute) for sequence, recompute in choices]
    seconds = np.concatenate(
        [
            costs.forward + costs.backward + costs.forward_exchange + costs.backward_exchange + costs.again[recompute]
            for costs, recompute in inside
        ]
    ).T
    saved = np.concatenate([costs.saved[recompute] for costs, recompute in inside]).T
    shape, found = (len(choices), ways.rows), []
    place = place.copy()
    for number, (rows, cut) in enumerate(pricer.by_cut(mesh)):
        place[rows] += number * ways.rows
        most = most_in_flight(mesh.take(rows[:1]), cut.first)[0]
        # Of each way to cut: the stage that saves most in flight, and the one that takes longest.
        fullest = np.argmax(most[:, None] * (cut.runs @ saved[:, : ways.rows]), axis=0)
        runs = cut.runs[fullest].T
        slowest = (cut.runs @ seconds).max(axis=0).reshape(shape)
        waits = (saved * np.tile(runs, len(choices))).sum(axis=0).reshape(shape)
        elements = np.stack([(entry.T * runs).sum(axis=0) for entry in (without.weights, without.trained)])
        found.append((slowest, waits, elements, most[fullest]))
    slot, waiting, elements, flying = (np.concatenate(item, axis=-1)[..., place] for item in zip(*found, strict=True))
    slots = mesh.microbatches
    # A pipeline's iteration: all slots of the slowest stage and those in which it waits.
    passes = slots + bubble_slots(mesh)
    slot *= _SAFE * passes
    # A step that takes less than its operations alone: what is measured of it, at most of all layers, comes off.
    slot += passes * np.minimum(0.0, framework_seconds(pricer.arrays, mesh.micro.astype(np.float64)))
    for number, (sequence, _) in enumerate(choices):
        if sequence:
            slot[number, ~(tensor & falls_evenly(pricer.arrays, mesh))] = np.inf
    # No more micro-batches can be in flight than there are.
    waiting *= np.minimum(slots, flying)
    return Bounds(choices=choices, seconds=slot, activations=waiting, elements=elements, _pricer=pricer)


def _choices(pricer: Pricer, mesh: Mesh, recompute: str | None, also: Sequence[str]) -> tuple[tuple[bool, int], ...]:
    sequences = (False, True) if "sequence" in also and (mesh.axis("tensor") > 1).any() else (False,)
    possible = recomputations_of(pricer.arrays)
    if "offload" in {*also, recompute} and pricer.arrays.again.any():
        possible = (*possible, "offload")
    if recompute is not None and recompute not in possible:
        raise InputError(f"recompute: got {recompute!r}; allowed for this model: {', '.join(possible)}")
    recomputes = [RECOMPUTE.index(name) for name in possible if recompute in {None, name}]
    return tuple((sequence, recompute) for sequence in sequences for recompute in recomputes)


_FIRST_ROUND = 16


class NoPlan(InputError):
    """No strategy fits; `rejected` says why of each."""

    def __init__(self, message: str, rejected: tuple[Rejection, ...] = ()) -> None:
        super().__init__(message)
        self.rejected = rejected


@dataclass(slots=True)
class FamilyBest:
    """The best candidate of a strategy, or the bytes that its leanest needs if none fits."""

    mode: str
    axes: tuple[str, ...]
    score: float = float("inf")
    exposed: float = 0.0
    prices: Prices | None = None
    row: int = 0
    """Of these prices."""
    order: tuple[int, ...] = ()
    least_bytes: float = float("inf")
    """That a device needs at least, of what does not fit: more than there is."""
    priced: int = 0


@dataclass(slots=True)
class _Family:
    """A strategy's shapes that are left; `best` and `bound` are of all shapes of its mode."""

    found: FamilyBest
    left: Ints
    best: Floats
    """(shapes,): the score that no candidate of a shape comes below."""
    bound: Floats
    """(choices, shapes): by choice."""

    def take(self, width: int) -> tuple[Ints, Ints]:
        """Return (choices, shapes) of the `width` most promising shapes, and drop those that are no better."""
        # Keep what may still be better than the best plan, the most promising shapes first.
        best = self.best[self.left]
        left = self.left[(best <= self.found.score) & (best < np.inf)]
        # A partial sort is enough: the order within the round does not matter.
        if len(left) > width:
            left = left[np.argpartition(self.best[left], width)]
        now, self.left = left[:width], left[width:]
        bound = self.bound[:, now]
        choice, place = np.nonzero((bound <= self.found.score) & (bound < np.inf))
        return choice, now[place]


def search(pricer: Pricer, shapes: Shapes, query: PlanQuery) -> list[FamilyBest]:
    """Return what was found for every strategy that some shape allows."""
    mesh = shapes.mesh
    bounds = bounds_of(pricer, mesh, query.recompute, query.also)
    # A strategy is the set of axes above one, as bits of a code; data parallelism is its lowest bit.
    divided = mesh.degrees > 1
    data = divided[:, mesh.place("data")].copy()
    divided[:, mesh.place("data")] = False
    code = 2 * (divided @ (1 << np.arange(len(mesh.axes)))) + data
    order = np.argsort(code, kind="stable")
    names, starts = np.unique(code[order], return_index=True)
    strategies = list(zip(names.tolist(), np.split(order, starts[1:]), strict=True))
    families = []
    score = query.score(mesh, bounds.seconds, np.zeros(mesh.rows))
    for mode in MODES:
        candidates, fits = choices_of(mesh, mode, query.cluster.devices_per_node)
        sizes = bounds.sizes(LEVELS[mode], candidates.shard)
        # First filter: shapes whose lower bound of memory exceeds the device are dropped for good.
        possible = fits & (sizes <= query.memory_bytes)
        left_out = np.where(possible, np.inf, sizes).min(axis=0)
        if query.goal == "memory":
            score = query.score(mesh, bounds.seconds, sizes)
        bound = np.where(possible, score, np.inf)
        best = bound.min(axis=0)
        for name, rows in strategies:
            with_data = name % 2 == 1
            if mode not in query.allowed if with_data else mode != "data":
                continue
            some = rows[fits[rows]]
            if len(some):
                axes = tuple(axis.name for place, axis in enumerate(mesh.axes) if name // 2 >> place & 1)
                found = FamilyBest(mode=mode if with_data else "", axes=axes, least_bytes=float(left_out[some].min()))
                families.append(_Family(found, some, best, bound))
    # Rounds grow by four: the first finds a good plan, whose time then rules out most of the others.
    width = _FIRST_ROUND
    sequence, recompute = (np.array(column) for column in zip(*bounds.choices, strict=True))
    while any(len(item.left) for item in families):
        # The next candidates of every strategy are priced in one go.
        parts, owners = [], []
        for number, family in enumerate(families):
            choice, rows = family.take(width)
            if len(rows):
                chosen, _ = choices_of(mesh.take(rows), family.found.mode or "data", query.cluster.devices_per_node)
                parts.append(replace(chosen, sequence=sequence[choice], recompute=recompute[choice]))
                owners.append(np.full(len(rows), number))
        if parts:
            _settle_all(pricer, families, query, every=Mesh.join(parts), owner=np.concatenate(owners))
        width *= 4
    return [family.found for family in families]


def _settle_all(pricer: Pricer, families: list[_Family], query: PlanQuery, *, every: Mesh, owner: Ints) -> None:
    """Price candidates, of which `owner` says the strategy, and keep the best of each."""
    prices = pricer.price(every)
    total = query.score(every, prices.total, prices.memory.peak)
    for number, family in enumerate(families):
        rows = np.flatnonzero(owner == number)
        if len(rows):
            _settle(pricer, family.found, prices, bound=total, rows=rows, query=query)


def _settle(pricer: Pricer, found: FamilyBest, prices: Prices, *, bound: Floats, rows: Ints, query: PlanQuery) -> None:
    """Follow the event list of candidates in the order of their bounds until the next bound is no better."""
    found.priced += len(rows)
    peak, least = prices.memory.peak[rows], prices.total - prices.exposed
    found.least_bytes = min(found.least_bytes, float(peak[peak > query.memory_bytes].min(initial=np.inf)))
    rows = rows[peak <= query.memory_bytes]
    for row in rows[np.argsort(bound[rows], kind="stable")]:
        if bound[row] > found.score:
            break
        # Only here is the event list followed: bounds have ruled out nearly all candidates.
        exposed = pricer.exposed(prices, row)
        seconds = float(least[row]) + exposed
        score = seconds
        if not query.by_seconds:
            mesh, size = prices.mesh.take(np.array([row])), prices.memory.peak[row : row + 1]
            score = float(query.score(mesh, np.array([seconds]), size)[0])
        if score < found.score or (score == found.score and _order(prices, row) < found.order):
            found.score, found.exposed, found.prices, found.row = score, exposed, prices, int(row)
            found.order = _order(prices, row)


def _order(prices: Prices, row: int) -> tuple[int, ...]:
    """Return the order among equals: fewer devices, then simpler choices."""
    mesh = prices.mesh
    return (
        int(mesh.degrees[row].prod()),
        int(mesh.recompute[row]),
        int(mesh.sequence[row]),
        int(mesh.chunks[row]),
        *(int(item) for item in mesh.degrees[row]),
        -int(mesh.micro[row]),
    )


def no_plan(least_bytes: float, name: str, query: PlanQuery, rejected: tuple[Rejection, ...]) -> NoPlan:
    """Return the error that names the strategy that comes closest, and its bytes."""
    wanted, allowed = distinct_sizes(least_bytes, query.memory_bytes)
    return NoPlan(
        f"no strategy fits: each needs more than {allowed} a device, the least {wanted} ({name}); give more devices, "
        "more memory or a smaller batch",
        rejected,
    )


def beyond_memory(name: str, least_bytes: float, query: PlanQuery) -> Rejection:
    """Return why a strategy is left out of which no plan fits."""
    wanted, allowed = distinct_sizes(least_bytes, query.memory_bytes)
    return Rejection(strategy=name, reason="memory: the least that a device would need", value=wanted, allowed=allowed)

"""Lower bounds: seconds and bytes that no plan of a shape comes below, to prune the search for the best plan.

A shape is degrees, micro-batch and chunks; a choice is sequence parallelism and recomputation. What a stage takes and
keeps does not depend on how often the model is replicated, so that it is computed once for every way to work on a
block, with every way to cut the chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainwright.errors import InputError
from trainwright.plan.parallel.mesh import RECOMPUTE, Floats, Ints, Mesh
from trainwright.plan.parallel.pricing import Pricer
from trainwright.plan.parallel.recomputation import choices_of
from trainwright.plan.parallel.roofline import framework_seconds
from trainwright.plan.parallel.strategies.pipeline import bubble_slots, most_in_flight
from trainwright.plan.parallel.strategies.tensor import falls_evenly

__all__ = ["Bounds", "bounds_of"]

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
    possible = choices_of(pricer.arrays)
    if "offload" in {*also, recompute} and pricer.arrays.again.any():
        possible = (*possible, "offload")
    if recompute is not None and recompute not in possible:
        raise InputError(f"recompute: got {recompute!r}; allowed for this model: {', '.join(possible)}")
    recomputes = [RECOMPUTE.index(name) for name in possible if recompute in {None, name}]
    return tuple((sequence, recompute) for sequence in sequences for recompute in recomputes)

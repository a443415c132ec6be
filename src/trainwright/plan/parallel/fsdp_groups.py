"""Units of FSDP: the weights that are gathered at a time, and what that takes beyond the exchanges themselves."""

import numpy as np

from trainwright.cluster import Cluster, ExchangeTimes
from trainwright.cluster.operation import FSDP_UNIT
from trainwright.plan.parallel.mesh import Floats
from trainwright.plan.parallel.model_arrays import Work

__all__ = ["measured_units", "units_of", "units_seconds"]


def measured_units(cluster: Cluster) -> ExchangeTimes | None:
    """Return what a unit was measured to take, by its bytes; None where nobody did."""
    return next((each for each in cluster.measured if each.operation == FSDP_UNIT), None)


def units_seconds(work: Work, cluster: Cluster) -> Floats:
    """Return for each block the seconds that its units take in a micro-batch beyond two gathers and a scatter.

    That is copies and torch's own code; 0 where they were not measured.
    """
    found, times = np.zeros(len(work.blocks)), measured_units(cluster)
    if times is None:
        return found
    known = {each.operation: each for each in cluster.measured if (each.tier, each.ranks) == (times.tier, times.ranks)}
    for block, weights in units_of(work):
        size = weights * work.precision.weight_bytes
        moved = 2 * float(known["all_gather"].at(size)) + float(known["reduce_scatter"].at(size))
        found[block] += max(0.0, float(times.at(size)) - moved)
    return found


def units_of(work: Work) -> list[tuple[int, float]]:
    """Return the units as (block of the chain, elements of its weights); each is there as often as its block.

    Units are numbered members of lists and sequences, the outermost ("layers.3" of "layers.3.attention.out"), and what
    is in none of them is one more: the blocks of a chain may be finer, or several in one.
    """
    found: dict[tuple[int, tuple[str, ...]], tuple[int, float]] = {}
    for layer, block, weights in zip(work.layers, work.block.tolist(), work.weights.tolist(), strict=True):
        if weights:
            key = (block if work.counts[block] > 1 else -1, _unit_of(layer.name))
            place, before = found.get(key, (block, 0.0))
            found[key] = place, before + weights
    return list(found.values())


def _unit_of(path: str) -> tuple[str, ...]:
    parts = path.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), -1)
    return tuple(parts[: number + 1])

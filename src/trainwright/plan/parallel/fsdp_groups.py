"""Units of FSDP: the weights that are gathered at a time, and what that takes beyond the exchanges themselves."""

import numpy as np

from trainwright.cluster import Cluster
from trainwright.cluster.network import FSDP_UNIT, ExchangeTimes
from trainwright.plan.parallel.mesh import Floats
from trainwright.plan.parallel.model_arrays import ModelArrays

__all__ = ["fsdp_groups", "group_seconds", "measured_group_costs"]


def measured_group_costs(cluster: Cluster) -> ExchangeTimes | None:
    """Return what a unit was measured to take, by its bytes; None where nobody did."""
    return next((item for item in cluster.measured if item.operation == FSDP_UNIT), None)


def group_seconds(arrays: ModelArrays, cluster: Cluster) -> Floats:
    """Return for each block the seconds that its units take in a micro-batch beyond two gathers and a scatter.

    That is copies and torch's own code; 0 where they were not measured.
    """
    found, times = np.zeros(len(arrays.blocks)), measured_group_costs(cluster)
    if times is None:
        return found
    known = {item.operation: item for item in cluster.measured if (item.tier, item.ranks) == (times.tier, times.ranks)}
    for block, weights in fsdp_groups(arrays):
        size = weights * arrays.precision.weight_bytes
        moved = 2 * float(known["all_gather"].at(size)) + float(known["reduce_scatter"].at(size))
        found[block] += max(0.0, float(times.at(size)) - moved)
    return found


def fsdp_groups(arrays: ModelArrays) -> list[tuple[int, float]]:
    """Return the units as (block of the chain, elements of its weights); each is there as often as its block.

    Units are numbered members of lists and sequences, the outermost ("layers.3" of "layers.3.attention.out"), and what
    is in none of them is one more: the blocks of a chain may be finer, or several in one.
    """
    found: dict[tuple[int, tuple[str, ...]], tuple[int, float]] = {}
    for layer, block, weights in zip(arrays.layers, arrays.block.tolist(), arrays.weights.tolist(), strict=True):
        if weights:
            # A repeated block has units of its own; what is there once may share one with other blocks.
            key = (block if arrays.counts[block] > 1 else -1, _group_of(layer.name))
            place, before = found.get(key, (block, 0.0))
            found[key] = place, before + weights
    return list(found.values())


def _group_of(path: str) -> tuple[str, ...]:
    parts = path.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), -1)
    return tuple(parts[: number + 1])

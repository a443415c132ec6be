"""The oracle of the placement search: every matrix, for small spaces, each valued by a simplex method of its own."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from benchmarks.serve.time_sharing import balance

from trainwright.errors import AllocationError
from trainwright.serve.placement.devices import Device
from trainwright.serve.placement.integer_program import Matrix, PlacementProblem
from trainwright.serve.placement.units import MemoryModel, Unit

__all__ = ["brute_force", "fits", "rates_of", "space_size"]

_MOST = 1_000_000
_BLOCK = 4096


def space_size(devices: int, units: int, batches: int) -> int:
    """Return how many matrices give every unit an instance: ((batches + 1)^devices - 1)^units."""
    return int(((batches + 1) ** devices - 1) ** units)


def brute_force(problem: PlacementProblem) -> tuple[Matrix, float]:
    """Return the best of all matrices that fit, and its rows a second; for spaces of up to a million.

    Raises AllocationError for a larger space, or if nothing fits.
    """
    size = space_size(len(problem.devices), len(problem.units), len(problem.batches))
    if size > _MOST:
        raise AllocationError(f"brute_force: the space has {size:.3g} matrices; allowed: up to {_MOST}; use the search")
    best: tuple[Matrix, float] | None = None
    every = (matrix for matrix in _matrices(problem) if fits(problem.memory, problem.devices, problem.units, matrix))
    while block := list(itertools.islice(every, _BLOCK)):
        values = rates_of(problem, block)
        place = int(values.argmax())
        if best is None or values[place] > best[1]:
            best = block[place], float(values[place])
    if best is None:
        raise AllocationError(
            f"brute_force: none of {size} matrices fits the devices; allowed: devices with more bytes"
        )
    return best


def fits(memory: MemoryModel, devices: Sequence[Device], units: Sequence[Unit], matrix: Matrix) -> bool:
    """Say whether every device holds what the matrix of batch sizes puts on it."""
    return all(
        sum(memory.needed(unit, device, batch) for unit, batch in zip(units, row, strict=True)) <= memory.free(device)
        for device, row in zip(devices, matrix, strict=True)
    )


def rates_of(problem: PlacementProblem, matrices: list[Matrix]) -> np.ndarray:
    """Return the rows a second of placements that fit."""
    limits = np.array(matrices)
    places = np.searchsorted(problem.batches, limits)
    devices, units = np.ogrid[: limits.shape[1], : limits.shape[2]]
    seconds = problem.seconds[devices, units, np.minimum(places, len(problem.batches) - 1)]
    rates = np.nan_to_num(np.where(limits > 0, limits / seconds, 0.0))
    return np.asarray(balance(rates, np.ones(limits.shape[:2])))


def _matrices(problem: PlacementProblem) -> Iterator[Matrix]:
    sizes = (0, *problem.batches)
    columns = [column for column in itertools.product(sizes, repeat=len(problem.devices)) if any(column)]
    for chosen in itertools.product(columns, repeat=len(problem.units)):
        yield tuple(zip(*chosen, strict=True))

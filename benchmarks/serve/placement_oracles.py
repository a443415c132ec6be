"""Oracles of the search: every matrix, for small spaces; and the best one at saturation as a mixed-integer program."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.errors import AllocationError
from trainwright.highs import solve_integer
from trainwright.randomness import rng
from trainwright.serve.placement.cost import Measurement, PlacementCost
from trainwright.serve.placement.placement import Matrix, Placement
from trainwright.serve.placement.placement_space import PlacementSpace
from trainwright.serve.placement.profile_cost import ProfileCost
from trainwright.serve.placement.units import Unit

__all__ = ["InjectedCost", "Programmed", "brute_force", "integer_program", "space_size"]

_MOST = 1_000_000
_BLOCK = 4096


def space_size(devices: int, units: int, batches: int) -> int:
    """Return how many matrices give every unit an instance: ((batches + 1)^devices - 1)^units."""
    return int(((batches + 1) ** devices - 1) ** units)


def brute_force(units: tuple[Unit, ...], space: PlacementSpace, cost: PlacementCost) -> tuple[Placement, float]:
    """Return the best of all placements of these units that fit, and its value; for spaces of up to a million.

    Raises AllocationError for a larger space, or if nothing fits.
    """
    size = space_size(len(space.devices), len(units), len(space.batches))
    if size > _MOST:
        raise AllocationError(f"brute_force: the space has {size:.3g} matrices; allowed: up to {_MOST}; use the search")
    best, value = None, -math.inf
    every = (placement for matrix in _matrices(units, space) if space.fits(placement := Placement(units, matrix)))
    while block := list(itertools.islice(every, _BLOCK)):
        for placement, found in zip(block, cost.measure(block), strict=True):
            if best is None or found.value > value:
                best, value = placement, found.value
    if best is None:
        raise AllocationError(
            f"brute_force: none of {size} matrices fits the devices; allowed: devices with more bytes"
        )
    return best, value


def _matrices(units: tuple[Unit, ...], space: PlacementSpace) -> Iterator[Matrix]:
    sizes = (0, *space.batches)
    columns = [column for column in itertools.product(sizes, repeat=len(space.devices)) if any(column)]
    for chosen in itertools.product(columns, repeat=len(units)):
        yield tuple(zip(*chosen, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Programmed:
    """What the mixed-integer program found: rows a second of its best placement, and what none can exceed."""

    placement: Placement | None  # None if it found none in its time
    value: float
    bound: float


def integer_program(
    units: tuple[Unit, ...], space: PlacementSpace, cost: ProfileCost, *, max_seconds: float = 60.0
) -> Programmed:
    """Return the placement of these units with most rows a second if time is shared without loss, by HiGHS.

    Maximise t; t <= sum_db r[u,d,b] x[u,d,b]; 0 <= x <= z, z binary; sum_b z[u,d,b] <= 1; sum_ub x[u,d,b] <= 1 for
    each d; bytes(z) <= capacity; sum z <= cores. At a fixed z this is what `ProfileCost` computes. An instance that
    fits no device alone is left out beforehand. Ends within `max_seconds` of solving, with a bound if not with the
    optimum.
    """
    from scipy.sparse import csr_array

    seconds = cost.unit_seconds(units)
    entries = [
        (d, u, batch, batch / seconds[d, u, cost.tables.batches.index(batch)], space.needed(units[u], d, batch))
        for d in range(len(space.devices))
        for u in range(len(units))
        for batch in space.batches
    ]
    entries = [entry for entry in entries if math.isfinite(entry[3]) and entry[4] <= space.free[entry[0]]]
    count = len(entries)
    largest = max((entry[3] for entry in entries), default=1.0)
    terms: list[tuple[int, int, float]] = []  # row, column, factor; columns are x, z, t
    upper: list[float] = []

    def add(row: list[tuple[int, float]], most: float) -> None:
        terms.extend((len(upper), column, factor) for column, factor in row)
        upper.append(most)

    for place in range(count):
        add([(place, 1.0), (count + place, -1.0)], 0.0)
    for u in range(len(units)):
        mine = [place for place, entry in enumerate(entries) if entry[1] == u]
        add([(2 * count, 1.0), *((place, -entries[place][3] / largest) for place in mine)], 0.0)
        for d in range(len(space.devices)):
            add([(count + place, 1.0) for place in mine if entries[place][0] == d], 1.0)
    for d in range(len(space.devices)):
        here = [place for place, entry in enumerate(entries) if entry[0] == d]
        add([(place, 1.0) for place in here], 1.0)
        add([(count + place, entries[place][4] / max(1, space.free[d])) for place in here], 1.0)
        if (room := space.room[d]) is not None:
            add([(count + place, 1.0) for place in here], room)
    row, column, factor = zip(*terms, strict=True)
    matrix = csr_array((factor, (row, column)), shape=(len(upper), 2 * count + 1))
    objective = np.zeros(2 * count + 1)
    objective[-1] = -1.0
    whole, most = np.repeat([0, 1, 0], [count, count, 1]), np.append(np.ones(2 * count), np.inf)
    solved = solve_integer(objective, whole, (0.0, most), (matrix, -np.inf, upper), limit_seconds=max_seconds, gap=1e-9)
    bound = -float(solved.mip_dual_bound) * largest if solved.mip_dual_bound is not None else math.inf
    if solved.x is None:
        return Programmed(placement=None, value=-math.inf, bound=bound)
    rows = [[0] * len(units) for _ in space.devices]
    for place, entry in enumerate(entries):
        if solved.x[count + place] > 0.5:
            rows[entry[0]][entry[1]] = entry[2]
    return Programmed(
        placement=Placement(units, tuple(map(tuple, rows))), value=-float(solved.fun) * largest, bound=bound
    )


@dataclass(kw_only=True)
class InjectedCost:
    """A function in place of measuring, with relative normal noise from a counter: the n-th call is always the same."""

    value: Callable[[Placement], float]  # minus infinity: does not run
    noise: float = 0.0  # standard deviation over the value
    seed: int = 0
    calls: int = 0  # made so far

    @property
    def noisy(self) -> bool:
        """Whether noise was asked for."""
        return self.noise > 0

    def measure(self, placements: Sequence[Placement], floor: float = -math.inf) -> list[Measurement]:  # noqa: ARG002
        """Return what the function says of each, and noise of its own for every call."""
        return [self._one(placement) for placement in placements]

    def _one(self, placement: Placement) -> Measurement:
        value = self.value(placement)
        self.calls += 1
        if value == -math.inf:
            return Measurement.failure("injected")
        if self.noise:
            value *= 1.0 + self.noise * float(rng(self.seed, "serve-noise", self.calls).standard_normal())
        return Measurement(value=value, spread=self.noise * abs(value))

"""The least valid period of a pipeline whose stages are placed: an integer programme, exact for any placement.

Starts are counted in periods, t = start / T, and r = 1 / T is made as large as possible. Work of one micro-batch is a
row, F_1, send_1, F_2, .. F_S, B_S, return_{S-1}, .. B_1, each after the one before: t' - t >= seconds r. Two pieces a
(the earlier in the row) and b of one device or link do not overlap in any period if for some whole number k

    seconds_a r <= t_b - t_a - k <= 1 - seconds_b r.

The k count what is alive: when F_s starts, stage u of the same device holds floor(t_Fs - t_Fu) - floor(t_Fs - t_Bu -
seconds_Bu r) micro-batches, and both floors are such k. So room on a device is linear in them, T is found with no
search over it, and HiGHS's bound is one on every valid pattern. A period more for each piece of work is always enough
for the whole row, which bounds the k.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from benchmarks.memory.patterns import Pattern, PatternWork
from numpy.typing import NDArray

__all__ = ["ValidPeriod", "busiest_seconds", "valid_period"]

_GAP = 1e-7


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidPeriod:
    """The best pattern found (None: there is none, or none below the limit given) and a bound on all periods."""

    pattern: Pattern | None
    lower_seconds: float
    finished: bool


def busiest_seconds(works: Sequence[PatternWork], links: Sequence[float]) -> float:
    """Return the load of the busiest device or link, below which no period can be."""
    loads: dict[int, float] = {}
    for work in works:
        loads[work.device] = loads.get(work.device, 0.0) + work.forward_seconds + work.backward_seconds
    return max(*loads.values(), *(2 * seconds for seconds in links), 0.0)


def valid_period(
    works: Sequence[PatternWork],
    links: Sequence[float],
    rooms: Sequence[int],
    *,
    better_than: float = math.inf,
    limit_seconds: float = 30.0,
) -> ValidPeriod:
    """Return the pattern of least period, if one is shorter than `better_than` seconds.

    `links` are the one-way seconds between stages, `rooms` what each device may hold of micro-batches, in the units of
    its works. Exact if `finished`; else HiGHS's time has ended.
    """
    load = busiest_seconds(works, links)
    # One at a time is possible, or nothing is.
    # An upper bound: a micro-batch at a time.
    alone = sum(work.forward_seconds + work.backward_seconds for work in works) + 2 * sum(links)
    held = [sum(work.each for work in works if work.device == device) for device in range(len(rooms))]
    if load >= better_than or any(need > room for need, room in zip(held, rooms, strict=True)):
        return ValidPeriod(pattern=None, lower_seconds=load, finished=True)
    if alone == 0:
        raise ValueError("works: all of them take no time")
    return _PeriodProgram(works, links, rooms, load or alone).solve(min(better_than, alone * (1 + _GAP)), limit_seconds)


class _PeriodProgram:
    """Columns: r, then the starts of the row, then the k of pairs; seconds in units of the load."""

    def __init__(self, works: Sequence[PatternWork], links: Sequence[float], rooms: Sequence[int], unit: float) -> None:
        self.works, self.links, self.unit = tuple(works), tuple(links), unit
        stages = range(len(works))
        row: list[tuple[str, int]] = []
        for stage in stages:
            row += [("F", stage), ("send", stage)]
        # The way back mirrors the way there; the last stage sends nothing.
        row = [*row[:-1], *(("B" if kind == "F" else "return", stage) for kind, stage in reversed(row[:-1]))]
        self.column = {piece: 1 + place for place, piece in enumerate(row)}
        self.row = row
        self.seconds = {piece: self._seconds(piece) / unit for piece in row}
        self.pairs: dict[tuple[tuple[str, int], tuple[str, int]], int] = {}
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []
        # Each piece of the row begins after the one before it has ended.
        for one, other in pairwise(row):
            self._limit([(self.column[other], 1), (self.column[one], -1), (0, -self.seconds[one])], 0, math.inf)
        # Pieces of one device, or of one link, must not overlap in any period.
        lanes: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for kind, stage in row:
            lane = ("device", works[stage].device) if kind in {"F", "B"} else ("link", stage)
            lanes.setdefault(lane, []).append((kind, stage))
        for pieces in lanes.values():
            for one, other in combinations(pieces, 2):
                self._apart(one, other)
        for stage in stages:
            self._room(stage, rooms[works[stage].device])

    def _seconds(self, piece: tuple[str, int]) -> float:
        kind, stage = piece
        work = self.works[stage]
        return {"F": work.forward_seconds, "B": work.backward_seconds}[kind] if kind in "FB" else self.links[stage]

    def _limit(self, terms: Iterable[tuple[int, float]], low: float, high: float) -> None:
        self.entries += [(len(self.low), column, factor) for column, factor in terms]
        self.low.append(low)
        self.high.append(high)

    def _apart(self, one: tuple[str, int], other: tuple[str, int]) -> None:
        """Keep two pieces of one device or link apart, `one` being the earlier in the row."""
        pair = self.pairs[one, other] = 1 + len(self.row) + len(self.pairs)
        # With k whole, `other` begins after `one` has ended, and ends before `one` comes again.
        between: list[tuple[int, float]] = [(self.column[other], 1), (self.column[one], -1), (pair, -1)]
        self._limit([*between, (0, -self.seconds[one])], 0, math.inf)
        self._limit([*between, (0, self.seconds[other])], -math.inf, 1)

    def _room(self, stage: int, room: int) -> None:
        """Bound what the stage's device holds when its forward starts."""
        terms: list[tuple[int, float]] = []
        constant = 0
        for other, work in enumerate(self.works):
            if work.device != self.works[stage].device:
                continue
            terms.append((self.pairs[("F", stage), ("B", other)], work.each))
            if other < stage:
                terms.append((self.pairs[("F", other), ("F", stage)], work.each))
            elif other > stage:
                terms.append((self.pairs[("F", stage), ("F", other)], -work.each))
            constant += work.each if other <= stage else 0
        # Coefficients of bytes would swamp those of times: HiGHS wants all near one.
        scale = max(1, room)
        self._limit([(column, factor / scale) for column, factor in terms], -math.inf, (room - constant) / scale)

    def solve(self, better_than: float, limit_seconds: float) -> ValidPeriod:
        """Run HiGHS, then once more with the whole numbers that it found, for exact starts."""
        # The objective is -r, so that its bound is one on the period.
        first = self._run(self.unit / better_than, None, limit_seconds)
        bound = getattr(first, "mip_dual_bound", None)
        lower = self.unit if bound is None or bound >= 0 else max(self.unit, self.unit / -bound)
        if first.status == 2:
            return ValidPeriod(pattern=None, lower_seconds=max(self.unit, min(lower, better_than)), finished=True)
        if first.x is None:
            return ValidPeriod(pattern=None, lower_seconds=lower, finished=False)
        whole = np.asarray(first.x[1 + len(self.row) :], np.float64).round()
        # With the whole numbers fixed it is a linear program, solved without a gap.
        last = self._run(0.0, whole, limit_seconds)
        period = self.unit / float(last.x[0])
        starts = {piece: float(last.x[column]) * period for piece, column in self.column.items()}

        def of(kind: str) -> tuple[float, ...]:
            count = len(self.works) if kind in {"F", "B"} else len(self.links)
            return tuple(starts[kind, stage] for stage in range(count))

        pattern = Pattern(
            works=self.works,
            links=self.links,
            period_seconds=period,
            forward_starts=of("F"),
            send_starts=of("send"),
            return_starts=of("return"),
            backward_starts=of("B"),
        )
        return ValidPeriod(pattern=pattern, lower_seconds=min(lower, period), finished=first.status == 0)

    def _run(self, least: float, whole: NDArray[np.float64] | None, limit_seconds: float) -> Any:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        starts, pairs = len(self.row), len(self.pairs)
        cost = np.zeros(1 + starts + pairs)
        cost[0] = -1.0
        rows, columns, values = zip(*self.entries, strict=True)
        matrix = csr_array((values, (rows, columns)), shape=(len(self.low), len(cost)))
        low, high = np.zeros(len(cost)), np.full(len(cost), float(starts))
        # r is at most 1, as time is counted in loads; the row begins at 0.
        low[0], high[0] = least, 1.0
        high[1] = 0.0
        if whole is not None:
            low[1 + starts :] = high[1 + starts :] = whole
        integral = np.zeros(len(cost), np.int64)
        integral[1 + starts :] = whole is None
        return milp(
            cost,
            integrality=integral,
            bounds=Bounds(low, high),
            constraints=LinearConstraint(matrix, np.array(self.low), np.array(self.high)),
            options={"time_limit": limit_seconds, "mip_rel_gap": _GAP},
        )

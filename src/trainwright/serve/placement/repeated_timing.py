"""Repeated timings: calls in turns until the confidence intervals of their medians are small enough.

A disturbance of the machine then affects all calls alike, and no figure rests on a few moments.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence

from trainwright.randomness import rng

__all__ = ["ENOUGH", "interval", "timed"]

ENOUGH = 0.05
"""Half of an interval, over the median, at which a figure needs no further repeats."""

_Z = 1.96


def timed(
    calls: Sequence[Callable[[], object]],
    *,
    least: int = 5,
    most: int = 200,
    seconds: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[float, float]]:
    """Return the median seconds of each call, and half of its 95 % interval over it.

    Each is called once a round, in an order of the round's own: for `least` rounds, then on until all intervals are
    within `ENOUGH`, for at most `most` rounds or until `seconds` are over.
    """
    found: list[list[float]] = [[] for _ in calls]
    begun, rounds = clock(), 0
    while True:
        # Else what comes and goes hits the same.
        for place in rng(0, "serve-timing", rounds).permutation(len(calls)):
            started = clock()
            calls[place]()
            found[place].append(clock() - started)
        rounds += 1
        if rounds < least:
            continue
        intervals = [interval(mine) for mine in found]
        if rounds >= most or clock() - begun > seconds or all(spread <= ENOUGH for _, spread in intervals):
            return intervals


def interval(found: Sequence[float]) -> tuple[float, float]:
    """Return the median, and half of its interval over it: between order statistics, whatever the distribution.

    Of fewer than six the interval is from the least to the largest, which is 94 % for five.
    """
    ordered, count = sorted(found), len(found)
    reach = _Z * math.sqrt(count) / 2
    # So many on either side are left out.
    outer = max(0, math.floor(count / 2 - reach))
    median = statistics.median(ordered)
    return median, (ordered[count - 1 - outer] - ordered[outer]) / (2 * median) if median > 0 else math.inf

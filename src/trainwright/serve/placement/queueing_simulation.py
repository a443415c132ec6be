"""Simulates the latency of every request on a placement: Poisson arrivals, one batch at a time on a device.

Every request goes to all units. A free device takes the oldest request that one of its instances can compute, together
with the requests of the same queue that have arrived, up to the instance's batch. A response is complete when the last
unit has finished. Compiled by numba.
"""

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.kernels import compiled
from trainwright.randomness import rng

__all__ = ["arrival_times", "latencies"]


def arrival_times(rate: float, count: int, seed: int) -> Array:
    """Return the times [count] of a Poisson process; for another rate the same draws, stretched."""
    return np.asarray(np.cumsum(rng(seed, "serve-arrivals", 0).standard_exponential(count)) / rate)


@compiled
def latencies(arrivals: Array, rows: int, limits: Array, seconds: Array, batches: Array) -> Array:
    """Return the seconds [N] from each arrival to its answer, for requests of `rows` rows.

    `limits` [D, U] are the batch sizes (0: no instance), `seconds` [D, U, B] what a batch of `batches` [B] rows takes.
    """
    count = len(arrivals)
    devices, units = limits.shape
    done = arrivals.copy()
    # First request that a unit has not begun.
    following = np.zeros(units, dtype=np.int64)
    free = np.zeros(devices)
    left = units * count
    while left:
        # The next batch is the one that can begin first; of equals the one whose oldest request is older.
        device = unit = -1
        start = np.inf
        for d in range(devices):
            for u in range(units):
                if limits[d, u] == 0 or following[u] == count:
                    continue
                begin = max(free[d], arrivals[following[u]])
                if begin < start or (begin == start and following[u] < following[unit]):
                    start, device, unit = begin, d, u
        # It takes what has arrived of the same unit until then, up to the instance's batch.
        most = max(1, limits[device, unit] // rows)
        first = following[unit]
        last = first
        while last < count and last - first < most and arrivals[last] <= start:
            last += 1
        todo = (last - first) * rows
        end = start
        # A request larger than the batch is cut.
        while todo > 0:
            part = min(todo, limits[device, unit])
            place = 0
            while batches[place] < part:
                place += 1
            end += seconds[device, unit, place]
            todo -= part
        # A request is complete when the slowest of its units is.
        free[device] = end
        for request in range(first, last):
            done[request] = max(done[request], end)
        following[unit] = last
        left -= last - first
    return done - arrivals

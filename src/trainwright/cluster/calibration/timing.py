"""Seconds of a piece of work: warmed up, repeated, the least taken."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from trainwright.errors import ProfileError

__all__ = ["Clock", "cuda_clock", "fastest", "wall_clock"]

Clock = Callable[[Callable[[], Any]], float]


def wall_clock(run: Callable[[], Any]) -> float:
    """Return the seconds that a call takes on the processor."""
    before = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - before) * 1e-9


def cuda_clock(run: Callable[[], Any]) -> float:
    """Return the seconds that the kernels of a call take on the CUDA device."""
    # Events measure on the device, without the time that the host takes to queue.
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def fastest(run: Callable[[], Any], *, warmup: int = 3, repeats: int = 10, clock: Clock = wall_clock) -> float:
    """Return the least seconds of `repeats` calls after `warmup` calls.

    Raises ProfileError if a time is not finite or not above zero: the clock went back or is too coarse.
    """
    for _ in range(warmup):
        run()
    times = [clock(run) for _ in range(repeats)]
    # A clock that was set back, or is coarser than the work, gives times that mean nothing.
    for seconds in times:
        if not math.isfinite(seconds) or seconds <= 0:
            raise ProfileError(
                f"measured seconds: got {seconds!r}; allowed: finite times above 0; the clock went back or is too "
                "coarse: measure again"
            )
    return min(times)

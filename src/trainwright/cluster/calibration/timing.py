"""Times a piece of work: clocks, warm-up, and how repeats are combined.

The least of several times where nothing but other processes disturbs the work, the median where ranks wait for each
other and are never undisturbed, the mean of the middle half where times jump between two values.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InputError

__all__ = [
    "Clock",
    "check_times",
    "cuda_clock",
    "fastest",
    "kernel_clock",
    "mean_of_middle",
    "median_time",
    "spread_of_middle",
    "synchronized_clock",
    "wall_clock",
]

Clock = Callable[[Callable[[], Any]], float]


def wall_clock(run: Callable[[], Any]) -> float:
    """Return the seconds that a call takes on the processor."""
    before = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - before) / 1e9


def cuda_clock(run: Callable[[], Any]) -> float:
    """Return the seconds that the kernels of a call take on the CUDA device."""
    import torch

    # Events measure on the device, without the time that the host takes to queue the kernels.
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def kernel_clock(device: Any) -> Clock:
    """Return the clock for the work of a torch device alone."""
    return cuda_clock if device.type == "cuda" else wall_clock


def synchronized_clock(device: Any) -> Clock:
    """Return the clock of the host that waits for a torch device before and after the work."""
    if device.type != "cuda":
        return wall_clock
    import torch

    def clock(run: Callable[[], Any]) -> float:
        def run_and_wait() -> None:
            run()
            torch.cuda.synchronize(device)

        torch.cuda.synchronize(device)
        return wall_clock(run_and_wait)

    return clock


def fastest(
    run: Callable[[], Any],
    *,
    warmup: int = 3,
    repeats: int = 10,
    clock: Clock = wall_clock,
    error: type[InputError] = InputError,
) -> float:
    """Return the least seconds of `repeats` calls after `warmup` calls. Raises `error` as `check_times` does."""
    for _ in range(warmup):
        run()
    return float(check_times([clock(run) for _ in range(repeats)], error).min())


def median_time(repeats: Sequence[float]) -> float:
    """Return the median of repeated measurements, of what is never undisturbed: ranks that wait for each other.

    Raises `InputError` if one of them is no time.
    """
    return float(np.median(check_times(repeats)))


def mean_of_middle(repeats: Sequence[float]) -> float:
    """Return the mean of the middle half of repeated measurements, of what is now one way and now another.

    Raises `InputError` if one of them is no time.
    """
    times = np.sort(check_times(repeats))
    return float(times[len(times) // 4 : len(times) - len(times) // 4].mean())


def spread_of_middle(repeats: Sequence[float]) -> float:
    """Return the standard deviation that the middle half of repeated measurements would have of normal ones.

    What goes wrong once, such as a processor taken away for a while, does not count.
    """
    # The middle half of a normal law is 1.349 standard deviations wide.
    low, high = np.quantile(np.asarray(repeats, dtype=np.float64), [0.25, 0.75])
    return float(high - low) / 1.349


def check_times(
    repeats: Sequence[float] | NDArray[np.float64], error: type[InputError] = InputError
) -> NDArray[np.float64]:
    """Return measured times as an array; raises `error` for NaN, infinity, zero and negative numbers, or for none."""
    times = np.asarray(repeats, dtype=np.float64)
    wrong = times[~(np.isfinite(times) & (times > 0))]
    # A clock that was set back, or is coarser than the work, gives times that mean nothing.
    if wrong.size or not times.size:
        raise error(
            f"measured times: got {wrong[0] if wrong.size else 'none'}; allowed: seconds > 0; the clock stood still or "
            "was set back while measuring: measure again"
        )
    return times

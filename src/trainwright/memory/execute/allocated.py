"""Bytes that a step allocates, seen at the allocator: compiled code makes tensors that no dispatch mode sees."""

from collections.abc import Callable

import torch
from torch import autograd
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

__all__ = ["allocated_bytes"]


def allocated_bytes(step: Callable[[], object], *, cuda: bool) -> int:
    """Return the most bytes alive during a step of those allocated in it, on the CPU or on the current CUDA device."""
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    # The profiler without Kineto, which writes to the terminal where it starts and ends.
    settings = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    start, stop = autograd._enable_profiler_legacy, autograd._disable_profiler_legacy  # type: ignore[attr-defined]  # noqa: SLF001
    start(settings)
    try:
        step()
    finally:
        records = stop()
    live = peak = 0
    for thread in records:
        for event in thread:
            if event.kind() == "memory_alloc":  # type: ignore[comparison-overlap]  # declared as a number
                live += event.cpu_memory_usage()
                peak = max(peak, live)
    return peak

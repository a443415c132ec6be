"""The workspace of an operation that runs: bytes that it takes of the allocator and gives back before it returns.

No tensor shows them, and which kernels take some differs by library, processor and shape: so the allocator itself is
asked, operation by operation. `workspaces` foresees the same for traces, in which nothing runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import autograd
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

__all__ = ["call_measured"]

# The profiler without Kineto: four microseconds an operation, and nothing is written to the terminal.
_SETTINGS = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
# Names that are torch's own: without them no workspace is seen, and all else goes on.
_start = getattr(autograd, "_enable_profiler_legacy", None)
_stop = getattr(autograd, "_disable_profiler_legacy", None)


def call_measured(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, int]:
    """Do an operation; return its result, and how far its peak lay above what is alive when it is done.

    On CUDA by the allocator's counts of the current device, whose peak is started anew; on processors by the events of
    this thread, and 0 while another profiler watches it or where torch has none of this kind.
    """
    if torch.cuda.is_initialized() and any(each.is_cuda for each in args if isinstance(each, torch.Tensor)):
        torch.cuda.reset_peak_memory_stats()
        result = func(*args, **kwargs)
        return result, torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    # There is one profiler at a time.
    if _start is None or _stop is None or autograd._profiler_enabled():  # type: ignore[attr-defined]  # noqa: SLF001
        return func(*args, **kwargs), 0
    _start(_SETTINGS)
    try:
        result = func(*args, **kwargs)
    finally:
        threads = _stop()
    live = peak = 0
    for event in (event for thread in threads for event in thread):
        if event.kind() == "memory_alloc":
            # What is given back comes as a negative number.
            live += event.cpu_memory_usage()
            peak = max(peak, live)
    return result, peak - live

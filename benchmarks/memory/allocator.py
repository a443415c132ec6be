"""The bytes that torch's allocator has lent at most in one training step on a processor.

Every request and return is seen, by whatever library inside of torch: storages of tensors, workspaces of kernels, the
states of random generators. Nothing of it is known to the planner, which counts storages as operations return them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import autograd, nn
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

from trainwright.model.trace.step import as_call, call_model
from trainwright.train.parallel.recompute.sample_step import loss_of, restored_after
from trainwright.train.parallel.recompute.trees import tensors_of

__all__ = ["allocator_peak"]

# The profiler that records each request, without Kineto.
_start: Any = getattr(autograd, "_enable_profiler_legacy")  # noqa: B009  torch does not export it
_stop: Any = getattr(autograd, "_disable_profiler_legacy")  # noqa: B009  as above
_SETTINGS = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())


def allocator_peak(module: nn.Module, sample: Any, loss: Callable[[Any], torch.Tensor] | None) -> int:
    """Return the most bytes of a step with parameters, buffers and the sample; the module is as before afterwards."""
    call = as_call(sample)
    batch = tensors_of((call.args, dict(call.kwargs)))
    with restored_after(module, batch):
        # What is made once and stays, such as a library's plans of its kernels, is no part of a step.
        for parameter in _train_once(module, sample, loss):
            parameter.grad = None
        storages = {
            each.untyped_storage()._cdata: each.untyped_storage().nbytes()  # noqa: SLF001  a storage's identity
            for each in (*module.parameters(), *module.buffers(), *batch)
        }
        _start(_SETTINGS)
        try:
            _train_once(module, sample, loss)
        finally:
            threads = _stop()
    live = peak = 0
    for event in (event for thread in threads for event in thread):
        if event.kind() == "memory_alloc":
            # What is given back comes as a negative number.
            live += event.cpu_memory_usage()
            peak = max(peak, live)
    return sum(storages.values()) + peak


def _train_once(module: nn.Module, sample: Any, loss: Callable[[Any], torch.Tensor] | None) -> list[nn.Parameter]:
    loss_of(call_model(module, sample), loss).backward()
    return list(module.parameters())

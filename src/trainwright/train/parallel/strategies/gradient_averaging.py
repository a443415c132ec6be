"""All-reduce of gradients over the data axis, for models with divided parameters, which torch's DDP does not take."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["Averaging"]

_BUCKET_BYTES = 25 * 2**20


class Averaging:
    """Averages the gradients of parameters over the ranks of `group`, by itself when a backward pass has ended.

    Buckets of 25 MiB in the order of the parameters, all on their way at once, none beside the computation. A parameter
    without a gradient on this rank counts as zero: all ranks send the same.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, *, by_itself: bool = True) -> None:
        self._parameters = [item for item in parameters if item.requires_grad]
        self._group = group
        self._on, self._queued = True, False
        if by_itself:
            for parameter in self._parameters:
                parameter.register_post_accumulate_grad_hook(self._queue_average)

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Leave gradients as they are meanwhile."""
        self._on = False
        try:
            yield
        finally:
            self._on = True

    def average(self) -> None:
        """Average what gradients there are now."""
        self._queued = False
        started = [
            (bucket, *self._start(bucket))
            for bucket in _buckets([_gradient(parameter) for parameter in self._parameters])
        ]
        for bucket, flat, work in started:
            work.wait()
            for gradient, mean in zip(bucket, flat.split([item.numel() for item in bucket]), strict=True):
                gradient.copy_(mean.view_as(gradient))

    def _queue_average(self, _: torch.Tensor) -> None:
        if self._on and not self._queued:
            self._queued = True
            # Called when the whole backward pass has ended, and all gradients are there.
            torch.autograd.Variable._execution_engine.queue_callback(self.average)  # noqa: SLF001 -- as FSDP2 does

    def _start(self, bucket: list[torch.Tensor]) -> tuple[torch.Tensor, Any]:
        # Divided before the sum, which might overflow in a narrow type.
        flat = torch.cat([item.reshape(-1) for item in bucket]).div_(dist.get_world_size(self._group))
        return flat, dist.all_reduce(flat, group=self._group, async_op=True)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    """Return this rank's part of a gradient."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    gradient = parameter.grad
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


def _buckets(gradients: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    found: list[list[torch.Tensor]] = []
    # As if one were full, so that the first gradient begins a bucket.
    size = _BUCKET_BYTES
    for gradient in gradients:
        if size >= _BUCKET_BYTES or gradient.dtype != found[-1][-1].dtype:
            found.append([])
            size = 0
        found[-1].append(gradient)
        size += gradient.nbytes
    return found

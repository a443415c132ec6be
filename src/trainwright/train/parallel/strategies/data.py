"""Data parallelism: wraps a model in DDP (weighted all-reduce) or FSDP (ZeRO 1 to 3), and averages gradients.

DDP sums gradients in proportion to each rank's samples. FSDP shards weights, gradients and optimizer state over the
data axis by torch's fully_shard (Rajbhandari et al., arXiv 1910.02054; the API is that of FSDP2). `GradientAveraging`
is for models that DDP does not take: those with divided parameters.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.blocks import blocks_of, fsdp_groups_of
from trainwright.train.parallel.model import Setup
from trainwright.train.parallel.recompute.trees import local_tensor

__all__ = ["GradientAveraging", "shard_modules", "wrap_in_ddp", "wrap_in_fsdp"]

_BUCKET_BYTES = 25 * 2**20


def wrap_in_ddp(model: nn.Module, called: nn.Module, *, unused: bool = False) -> Setup:
    """Return a model whose gradients DDP sums; `called` is the model, or what calls it.

    With `unused`, a step may leave parameters out. The search for them also keeps DDP from regrouping gradients after
    the first step of a process, so that a resumed run adds them up in the same order.
    """
    # The tensors of a dry run have no bytes, which DDP's buckets would want to copy.
    if dist.get_backend() == "fake":
        return Setup(module=model, call=called)
    # Ranks have the weights of rank 0 already.
    replicas = DistributedDataParallel(
        called, init_sync=False, find_unused_parameters=unused, gradient_as_bucket_view=True
    )
    reduction = _WeightedSum(model)
    replicas.register_comm_hook(None, lambda _, bucket: reduction.start(bucket))
    return Setup(
        module=model,
        call=replicas,
        alone=replicas.no_sync,
        weigh=reduction.weigh,
        watch=reduction.watch,
        finish=None if unused else reduction.refuse_left_out,
    )


class _WeightedSum:
    """Sums buckets of gradients over the ranks, each times the weight of its rank."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._weight: Callable[[], float] = lambda: 1 / dist.get_world_size()
        # Elements, in the step at hand.
        self._exchanged = 0
        self._squares: list[torch.Tensor] | None = None

    def weigh(self, weight: Callable[[], float]) -> None:
        """Take the weight from here on, by default one over the number of ranks."""
        self._weight = weight

    def watch(self, squares: list[torch.Tensor] | None) -> None:
        """Add the squares of this rank's own buckets to a list from here on."""
        self._squares = squares

    def start(self, bucket: Any) -> Any:
        """Begin to sum a bucket."""
        if self._squares is not None:
            self._squares.append(bucket.buffer().double().square().sum())
        self._exchanged += bucket.buffer().numel()
        work = dist.all_reduce(bucket.buffer().mul_(self._weight()), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def refuse_left_out(self) -> None:
        """Raise if ranks still wait for gradients of this one: the next thing they exchange would be taken for them."""
        # DDP waits for every parameter: fewer summed elements mean that some had no part in the loss.
        exchanged, self._exchanged = self._exchanged, 0
        trained = [(name, each) for name, each in self._model.named_parameters() if each.requires_grad]
        if exchanged < sum(each.numel() for _, each in trained):
            left = [name for name, each in trained if each.grad is None]
            raise UnsupportedPlan.of(
                "data",
                f"the last loss did not depend on {', '.join(left[:3]) or 'a parameter'}, and other ranks wait for its "
                "gradient; allowed: trial.prepare(..., find_unused_parameters=True), steps that train all parameters "
                "(requires_grad_(False) for others), or ZeRO, if no rank trains them",
            )


def wrap_in_fsdp(model: nn.Module, mesh: DeviceMesh, *, zero: int) -> Setup:
    """Divide parameters, gradients and optimizer state of a model over the last axis of `mesh`, equal on a first one.

    ZeRO 3 gathers the weights of a block (of a model without blocks: of a layer) for its forward and again for its
    backward pass. ZeRO 1 and 2 keep them between the two, so that an iteration is one all-gather of the weights and one
    reduce-scatter of the gradients; with micro-batches ZeRO 1 adds up whole gradients and exchanges them once, the
    others exchange those of each.
    """
    shard_modules([*(fsdp_groups_of(model) if zero == 3 else blocks_of(model)), model], mesh, zero=zero)
    return Setup(module=model, call=model, alone=lambda: _accumulating(model, zero))


def shard_modules(modules: Sequence[nn.Module], mesh: DeviceMesh, *, zero: int) -> None:
    """Divide modules that are called one by one, such as a pipeline stage's.

    Each is a unit, gathered for every forward and backward pass of a micro-batch by ZeRO 3, and once for both, as long
    as no other comes between, by ZeRO 1 and 2. Gradients are exchanged with each micro-batch.
    """
    for module in modules:
        fully_shard(module, mesh=mesh, reshard_after_forward=zero == 3)


@contextlib.contextmanager
def _accumulating(model: nn.Module, zero: int) -> Iterator[None]:
    assert isinstance(model, FSDPModule)  # noqa: S101 -- fully_shard made it one
    model.set_requires_gradient_sync(zero > 1)
    model.set_reshard_after_backward(zero == 3)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
        model.set_reshard_after_backward(True)


class GradientAveraging:
    """Averages the gradients of parameters over the ranks of their group, by itself when a backward pass has ended.

    Buckets of 25 MiB in the order of the parameters, all on their way at once, none beside the computation. A parameter
    without a gradient on this rank counts as zero: all ranks send the same.
    """

    def __init__(self, *shares: tuple[Iterable[nn.Parameter], dist.ProcessGroup], by_itself: bool = True) -> None:
        self._shares = [([item for item in parameters if item.requires_grad], group) for parameters, group in shares]
        self._on, self._queued = True, False
        if by_itself:
            for parameter in itertools.chain(*(parameters for parameters, _ in self._shares)):
                parameter.register_post_accumulate_grad_hook(self._queue_all_reduce)

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Leave gradients as they are meanwhile."""
        self._on = False
        try:
            yield
        finally:
            self._on = True

    def all_reduce_gradients(self) -> None:
        """Average the gradients that are there now over all ranks, in buckets."""
        self._queued = False
        started = [
            (bucket, *_start(bucket, group))
            for parameters, group in self._shares
            for bucket in _buckets([_gradient(parameter) for parameter in parameters])
        ]
        for bucket, flat, work in started:
            work.wait()
            for gradient, mean in zip(bucket, flat.split([item.numel() for item in bucket]), strict=True):
                gradient.copy_(mean.view_as(gradient))

    def _queue_all_reduce(self, _: torch.Tensor) -> None:
        if self._on and not self._queued:
            self._queued = True
            # Called when the whole backward pass has ended, and all gradients are there.
            torch.autograd.Variable._execution_engine.queue_callback(self.all_reduce_gradients)  # noqa: SLF001 -- as FSDP2 does


def _start(bucket: list[torch.Tensor], group: dist.ProcessGroup) -> tuple[torch.Tensor, Any]:
    # Divided before the sum, which might overflow in a narrow type.
    flat = torch.cat([item.reshape(-1) for item in bucket]).div_(dist.get_world_size(group))
    return flat, dist.all_reduce(flat, group=group, async_op=True)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    """Return this rank's part of a gradient."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return local_tensor(parameter.grad)


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

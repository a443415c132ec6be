"""Data parallelism with whole copies: torch's DDP, its all-reduce of gradients weighted by each rank's samples."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.model import Setup

__all__ = ["replicate"]


def replicate(model: nn.Module, called: nn.Module, *, unused: bool = False) -> Setup:
    """Return a model whose gradients DDP sums; `called` is the model, or what calls it.

    With `unused`, a step may leave parameters out. The search for them also keeps DDP from regrouping gradients after
    the first step of a process, so that a resumed run adds them up in the same order.
    """
    replicas = DistributedDataParallel(called, find_unused_parameters=unused, gradient_as_bucket_view=True)
    reduction = _WeightedSum(model)
    replicas.register_comm_hook(None, lambda _, bucket: reduction.start(bucket))
    return Setup(
        module=model,
        call=replicas,
        alone=replicas.no_sync,
        weigh=reduction.weigh,
        finish=None if unused else reduction.refuse_left_out,
    )


class _WeightedSum:
    """Sums buckets of gradients over the ranks, each times the weight of its rank."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._weight: Callable[[], float] = lambda: 1 / dist.get_world_size()
        # Elements, in the step at hand.
        self._exchanged = 0

    def weigh(self, weight: Callable[[], float]) -> None:
        """Take the weight from here on, by default one over the number of ranks."""
        self._weight = weight

    def start(self, bucket: Any) -> Any:
        """Begin to sum a bucket."""
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
                "gradient; allowed: trial.prepare(..., unused_parameters=True), steps that train all parameters "
                "(requires_grad_(False) for others), or ZeRO, if no rank trains them",
            )

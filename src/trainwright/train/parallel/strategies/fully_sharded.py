"""FSDP: shard weights, gradients and optimizer state (ZeRO 1 to 3) over the data axis by torch's fully_shard.

Source: Rajbhandari et al., arXiv 1910.02054; the API is that of FSDP2.
"""

import contextlib
from collections.abc import Iterator, Sequence

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trainwright.train.parallel.blocks import blocks_of, units_of
from trainwright.train.parallel.model import Setup

__all__ = ["shard", "shard_each"]


def shard(model: nn.Module, mesh: DeviceMesh, *, zero: int, policy: MixedPrecisionPolicy | None = None) -> Setup:
    """Divide parameters, gradients and optimizer state of a model over the last axis of `mesh`, equal on a first one.

    ZeRO 3 gathers the weights of a block (of a model without blocks: of a layer) for its forward and again for its
    backward pass. ZeRO 1 and 2 keep them between the two, so that an iteration is one all-gather of the weights and one
    reduce-scatter of the gradients; with micro-batches ZeRO 1 adds up whole gradients and exchanges them once, the
    others exchange those of each.
    """
    policy = policy or MixedPrecisionPolicy()
    for unit in units_of(model) if zero == 3 else blocks_of(model):
        fully_shard(unit, mesh=mesh, reshard_after_forward=zero == 3, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=zero == 3, mp_policy=policy)
    return Setup(module=model, call=model, alone=lambda: _accumulating(model, zero))


def shard_each(modules: Sequence[nn.Module], mesh: DeviceMesh, *, zero: int) -> None:
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

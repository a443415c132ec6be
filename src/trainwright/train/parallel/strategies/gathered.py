"""An FSDP model as a whole one for a while: all weights are gathered, and FSDP's hooks are taken off."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from trainwright.train.parallel.recompute.sample_step import restored_after

__all__ = ["gathered_weights", "weight_bytes_saved"]


@contextlib.contextmanager
def gathered_weights(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Let a model that `fully_shard` has divided be measured like any other; the arguments are those of a call of it.

    Its weights are to fit on a device for as long.
    """
    groups = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if groups:
        with restored_after(model), torch.no_grad():
            # FSDP sets itself up with the first call of the whole model.
            model(*args, **kwargs)
    held = []
    for group in groups:
        group.unshard()
        for hooks in (group._forward_pre_hooks, group._forward_hooks):  # noqa: SLF001
            held.append((hooks, dict(hooks)))
            for key in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), FSDPState)]:
                del hooks[key]
    try:
        yield
    finally:
        for hooks, before in held:
            hooks.clear()
            hooks.update(before)
        for group in groups:
            group.reshard()


def weight_bytes_saved(model: nn.Module, units: Sequence[nn.Module], *, zero: int, shard: int) -> int:
    """Return by how much fewer bytes of weights a device has than the whole model, while it trains; less than 0: more.

    ZeRO 3 has its part, and the weights of two units at a time; ZeRO 1 and 2 the whole, and their part beside it.
    """
    whole = _weight_bytes(model)
    if zero < 3:
        # Negative, since the shard comes on top of the whole.
        return -whole // shard
    return max(0, whole - whole // shard - 2 * max((_weight_bytes(unit) for unit in units), default=whole))


def _weight_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())

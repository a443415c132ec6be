"""Context parallelism: each rank has some positions of every sequence; keys and values are gathered for attention.

Dubey et al., "The Llama 3 Herd of Models" (arXiv 2407.21783), section 3.3.2: an all-gather of keys and values instead
of a ring. They are gathered again in the backward pass, so that a rank keeps those of its own positions only; their
gradients are summed by a reduce-scatter.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from trainwright.errors import UnsupportedPlan
from trainwright.model.trace.attention import replace_attention
from trainwright.train.parallel.blocks import blocks_of, divide_between
from trainwright.train.parallel.collectives import gather

__all__ = ["divide_sequence"]

_EQUAL = 1e-4
"""Largest relative difference that rounding in float32 explains."""


def divide_sequence(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Divide the sequence before the first block of a model, and gather it after the last.

    Blocks hand on (batch, length, width). What lies around them every rank does for the whole sequence. Gradients are
    those of the sum over the ranks' losses: their mean over all ranks, as DDP takes it, is the gradient.

    With its first batch the first block is tried on a few positions, whole and divided: `UnsupportedPlan` is raised if
    that is not the same, and at once for a model without a list of blocks.
    """
    blocks = blocks_of(model)
    if not blocks:
        raise UnsupportedPlan.of("context", f"{type(model).__name__} has no list of transformer blocks")
    divided = [_Block(block, group, check=block is blocks[0]) for block in blocks]

    def note(part: int) -> None:
        for block in divided:
            block.part = part

    for block, forward in zip(blocks, divided, strict=True):
        block.forward = forward
    divide_between(blocks, group, "context", scatter=True, note=note)


class _Block:
    """The forward pass of a block on this rank's positions."""

    def __init__(self, block: nn.Module, group: dist.ProcessGroup, *, check: bool) -> None:
        self._block, self._forward, self._group = block, block.forward, group
        self._check = check
        self.part = 0
        """How many positions a rank has now."""

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.shape[1] != self.part:
            raise UnsupportedPlan.of(
                "context",
                f"{type(self._block).__name__} is handed {x.shape[1]} positions where a rank has {self.part}; allowed: "
                "blocks one after the other, of one sequence",
            )
        if self._check:
            self._check = False
            self._compare(x, *args, **kwargs)
        with replace_attention(self._attend):
            return self._forward(x, *args, **kwargs)

    def _compare(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Refuse a block that does something else with a part of a sequence, such as count its positions from 0."""
        rest = any(isinstance(item, torch.Tensor) for item in (*args, *kwargs.values()))
        dtype = next(
            (parameter.dtype for parameter in self._block.parameters()), x.dtype
        )  # that of x may be autocast's
        # A mask is for the whole length.
        part = (x[:1] if rest else x[:1, :2]).to(dtype)
        world, rank = dist.get_world_size(self._group), dist.get_rank(self._group)
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False), _evaluating(self._block):
            whole = gather(part, self._group, dim=1, sizes=(part.shape[1],) * world, scatter=False)
            expected = self._forward(whole, *args, **kwargs)
            with replace_attention(self._attend):
                found = self._forward(part, *args, **kwargs)
        # Relative to the largest output; what is not a number counts as different.
        difference = ((found - expected.chunk(world, 1)[rank]).abs().max() / expected.abs().max()).nan_to_num(torch.inf)
        # The first rank's positions are right anyway.
        dist.all_reduce(difference, dist.ReduceOp.MAX, group=self._group)
        if not difference <= _EQUAL:
            raise UnsupportedPlan.of(
                "context",
                f"{type(self._block).__name__} does not do with a part of a sequence what it does with the whole (the "
                f"outputs differ by {float(difference):.1g}); allowed: attention by "
                "torch.nn.functional.scaled_dot_product_attention, and positions made outside the blocks",
            )

    def _attend(  # noqa: PLR0917 -- torch's signature
        self,
        attention: Callable[..., torch.Tensor],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **settings: Any,
    ) -> Any:
        """Return this rank's queries' attention to the keys and values of all ranks."""
        # Of some heads only: tensor parallelism has divided the others.
        if isinstance(query, DTensor):
            whole_inputs: tuple[Any, ...] = (query, key, value, attn_mask)
            q, k, v, mask = (item.to_local() if isinstance(item, DTensor) else item for item in whole_inputs)
            found = self._attend(attention, q, k, v, mask, dropout_p, is_causal, **settings)
            return DTensor.from_local(found, query.device_mesh, query.placements, run_check=False)
        group, positions = self._group, key.shape[-2]
        world, rank = dist.get_world_size(group), dist.get_rank(group)
        # A mask for all queries: this rank needs the rows of its own.
        if attn_mask is not None and attn_mask.shape[-2] == world * positions:
            attn_mask = attn_mask.narrow(-2, rank * positions, positions)

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            # Keys and values side by side: one exchange for both.
            both = gather(
                torch.cat([key, value], -1), group, dim=key.ndim - 2, sizes=(positions,) * world, scatter=True
            )
            keys, values = both.split([key.shape[-1], value.shape[-1]], -1)
            mask = attn_mask
            # Made here, so that it is not kept.
            if is_causal:
                # Positions count in the whole sequence: each looks at itself and those before it.
                places = torch.arange(world * positions, device=query.device)
                mask = places[rank * positions : (rank + 1) * positions, None] >= places
            return attention(query, keys, values, attn_mask=mask, dropout_p=dropout_p, **settings)

        if not torch.is_grad_enabled():
            return attend(query, key, value)
        return checkpoint(attend, query, key, value, use_reentrant=False)


@contextlib.contextmanager
def _evaluating(block: nn.Module) -> Iterator[None]:
    training = [module for module in block.modules() if module.training]
    block.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True

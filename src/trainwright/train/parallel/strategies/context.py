"""Context (sequence) parallelism: each rank has some positions of each sequence, and gathers all keys and values.

Dubey et al., "The Llama 3 Herd of Models" (arXiv 2407.21783), section 3.3.2: an all-gather of keys and values instead
of a ring. They are gathered again in the backward pass, so that a rank keeps those of its own positions only; their
gradients are summed by a reduce-scatter.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from trainwright.errors import UnsupportedPlan
from trainwright.model.trace.attention import replace_attention
from trainwright.train.parallel.blocks import blocks_of
from trainwright.train.parallel.collectives import all_gather
from trainwright.train.parallel.recompute.step_store import snapshot
from trainwright.train.parallel.recompute.trees import local_tensor, map_only, tensors_of, without_caches

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
    for block, forward in zip(blocks, divided, strict=True):
        block.forward = forward
    world, rank = dist.get_world_size(group), dist.get_rank(group)

    def enter(_: nn.Module, args: tuple[Any, ...]) -> Any:
        size = args[0].shape[1] if args and isinstance(args[0], torch.Tensor) and args[0].ndim == 3 else 0
        if not size:
            raise UnsupportedPlan.of("context", "blocks are not handed (batch, length, width) as their first argument")
        if size % world:
            raise UnsupportedPlan.of("context", f"a sequence of {size} cannot be divided by {world}")
        part = size // world
        for block in divided:
            block.part = part
        return args[0].narrow(1, rank * part, part), *args[1:]

    def leave(_: nn.Module, __: Any, found: Any) -> Any:
        # Blocks that return more, such as attention weights, return what they hand on first.
        if isinstance(found, tuple):
            return leave(_, __, found[0]), *found[1:]
        return all_gather(found, group, dim=1, sizes=(found.shape[1],) * world, scatter=True)

    blocks[0].register_forward_pre_hook(enter, prepend=True)
    blocks[-1].register_forward_hook(leave)


class _Block:
    """The forward pass of a block on this rank's positions."""

    def __init__(self, block: nn.Module, group: dist.ProcessGroup, *, check: bool) -> None:
        self._block, self._forward, self._group = block, block.forward, group
        self._world, self._rank = dist.get_world_size(group), dist.get_rank(group)
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
        # Of divided layers there are no copies: a dry run tries the layout without them.
        divided = any(isinstance(each, DTensor) for each in self._block.parameters())
        if self._check and not (divided and isinstance(x, FakeTensor)):
            self._check = False
            self._refuse_unequal(x, without_caches(args, kwargs))
        args, kwargs = _positions_of((args, kwargs), self._world * self.part, self._rank * self.part, self.part)
        with replace_attention(self._attend):
            return self._forward(x, *args, **kwargs)

    def _refuse_unequal(self, x: torch.Tensor, rest: Any) -> None:
        """Refuse a block that does something else with a part of a sequence, such as count its positions from 0.

        It is tried on arbitrary numbers and few positions: whole, and the last part with the keys of the whole. So no
        other rank is needed, and a dry run finds it too.
        """
        fake, forward = isinstance(x, FakeTensor), self._forward
        with unset_fake_temporarily(), torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            block = self._real_copy() if fake else self._block
            if fake:
                forward, rest = block.forward, map_only(torch.Tensor, _real_like, rest)
            part, place = min(2, self.part), self._world - 1
            # That of x may be autocast's.
            dtype = next((parameter.dtype for parameter in block.parameters()), x.dtype)
            generator = torch.Generator().manual_seed(0)
            shape = x.shape[0], self._world * part, x.shape[2]
            whole = torch.randn(shape, generator=generator).to(device="cpu" if fake else x.device, dtype=dtype)
            few = _positions_of(rest, self._world * self.part, 0, self._world * part, masks=True)
            said = ""
            try:
                with _evaluating(block):
                    difference = self._distance(forward, whole, few, part, place)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                # Shapes that do not fit together are a difference.
                difference, said = torch.tensor(torch.inf, device=whole.device), f": {error}"
            if not fake:
                dist.all_reduce(difference, dist.ReduceOp.MAX, group=self._group)
            far = float(difference)
        if not far <= _EQUAL:
            raise UnsupportedPlan.of(
                "context",
                f"{type(self._block).__name__} does not do with a part of a sequence what it does with the whole (the "
                f"outputs differ by {far:.1g}{said}); allowed: attention by "
                "torch.nn.functional.scaled_dot_product_attention, and positions made outside the blocks",
            )

    def _distance(
        self, forward: Callable[..., Any], whole: torch.Tensor, rest: Any, part: int, place: int
    ) -> torch.Tensor:
        """Return how far a part's outputs, keys and values are from those of the whole, relative to the largest."""
        seen: list[tuple[torch.Tensor, ...]] = []
        far: list[torch.Tensor] = []

        def note(attention: Callable[..., Any], query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append((local_tensor(key), local_tensor(value)))
            return attention(query, key, value, *args, **kwargs)

        def again(attention: Callable[..., Any], query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            known = seen.pop(0) if seen else (local_tensor(key), local_tensor(value))
            slices = [each.narrow(-2, place * part, part) for each in known] if known[0].shape[-2] > part else known
            far.extend(_apart(local_tensor(one), other) for one, other in zip((key, value), slices, strict=True))
            rows = _attend_rows(attention, known, place, part, *args, **kwargs)
            return _like(query, rows(local_tensor(query)))

        args, kwargs = _copied(rest)
        with replace_attention(note):
            expected = _first(forward(whole, *args, **kwargs))
        args, kwargs = _positions_of(_copied(rest), whole.shape[1], place * part, part)
        with replace_attention(again):
            found = _first(forward(whole.narrow(1, place * part, part), *args, **kwargs))
        return torch.stack([_apart(found, expected.narrow(1, place * part, part)), *far]).max()

    def _real_copy(self) -> nn.Module:
        """Return a copy of the block with arbitrary numbers in the place of tensors without values."""
        tensors = (*self._block.parameters(), *self._block.buffers())
        memo: dict[int, Any] = {id(self): None} | {id(each): _real_like(each) for each in tensors}
        found = copy.deepcopy(self._block, memo)
        del vars(found)["forward"]
        return found

    def _attend(
        self, attention: Callable[..., torch.Tensor], query: Any, key: Any, value: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Return this rank's queries' attention to the keys and values of all ranks."""
        # Of some heads only, where tensor parallelism has divided the others.
        q, k, v = (local_tensor(each) for each in (query, key, value))
        positions, group = k.shape[-2], self._group

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            # Keys and values side by side: one exchange for both.
            sizes = (positions,) * self._world
            both = all_gather(torch.cat([key, value], -1), group, dim=key.ndim - 2, sizes=sizes, scatter=True)
            parts = both.split([key.shape[-1], value.shape[-1]], -1)
            return _attend_rows(attention, parts, self._rank, positions, *args, **kwargs)(query)

        if not torch.is_grad_enabled():
            return _like(query, attend(q, k, v))
        return _like(query, checkpoint(attend, q, k, v, use_reentrant=False))


def _attend_rows(  # noqa: PLR0917 -- torch's signature
    attention: Callable[..., torch.Tensor],
    keys_values: Sequence[torch.Tensor],
    place: int,
    part: int,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **settings: Any,
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the attention to the keys of a whole sequence of the queries of one part; settings are torch's."""
    mask, length = local_tensor(attn_mask), keys_values[0].shape[-2]
    # A mask for all queries: a part needs the rows of its own.
    if mask is not None and mask.shape[-2] == length > part:
        mask = mask.narrow(-2, place * part, part)

    def run(query: torch.Tensor) -> torch.Tensor:
        rows = mask
        # Made here, so that it is not kept.
        if is_causal:
            # Positions count in the whole sequence: each looks at itself and those before it.
            places = torch.arange(length, device=query.device)
            rows = places[place * part : (place + 1) * part, None] >= places
        return attention(query, *keys_values, attn_mask=rows, dropout_p=dropout_p, **settings)

    return run


def _positions_of(tree: Any, length: int, start: int, part: int, *, masks: bool = False) -> Any:
    """Return a block's other arguments for some positions of a sequence: those that have one row for each position.

    (length,), (batch, length) of integers, (length, width) and (batch, length, width) are taken for such; with `masks`
    the queries and keys of masks, (.., length, length), are cut too.
    """

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        shape = tensor.shape
        if masks and tensor.ndim == 4 and shape[-1] == length:
            tensor = tensor.narrow(-1, start, part)
            return tensor.narrow(-2, start, part) if shape[-2] == length else tensor
        dimension = 0 if tensor.ndim == 1 or (tensor.ndim == 2 and tensor.is_floating_point()) else 1
        return tensor.narrow(dimension, start, part) if 1 <= tensor.ndim <= 3 and shape[dimension] == length else tensor

    return map_only(torch.Tensor, cut, tree)


def _copied(value: Any) -> Any:
    """Return arguments with caches and other objects copied, so that a trial leaves nothing in them."""
    # Torch's own copy of a fake tensor would read bytes that are not there.
    return snapshot(value, change=lambda each: _real_like(each) if isinstance(each, FakeTensor) else each.clone())


def _real_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of arbitrary numbers: masks let everything through, and integers are valid indices."""
    generator = torch.Generator().manual_seed(tensor.numel())
    if not tensor.is_floating_point():
        return torch.ones(tensor.shape, dtype=tensor.dtype) * (tensor.dtype == torch.bool)
    real = (torch.randn(tensor.shape, generator=generator) * 0.1).to(tensor.dtype)
    return nn.Parameter(real) if isinstance(tensor, nn.Parameter) else real


def _first(found: Any) -> torch.Tensor:
    return found if isinstance(found, torch.Tensor) else next(iter(tensors_of(found)))


def _like(query: Any, found: torch.Tensor) -> torch.Tensor:
    """Return attention placed as its queries are."""
    if not isinstance(query, DTensor):
        return found
    return DTensor.from_local(found, query.device_mesh, query.placements, run_check=False)


def _apart(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the largest difference over the largest number; what is not a number counts as different."""
    if found.shape != expected.shape:
        return torch.tensor(torch.inf)
    return ((found - expected).abs().max() / expected.abs().max()).nan_to_num(torch.inf).float()


@contextlib.contextmanager
def _evaluating(block: nn.Module) -> Iterator[None]:
    training = [module for module in block.modules() if module.training]
    block.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True

"""Parts of tensors in a block: what whole tensors do when they meet them, attention by heads, and fused projections."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from trainwright.errors import UnsupportedPlan
from trainwright.model.trace.attention import replace_attention
from trainwright.train.parallel.blocks import divided
from trainwright.train.parallel.collectives import all_reduce, copy
from trainwright.train.parallel.recompute.trees import map_only, without_caches
from trainwright.train.parallel.strategies.tensor_roles import is_transposed

__all__ = ["AmongParts", "FusedColumns", "MultiheadParallel", "RowOfParts", "refuse_uneven"]


def refuse_uneven(count: int, what: str, mesh: DeviceMesh) -> None:
    """Raise `UnsupportedPlan` for as many of something as the ranks of a mesh cannot share alike."""
    if count % mesh.size():
        raise UnsupportedPlan.of("tensor", f"the {count} {what} cannot be divided by {mesh.size()}")


class _EnterParts(TorchFunctionMode):
    """Lets whole tensors meet parts of others: they enter the divided stretch there, each once, with one gradient.

    So masks, position biases and parameters between columns and row stay plain tensors everywhere else.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh
        self._entered: dict[Any, tuple[torch.Tensor, DTensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args, kwargs or {}
        if any(isinstance(each, DTensor) for each in tree_leaves(given)):
            if func is torch.Tensor.__getitem__:
                # Of a list torch makes a tensor that is no DTensor, and warns of it.
                given = (args[0], tree_map_only(list, torch.tensor, args[1], is_leaf=lambda x: isinstance(x, list))), {}
            # What changes a whole tensor needs whole ones: its gradient would not know of parts.
            whole = _IN_PLACE.fullmatch(func.__name__) and not isinstance(args[0], DTensor)
            given = (
                tree_map_only(DTensor, DTensor.full_tensor, given)
                if whole
                else tree_map_only(torch.Tensor, self._enter, given)
            )
        (first, *rest), named = given if given[0] else ((None,), given[1])
        if func is functional.dropout and isinstance(first, DTensor) and first.placements[0].is_shard():
            # Each rank draws for itself.
            found = func(first.to_local(), *rest, **named)
            return DTensor.from_local(found, self._mesh, first.placements, run_check=False)
        return func(*given[0], **given[1])

    def attend(
        self, attention: Any, query: Any, key: Any, value: Any, mask: Any = None, *rest: Any, **named: Any
    ) -> Any:
        """Return attention of this rank's heads, which needs no others."""
        given = query, key, value, named.pop("attn_mask", mask)
        if not isinstance(query, DTensor):
            return attention(*given, *rest, **named)
        refuse_uneven(query.shape[-3], "attention heads", self._mesh)
        own = [None if each is None else self._own_heads(self._enter(each)) for each in given]
        found = attention(*own, *rest, **named)
        return DTensor.from_local(found, self._mesh, [Shard(found.ndim - 3)], run_check=False)

    @staticmethod
    def _own_heads(each: DTensor) -> torch.Tensor:
        # What is for all heads, such as a mask, has a part of its gradient on each rank.
        if each.ndim < 3 or each.shape[-3] == 1:
            return each.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return each.redistribute(placements=[Shard(each.ndim - 3)]).to_local()

    def _enter(self, each: torch.Tensor) -> DTensor:
        if isinstance(each, DTensor):
            return each
        # What is changed in place, or used without gradients first, enters again. Kept, so that no other has its id.
        key = id(each), each._version, each.requires_grad and torch.is_grad_enabled()  # noqa: SLF001
        if key not in self._entered:
            enter = _Entered.apply if key[-1] else _as_replicas
            self._entered[key] = each, enter(each, self._mesh)
        return self._entered[key][1]


_IN_PLACE = re.compile(r"[^_].*[^_]_|__i[a-z]+__|__setitem__")


def _as_replicas(x: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False)


class _Entered(Function):
    """A whole tensor as a DTensor; its gradient comes in parts."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        return _as_replicas(x.view_as(x), mesh)

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient.full_tensor(), None


class AmongParts:
    """The forward pass of a block in which whole tensors meet parts of others; what it returns is whole."""

    def __init__(self, block: nn.Module, mesh: DeviceMesh) -> None:
        self._block, self._forward, self._mesh = block, block.forward, mesh

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the block does; in training it is given no cache."""
        if self._block.training:
            args, kwargs = without_caches(args, kwargs)
        with (parts := _EnterParts(self._mesh)), replace_attention(parts.attend):
            found = self._forward(*args, **kwargs)
        return map_only(DTensor, DTensor.full_tensor, found)


class RowOfParts:
    """The forward pass of a layer that divides its inputs, and ends a divided stretch: the ranks' terms are summed."""

    def __init__(self, layer: nn.Module, mesh: DeviceMesh) -> None:
        self._forward, self._group = layer.forward, mesh.get_group()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the layer does, whole."""
        found = self._forward(*args, **kwargs)
        if found.placements[0].is_partial():
            return all_reduce(found.to_local(grad_placements=[Replicate()]), self._group)
        # Not a view, which could not be added to in place.
        return found.full_tensor().clone()


class FusedColumns:
    """The forward pass of a layer that makes queries, keys and values at once: each rank has some heads of all three.

    The layer's parameters are kept as (outputs, 3, inputs) and (outputs, 3), divided along the outputs.
    """

    def __init__(self, layer: Any, mesh: DeviceMesh) -> None:
        layer.weight = _divide_thirds(layer.weight.T if is_transposed(layer) else layer.weight, mesh)
        if layer.bias is not None:
            layer.bias = _divide_thirds(layer.bias, mesh)
        self._layer, self._mesh = layer, mesh

    def __call__(self, x: torch.Tensor) -> "_Fused":
        """Return queries, keys and values."""
        bias = None if self._layer.bias is None else self._layer.bias.to_local().T.flatten()
        # From (outputs, 3, inputs) to all queries, then all keys, then all values.
        weight = self._layer.weight.to_local().transpose(0, 1).flatten(0, 1)
        # Each rank finds a part of the sum that is the gradient of the input.
        projected = functional.linear(copy(x, self._mesh.get_group()), weight, bias)
        last = Shard(projected.ndim - 1)
        return _Fused(
            [DTensor.from_local(item, self._mesh, [last], run_check=False) for item in projected.chunk(3, -1)]
        )


class _Fused:
    """Queries, keys and values side by side, as models take them apart: by chunk, split, unflatten, view or reshape."""

    def __init__(self, three: Sequence[DTensor]) -> None:
        self._three = three

    @property
    def shape(self) -> torch.Size:
        first = self._three[0].shape
        return torch.Size([*first[:-1], 3 * first[-1]])

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def chunk(self, chunks: int, dim: int = 0) -> tuple[DTensor, ...]:
        self._check(chunks == 3 and dim in {-1, len(self.shape) - 1}, f"chunk({chunks}, {dim})")
        return tuple(self._three)

    def split(self, split_size: Any, dim: int = 0) -> tuple[DTensor, ...]:
        size = self.shape[-1] // 3
        even = split_size in (size, [size] * 3, (size,) * 3)
        self._check(even and dim in {-1, len(self.shape) - 1}, f"split({split_size}, {dim})")
        return tuple(self._three)

    def unflatten(self, dim: int, sizes: Sequence[int]) -> torch.Tensor:
        self._check(dim in {-1, len(self.shape) - 1}, f"unflatten({dim}, {tuple(sizes)})")
        return self.view(*self.shape[:-1], *sizes)

    def view(self, *sizes: Any) -> torch.Tensor:
        """Return (..., 3, heads, width of a head)."""
        asked = list(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else list(sizes)
        lead = len(self.shape) - 1
        self._check(len(asked) == lead + 3 and asked[lead] == 3, f"view{tuple(asked)}")
        return torch.stack([item.reshape(*asked[:lead], *asked[lead + 1 :]) for item in self._three], dim=lead)

    reshape = view

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls._check(hasattr(cls, func.__name__), func.__name__)
        return getattr(args[0], func.__name__)(*args[1:], **(kwargs or {}))

    @staticmethod
    def _check(fits: bool, what: str) -> None:
        if not fits:
            raise UnsupportedPlan.of(
                "tensor",
                f"queries, keys and values of one layer are taken apart by {what}; allowed: chunk(3, -1), split of a "
                "third, view or reshape to (..., 3, heads, width); or give them a layer each",
            )


class MultiheadParallel(nn.Module):
    """An `nn.MultiheadAttention` of which each rank has some heads; returns no attention weights.

    Names are those of the original; its `in_proj` parameters are kept with a second dimension of three.
    """

    out_proj: Any

    def __init__(self, layer: nn.MultiheadAttention, mesh: DeviceMesh) -> None:
        super().__init__()
        world = mesh.size()
        if layer.in_proj_weight is None or layer.bias_k is not None or layer.add_zero_attn:
            raise UnsupportedPlan.of("tensor", "nn.MultiheadAttention with kdim, vdim, add_bias_kv or add_zero_attn")
        refuse_uneven(layer.num_heads, "attention heads", mesh)
        self.in_proj_weight = _divide_thirds(layer.in_proj_weight, mesh)
        self.in_proj_bias: Any = None if layer.in_proj_bias is None else _divide_thirds(layer.in_proj_bias, mesh)
        out: Any = nn.Module()
        out.weight, out.bias = divided(layer.out_proj.weight, mesh, Shard(1), "tensor"), layer.out_proj.bias
        self.out_proj = out
        self.batch_first = layer.batch_first
        self.embed_dim, self.num_heads, self.dropout = layer.embed_dim, layer.num_heads, layer.dropout
        # So that torch's encoder layers take no fused path around this module.
        self._qkv_same_embed_dim = False
        self._group, self._world = mesh.get_group(), world

    def forward(  # noqa: PLR0917 -- torch's signature
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,  # noqa: ARG002 -- of a part of the heads they would mean little
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,  # noqa: ARG002
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, None]:
        """Return attention to whole tensors, and None."""
        # Self-attention enters the divided stretch once, so that its input's gradient is summed once.
        same = query is key and key is value
        entered = [copy(each, self._group) for each in ((query,) if same else (query, key, value))] * (3 if same else 1)
        weights = self.in_proj_weight.to_local().unbind(1)
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.to_local().unbind(1)
        projected = [functional.linear(x, w, b) for x, w, b in zip(entered, weights, biases, strict=True)]
        if not self.batch_first:
            projected = [one.transpose(0, 1) for one in projected]
        heads = self.num_heads // self._world
        q, k, v = (item.unflatten(-1, (heads, -1)).transpose(1, 2) for item in projected)
        mask = _join_masks(key_padding_mask, attn_mask, q.dtype)
        rate = self.dropout if self.training else 0.0
        # Beside a mask `is_causal` is only a hint that the mask says the same.
        causal = is_causal and mask is None
        found = functional.scaled_dot_product_attention(q, k, v, mask, rate, is_causal=causal)
        # Each rank's heads give one term of the output; the terms are summed where the stretch ends.
        joined = found.transpose(1, 2).flatten(2)
        term = functional.linear(
            joined if self.batch_first else joined.transpose(0, 1), self.out_proj.weight.to_local()
        )
        out = all_reduce(term, self._group)
        return (out if self.out_proj.bias is None else out + self.out_proj.bias), None


def _join_masks(padding: torch.Tensor | None, mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Return one mask to be added to the scores of any head."""
    if mask is not None and mask.ndim == 3:
        raise UnsupportedPlan.of("tensor", "an attention mask for each head; allowed: one of (queries, keys)")
    total = None
    for item in (mask, None if padding is None else padding[:, None, None, :]):
        if item is not None:
            added = item
            # True hides a position: a score of minus infinity has no weight after the softmax.
            if item.dtype == torch.bool:
                added = torch.zeros_like(item, dtype=dtype).masked_fill_(item, float("-inf"))
            total = added if total is None else total + added
    return total


def _divide_thirds(tensor: torch.Tensor, mesh: DeviceMesh) -> Any:
    """Return what makes queries, keys and values with its outputs first: what divides state divides along these."""
    thirds = tensor.detach().unflatten(0, (3, -1)).transpose(0, 1)
    return divided(nn.Parameter(thirds, tensor.requires_grad), mesh, Shard(0), "tensor")

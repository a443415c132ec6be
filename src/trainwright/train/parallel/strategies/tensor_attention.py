"""Tensor-parallel attention, of which each rank has some heads: torch's MultiheadAttention, fused projections."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import register_sharding
from torch.nn import functional

from trainwright.errors import UnsupportedPlan
from trainwright.train.parallel.blocks import divided
from trainwright.train.parallel.collectives import all_reduce, copy

__all__ = ["FusedColumns", "MultiheadParallel", "teach_attention"]


class FusedColumns(nn.Module):
    """A linear layer that makes queries, keys and values at once: each rank has some heads of all three.

    Its parameters are kept as (outputs, 3, inputs) and (outputs, 3), divided along the outputs.
    """

    def __init__(self, layer: nn.Linear, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = _divide_thirds(layer.weight, mesh)
        self.bias: Any = None if layer.bias is None else _divide_thirds(layer.bias, mesh)
        self._mesh = mesh

    def forward(self, input: torch.Tensor) -> "_Fused":  # noqa: A002 -- torch's name
        """Return queries, keys and values."""
        x = (
            input
            if isinstance(input, DTensor)
            else DTensor.from_local(input, self._mesh, [Replicate()], run_check=False)
        )
        # Each rank finds a part of the sum that is the gradient of the input.
        local = x.to_local(grad_placements=[Partial()])
        bias = None if self.bias is None else self.bias.to_local().T.flatten()
        # From (outputs, 3, inputs) to all queries, then all keys, then all values.
        projected = functional.linear(local, self.weight.to_local().transpose(0, 1).flatten(0, 1), bias)
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
        if asked.count(-1) == 1:
            # The product of the sizes has the -1 itself as a factor.
            asked[asked.index(-1)] = prod(self.shape) // -prod(asked)
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
        if layer.num_heads % world:
            raise UnsupportedPlan.of("tensor", f"{layer.num_heads} attention heads cannot be divided by {world}")
        self.in_proj_weight = _divide_thirds(layer.in_proj_weight, mesh)
        self.in_proj_bias: Any = None if layer.in_proj_bias is None else _divide_thirds(layer.in_proj_bias, mesh)
        out: Any = nn.Module()
        out.weight, out.bias = divided(layer.out_proj.weight, mesh, Shard(1), "tensor"), None
        if layer.out_proj.bias is not None:
            whole = distribute_tensor(layer.out_proj.bias.detach(), mesh, [Replicate()])
            out.bias = nn.Parameter(whole, layer.out_proj.bias.requires_grad)
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
        return (out if self.out_proj.bias is None else out + self.out_proj.bias.to_local()), None


def teach_attention() -> None:
    """Tell DTensor that attention on CPU can be divided by heads, as it knows of attention on GPUs."""
    aten = torch.ops.aten
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001 -- the operator's name
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default  # noqa: SLF001

    @register_sharding(forward)  # type: ignore[untyped-decorator]
    def _forward(*args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
        rest = [None] * (len(args) - 3)
        return [
            ([Shard(1), Shard(1)], [Shard(1)] * 3 + rest),
            ([Replicate(), Replicate()], [Replicate()] * 3 + rest),
        ]

    @register_sharding(backward)  # type: ignore[untyped-decorator]
    def _backward(*args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
        rest = [None] * (len(args) - 6)
        return [
            ([Shard(1)] * 3, [Shard(1)] * 6 + rest),
            ([Replicate()] * 3, [Replicate()] * 6 + rest),
        ]


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

"""Differentiable collectives (all-reduce, all-gather, reduce-scatter, all-to-all): each backward is the matching one.

A tensor that all ranks of a group hold equally is called whole; of a whole tensor every rank has the whole gradient.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Function

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_counts",
    "copy",
    "divide_gradient",
    "sum_over_ranks",
    "take_part",
]

Group = dist.ProcessGroup
# Renamed in torch 2.13; 2.11 knows the old names only.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(part: torch.Tensor, group: Group, *, dim: int, sizes: tuple[int, ...], scatter: bool) -> torch.Tensor:
    """Return the parts of all ranks, side by side along `dim`; `sizes` are theirs along it.

    Backward, `scatter` sums the gradients of all ranks and leaves each its part (reduce-scatter): for gradients that
    differ. Else each takes its part of its own gradient: for a whole one. Uneven parts are padded to the largest.
    """
    back = _scatter_sum if scatter else _part_of_rank
    return _Exchange.apply(part, _gather_parts, back, (group, dim, sizes))  # type: ignore[no-any-return]


def take_part(whole: torch.Tensor, group: Group, *, dim: int, sizes: tuple[int, ...]) -> torch.Tensor:
    """Return this rank's part of a whole tensor; backward, the parts of the gradient are gathered."""
    return _Exchange.apply(whole, _part_of_rank, _gather_parts, (group, dim, sizes))  # type: ignore[no-any-return]


def all_reduce(term: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the sum over the ranks (all-reduce); backward, its gradient is whole and goes to each term."""
    return _Exchange.apply(term, _sum_terms, _as_it_is, (group,))  # type: ignore[no-any-return]


def all_to_all(rows: torch.Tensor, group: Group, *, sent: list[int], received: list[int]) -> torch.Tensor:
    """Return the rows that come from all ranks, in their order; `sent` and `received` are how many of each.

    Backward, gradients go the way back.
    """
    return _Exchange.apply(rows, _send_rows, _send_back, (group, sent, received))  # type: ignore[no-any-return]


def all_to_all_counts(counts: torch.Tensor, group: Group) -> torch.Tensor:
    """Return row r of every rank r' as row r' on rank r."""
    found = torch.empty_like(counts)
    dist.all_to_all_single(found, counts, group=group)
    return found


def copy(whole: torch.Tensor, group: Group) -> torch.Tensor:
    """Return a whole tensor for ranks that do different things with it: backward, their gradients are summed."""
    return _Exchange.apply(whole, _as_it_is, _sum_terms, (group,))  # type: ignore[no-any-return]


def divide_gradient(whole: torch.Tensor, by: int) -> torch.Tensor:
    """Return a tensor for samples of as many ranks: backward, its gradient is that of the mean over their losses."""
    return _Exchange.apply(whole, _as_it_is, torch.div, (by,))  # type: ignore[no-any-return]


def sum_over_ranks(term: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the sum over the ranks, for ranks that do different things with it: backward, gradients are summed too."""
    return _Exchange.apply(term, _sum_terms, _sum_terms, (group,))  # type: ignore[no-any-return]


class _Exchange(Function):
    """One exchange forward, another one backward, with the same settings."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, run: Callable[..., Any], back: Callable[..., Any], settings: tuple[Any, ...]
    ) -> torch.Tensor:
        ctx.back, ctx.settings = back, settings
        return run(tensor, *settings)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.back(gradient, *ctx.settings), None, None, None


def _as_it_is(tensor: torch.Tensor, _: Group | int) -> torch.Tensor:
    return tensor.view_as(tensor)


def _sum_terms(term: torch.Tensor, group: Group) -> torch.Tensor:
    total = term.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _send_rows(rows: torch.Tensor, group: Group, sent: list[int], received: list[int]) -> torch.Tensor:
    found = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
    return found


def _send_back(rows: torch.Tensor, group: Group, sent: list[int], received: list[int]) -> torch.Tensor:
    return _send_rows(rows, group, received, sent)


def _part_of_rank(whole: torch.Tensor, group: Group, dim: int, sizes: tuple[int, ...]) -> torch.Tensor:
    rank = dist.get_rank(group)
    return whole.narrow(dim, sum(sizes[:rank]), sizes[rank]).clone(memory_format=torch.contiguous_format)


def _gather_parts(part: torch.Tensor, group: Group, dim: int, sizes: tuple[int, ...]) -> torch.Tensor:
    most, rows = max(sizes), part.movedim(dim, 0)
    # The collective takes equal parts only: each is padded to the largest, and the padding cut out at the end.
    padded = rows.new_zeros((most, *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    found = padded.new_empty((len(sizes) * most, *padded.shape[1:]))
    _all_gather(found, padded, group=group)
    if min(sizes) < most:
        found = torch.cat([found[rank * most : rank * most + size] for rank, size in enumerate(sizes)])
    return found.movedim(0, dim).contiguous()


def _scatter_sum(whole: torch.Tensor, group: Group, dim: int, sizes: tuple[int, ...]) -> torch.Tensor:
    most, rows = max(sizes), whole.movedim(dim, 0)
    # Piece r of every rank is summed on rank r; pieces are padded to the largest.
    padded = rows.new_zeros((len(sizes), most, *rows.shape[1:]))
    for rank, piece in enumerate(rows.split(list(sizes))):
        padded[rank, : sizes[rank]] = piece
    found = torch.empty_like(padded[0])
    _reduce_scatter(found, padded.flatten(0, 1), group=group)
    return found[: sizes[dist.get_rank(group)]].movedim(0, dim).contiguous()

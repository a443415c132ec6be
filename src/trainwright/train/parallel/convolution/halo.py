"""Halo exchange: fetches the rows of its neighbours that a rank needs to compute its own; how tensors are divided.

Output row o of a kernel of K taps reads the input rows o * stride - before + dilation * k for k < K, where `before`
rows of padding lie in front of the first. A window may reach over several neighbours, or into none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Function

__all__ = ["Division", "Window", "even_bounds", "exchange_halo", "halo_windows", "is_divided"]

Bounds = tuple[int, ...]
"""Where the rows of each rank begin, and the end of the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The input rows `start` to `stop` that a rank reads, and how many rows of padding lie before and after them."""

    start: int
    stop: int
    before: int
    after: int


def even_bounds(size: int, world: int) -> Bounds:
    """Return an even division of `size` rows; where it is uneven parts differ by one."""
    return tuple(-(-size * rank // world) for rank in range(world + 1))


def halo_windows(out: Bounds, size: int, *, kernel: int, stride: int, dilation: int, before: int) -> list[Window]:
    """Return what each rank reads of `size` input rows for its rows `out` of the output."""
    found = []
    for first, end in pairwise(out):
        # The first and last input rows that the outputs first..end depend on, padding included.
        low = first * stride - before
        high = max(low, (end - 1) * stride - before + dilation * (kernel - 1) + 1)
        # What lies beyond the input is padding, and is not fetched.
        start, stop = min(max(low, 0), size), min(max(high, 0), size)
        # A window that lies in the padding as a whole has no more of it than rows of its own.
        before_rows, after_rows = (min(max(0, rows), high - low) for rows in (-low, high - size))
        found.append(Window(start=start, stop=stop, before=before_rows, after=after_rows))
    return found


def exchange_halo(
    rows: torch.Tensor, group: dist.ProcessGroup, *, dim: int, bounds: Bounds, wanted: Sequence[Window]
) -> torch.Tensor:
    """Return the rows that this rank wants, from whoever has them; backward, their gradients go back and are added.

    `bounds` says who has which rows. Between two ranks there is one message each way at most, and none for no row.
    """
    return _HaloExchange.apply(rows, group, dim, list(pairwise(bounds)), [(item.start, item.stop) for item in wanted])  # type: ignore[no-any-return]


Span = tuple[int, int]
"""Rows from one to before another."""


class _HaloExchange(Function):
    """Rows of which each rank `has` some, where they are wanted; backward, their gradients where the rows are."""

    @staticmethod
    def forward(  # noqa: PLR0917 -- torch hands them over by place
        ctx: Any, rows: torch.Tensor, group: Any, dim: int, has: list[Span], wanted: list[Span]
    ) -> torch.Tensor:
        ctx.settings = group, dim, wanted, has
        return _move_rows(rows, group, dim, has, wanted)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _move_rows(gradient, *ctx.settings), None, None, None, None


def _move_rows(
    rows: torch.Tensor, group: dist.ProcessGroup, dim: int, has: Sequence[Span], wanted: Sequence[Span]
) -> torch.Tensor:
    """Return the rows that this rank wants, each the sum of what the ranks have of it."""
    me = dist.get_rank(group)
    (first, _), (start, stop) = has[me], wanted[me]
    shape = list(rows.shape)
    shape[dim] = stop - start
    total = rows.new_zeros(shape)
    # What is wanted and here already is copied and not sent.
    own = _common(has[me], wanted[me])
    if own is not None:
        _rows(total, dim, own, start).copy_(_rows(rows, dim, own, first))
    # One message a neighbour and direction; every rank knows what all have and want, so that both ends agree unasked.
    others = [rank for rank in range(len(wanted)) if rank != me]
    outgoing = [(rank, span) for rank in others if (span := _common(has[me], wanted[rank])) is not None]
    incoming = [(rank, span) for rank in others if (span := _common(has[rank], wanted[me])) is not None]
    # Rows of an inner dimension do not lie together in memory, as messages must.
    sent = [(rank, _rows(rows, dim, span, first).contiguous()) for rank, span in outgoing]
    came = [(rank, torch.empty_like(_rows(total, dim, span, start).contiguous())) for rank, span in incoming]
    # All begin together, so that no rank waits to send until it has received.
    operations = [dist.P2POp(dist.isend, tensor, group=group, group_peer=rank) for rank, tensor in sent]
    operations += [dist.P2POp(dist.irecv, tensor, group=group, group_peer=rank) for rank, tensor in came]
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    # In the order of ranks: sums round alike.
    for (_, span), (_, tensor) in zip(incoming, came, strict=True):
        _rows(total, dim, span, start).add_(tensor)
    return total


def _common(one: Span, other: Span) -> Span | None:
    start, stop = max(one[0], other[0]), min(one[1], other[1])
    return (start, stop) if start < stop else None


def _rows(tensor: torch.Tensor, dim: int, span: Span, first: int) -> torch.Tensor:
    return tensor.narrow(dim, span[0] - first, span[1] - span[0])


@dataclass(frozen=True, kw_only=True)
class Division:
    """How a tensor is divided: along `dim`, rank r of `group` holding bounds[r] to bounds[r + 1]."""

    dim: int
    bounds: Bounds
    group: dist.ProcessGroup
    spatial: bool
    """Whether `dim` is a size of an image or a volume; else it is its channels, of which the gradients are whole."""

    @property
    def size(self) -> int:
        """Length of the whole tensor along `dim`."""
        return self.bounds[-1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of all parts."""
        return tuple(stop - start for start, stop in pairwise(self.bounds))

    @property
    def bounds_of_rank(self) -> tuple[int, int]:
        """Begin and end of this rank's part."""
        rank = dist.get_rank(self.group)
        return self.bounds[rank], self.bounds[rank + 1]


def is_divided(tensor: Any) -> bool:
    """Return whether a value is a `Part`. Operations ask here, since the class of parts calls them."""
    return isinstance(getattr(tensor, "division", None), Division)

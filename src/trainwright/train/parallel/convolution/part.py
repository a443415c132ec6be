"""Part: a tensor of which each rank of a group holds a part along one dimension, and what operations make of it.

Operations on single elements work on the parts. Convolutions and pooling of a tensor divided along a spatial dimension
fetch their halo first. Of everything else a part knows nothing: it is gathered, and the operation done on the whole.
So a model needs no change, and what is divided ends by itself where an operation cannot be divided.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch

from trainwright.train.parallel.collectives import all_gather, copy, take_part
from trainwright.train.parallel.convolution.halo import Division
from trainwright.train.parallel.convolution.operations import POINTWISE, operation_of
from trainwright.train.parallel.recompute.trees import map_only

__all__ = ["Part", "unshard", "unshard_all"]


class Part(torch.Tensor):
    """This rank's part of a tensor. Its `shape` is that of the whole, `local` the part as a plain tensor."""

    division: Division

    @classmethod
    def of(cls, local: torch.Tensor, division: Division) -> Self:
        """Return a plain tensor as a part."""
        part = local.as_subclass(cls)
        part.division = division
        return part

    @property
    def local(self) -> torch.Tensor:
        """The part as a plain tensor."""
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 -- torch's documented way out of a subclass
            return self.as_subclass(torch.Tensor)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in {"__get__", "__set__"} or name in _ABOUT:
            return _answer_about(func, name, args, kwargs)
        # Element-wise operations need no neighbours: they work on the part as it is.
        if name in POINTWISE:
            return _pointwise(func, args, kwargs)
        operation = operation_of(name, spatial=_first_part(args, kwargs).division.spatial)
        found = NotImplemented if operation is None else operation(func, *args, **kwargs)
        if found is not NotImplemented:
            return found
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            return func(*_map_items(args, unshard), **_map_items(kwargs, unshard))


def unshard(tensor: Any, *, scatter: bool | None = None) -> Any:
    """Return a part as the whole tensor, on every rank; anything else as it is.

    `scatter`: whether gradients of the ranks differ and are to be summed; by default as the division says.
    """
    if not isinstance(tensor, Part):
        return tensor
    division = tensor.division
    scatter = division.spatial if scatter is None else scatter
    return all_gather(tensor.local, division.group, dim=division.dim, sizes=division.sizes, scatter=scatter)


def unshard_all(found: Any) -> Any:
    """Return what a model returns, with whole tensors in it."""
    return map_only(torch.Tensor, unshard, found)


_ABOUT = frozenset({"size", "dim", "numel", "nelement", "__len__", "is_floating_point", "is_complex", "__repr__"})


def _answer_about(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer what is asked about a tensor: sizes are those of the whole."""
    of = getattr(getattr(func, "__self__", None), "__name__", name)
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        part = args[0]
        if of in {"shape", "size", "numel", "nelement", "__len__"} and isinstance(part, Part):
            shape = list(part.shape)
            shape[part.division.dim] = part.division.size
            # A tensor without memory gives the answers that the whole one would.
            like = torch.empty(shape, device="meta")
            return like.shape if of == "shape" else getattr(like, of)(*args[1:], **kwargs)
        found = func(*args, **kwargs)
    return unshard(found) if isinstance(found, Part) and found is not part else found


def _pointwise(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    parts = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Part)]
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        # Broadcasting aligns last dimensions: the operand with most of them says where the division lies.
        lead = max(parts, key=lambda part: part.ndim)
        division, ndim = lead.division, lead.ndim

        def local(arg: Any) -> Any:
            if isinstance(arg, Part):
                return (
                    arg.local if arg.division == division and arg.ndim == ndim else _align(unshard(arg), division, ndim)
                )
            return _align(arg, division, ndim) if isinstance(arg, torch.Tensor) else arg

        found = func(*_map_items(args, local), **_map_items(kwargs, local))
    if not isinstance(found, torch.Tensor):
        return found
    # Broadcasting may have put dimensions in front, which shifts the divided one.
    grown = found.ndim - ndim
    return Part.of(found, division if not grown else replace(division, dim=division.dim + grown))


def _align(tensor: torch.Tensor, division: Division, ndim: int) -> torch.Tensor:
    """Return of a whole tensor what broadcasts with this rank's part."""
    # The divided dimension, counted from the end as broadcasting does.
    dim = division.dim - ndim + tensor.ndim
    small = dim < 0 or tensor.shape[dim] == 1
    if division.spatial or not tensor.requires_grad:
        start, stop = division.bounds_of_rank
        return tensor if small else tensor.narrow(dim, start, stop - start)
    # Each rank has a part of its gradient, which is to be whole.
    if small:
        return copy(tensor, division.group)
    return take_part(tensor, division.group, dim=dim, sizes=division.sizes)


def _first_part(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Part:
    """Return the first part among arguments, of which one may be a list."""
    flat = [item for arg in (*args, *kwargs.values()) for item in (arg if isinstance(arg, list | tuple) else [arg])]
    return next(entry for entry in flat if isinstance(entry, Part))


def _map_items(items: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(items, dict):
        return {key: _map_items(item, change) for key, item in items.items()}
    if isinstance(items, tuple | list) and not isinstance(items, torch.Size):
        changed = [_map_items(item, change) for item in items]
        return type(items)(*changed) if hasattr(items, "_fields") else type(items)(changed)
    return change(items)

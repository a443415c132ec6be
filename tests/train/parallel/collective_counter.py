"""Counting what ranks exchange: every collective and every message of torch.distributed, with its bytes."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainwright.plan.parallel.strategies.strategy import Operation

__all__ = ["Tally"]


class Tally(TorchDispatchMode):
    """Counts what this rank exchanges while it is on, backward passes and torch's own parallel modules included.

    `counts` has for each (operation, axis, bytes) how often; bytes are those of the whole message as in
    `plan.Collective`: what an all-gather ends with, what a reduce-scatter begins with. A message counts where it is
    sent. The axis is that of the mesh ("" without one), "all" for a group of all ranks of several axes.
    """

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        super().__init__()
        self.counts: Counter[tuple[Operation, str, int]] = Counter()
        names = () if mesh is None else mesh.mesh_dim_names or ()
        self._axes: dict[str, str] = {}
        for name in names:
            self._axes[mesh.get_group(name).group_name] = name  # type: ignore[union-attr]  # there is a mesh
        if len(names) > 1:
            self._axes.setdefault(dist.group.WORLD.group_name, "all")  # type: ignore[union-attr]  # there is one
        elif names:
            self._axes.setdefault(dist.group.WORLD.group_name, names[0])  # type: ignore[union-attr]

    def totals(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return by operation and axis how many exchanges there were, and their bytes together."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for (operation, axis, size), count in self.counts.items():
            number, total = found.get((operation, axis), (0, 0))
            found[operation, axis] = number + count, total + count * size
        return found

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own exchanges come by as plain ones
        known = _KNOWN.get(func.name())
        if known is not None:
            operation, size = known
            group = _group_in((*args, *(kwargs or {}).values()))
            self.counts[operation, self._axes.get(group, ""), size(args)] += 1
        return func(*args, **(kwargs or {}))


def _group_in(args: tuple[Any, ...]) -> str:
    """Return the name of the group among the arguments of an operation."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            try:
                return str(dist.ProcessGroup.unbox(arg).group_name)
            except RuntimeError:  # another object, such as the kind of sum
                continue
    return next((arg for arg in reversed(args) if isinstance(arg, str)), "")


def _bytes(items: Any) -> int:
    return sum(map(_bytes, items)) if isinstance(items, list | tuple) else items.nbytes


_KNOWN: dict[str, tuple[Operation, Callable[[tuple[Any, ...]], int]]] = {
    "c10d::allreduce_": ("all_reduce", lambda args: _bytes(args[0])),
    "c10d::_allgather_base_": ("all_gather", lambda args: _bytes(args[0])),
    "c10d::allgather_": ("all_gather", lambda args: _bytes(args[0])),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", lambda args: _bytes(args[1])),
    "c10d::reduce_scatter_": ("reduce_scatter", lambda args: _bytes(args[1])),
    "c10d::alltoall_base_": ("all_to_all", lambda args: _bytes(args[1])),
    "c10d::broadcast_": ("broadcast", lambda args: _bytes(args[0])),
    "c10d::send": ("send", lambda args: _bytes(args[0])),
    "_c10d_functional::all_reduce": ("all_reduce", lambda args: _bytes(args[0])),
    "_c10d_functional::all_reduce_": ("all_reduce", lambda args: _bytes(args[0])),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", lambda args: _bytes(args[0]) * args[1]),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", lambda args: _bytes(args[0])),
    "_c10d_functional::broadcast": ("broadcast", lambda args: _bytes(args[0])),
}

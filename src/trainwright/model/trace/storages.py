"""Tracks live memory while a step runs: counts the bytes of storages, on fake tensors or on real ones.

Views, results of in-place operations and tied weights share a storage and count once. A storage counts from the
operation that first returns it (or from `watch`) until its last reference is dropped.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainwright.model.trace.workspaces import call_measured
from trainwright.validators import check, integer

__all__ = ["LiveStorage", "StorageTracker", "tensors_in"]


class LiveStorage:
    """A live storage: its `number` in order of appearance, its bytes as the allocator rounds them, and its owner."""

    __slots__ = ("bytes", "number", "owner", "reference")

    def __init__(self, number: int, size: int, owner: str) -> None:
        self.number = number
        self.bytes = size
        self.owner = owner
        self.reference: weakref.ref[Any] | None = None


class StorageTracker(TorchDispatchMode):
    """Counts the bytes of live storages while it is entered, with their peak, by owner.

    `granule_bytes` is what an allocator rounds a storage up to (64 on CPU, 512 on CUDA). What lives before the tracker
    is entered counts from `watch` on, or from its first use::

        tracker = StorageTracker()
        tracker.watch(model.parameters(), "parameters")
        with tracker, tracker.owner("forward"):
            loss = model(x).sum()
        print(tracker.peak_bytes, tracker.peak_by_owner)

    The peak includes workspaces: what a kernel takes and gives back inside one operation. `on_workspace` is called with
    that of each operation. Entered inside a `FakeTensorMode` it counts fake tensors, which have none; the storages that
    a real run counts are the same, operation by operation.
    """

    def __init__(self, *, granule_bytes: int = 64, on_workspace: Callable[[int], None] = lambda _: None) -> None:
        super().__init__()
        check(granule_bytes, integer(minimum=1), "StorageTracker.granule_bytes")
        self.granule_bytes = granule_bytes
        self.on_workspace = on_workspace
        self.live_bytes = 0
        self.peak_bytes = 0
        self._owner = "other"
        self._entries: dict[int, LiveStorage] = {}
        self._by_owner: dict[str, int] = {}
        self._at_peak: dict[str, int] = {}
        self._numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if types and any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # what a wrapper does to its parts comes by afterwards
        if _resizes(func):
            # Its parameters' storages have been emptied, or filled, in place.
            self._see_sizes()
        result, workspace = call_measured(func, args, kwargs or {})
        # The usual case first: this is done for every operation.
        if type(result) is torch.Tensor and result.layout is torch.strided:
            self._one(result)
        else:
            self.see(result)
        if workspace:
            self.on_workspace(workspace)
            if self.live_bytes + workspace > self.peak_bytes:
                self.peak_bytes = self.live_bytes + workspace
                self._at_peak = {**self._by_owner, "workspaces": workspace}
        return result

    @property
    def peak_by_owner(self) -> dict[str, int]:
        """Live bytes by owner at the moment of the peak."""
        return {owner: size for owner, size in self._at_peak.items() if size}

    def see(self, tree: Any) -> list[LiveStorage]:
        """Count the storages of all tensors in a tree that are not yet counted; return the entries of all of them."""
        return [self._one(leaf) for leaf in _with_storage(tensors_in(tree))]

    def watch(self, tree: Any, owner: str) -> None:
        """Count the storages of existing tensors, and set their owner."""
        # Bytes move from the owner that they were first counted for.
        for entry in self.see(list(tree) if isinstance(tree, Iterator) else tree):
            self._by_owner[entry.owner] -= entry.bytes
            entry.owner = owner
            self._by_owner[owner] = self._by_owner.get(owner, 0) + entry.bytes

    @contextlib.contextmanager
    def owner(self, name: str) -> Iterator[None]:
        """Set the owner of the storages that appear inside."""
        before, self._owner = self._owner, name
        try:
            yield
        finally:
            self._owner = before

    def restart_peak(self) -> None:
        """Reset the peak to the bytes that are live now."""
        self.peak_bytes = self.live_bytes
        self._at_peak = dict(self._by_owner)

    def _one(self, tensor: torch.Tensor) -> LiveStorage:
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  the only identity that two Python objects of one storage share
        # Rounded up to the allocator's granule.
        size = -(-storage.nbytes() // self.granule_bytes) * self.granule_bytes
        entry = self._entries.get(key)
        if entry is None:
            entry = LiveStorage(self._numbers, size, self._owner)
            self._numbers += 1
            # Called when the last reference is dropped: then the allocator gets the bytes back.
            entry.reference = weakref.ref(storage, lambda _: self._remove_storage(key))
            self._entries[key] = entry
            self._change_bytes(entry.owner, size)
        elif entry.bytes != size:  # a storage may be resized in place
            self._change_bytes(entry.owner, size - entry.bytes)
            entry.bytes = size
        return entry

    def _see_sizes(self) -> None:
        """Count storages that were resized since they were seen last."""
        for entry in list(self._entries.values()):
            storage = None if entry.reference is None else entry.reference()
            if storage is not None:
                size = -(-storage.nbytes() // self.granule_bytes) * self.granule_bytes
                self._change_bytes(entry.owner, size - entry.bytes)
                entry.bytes = size

    def _remove_storage(self, key: int) -> None:
        entry = self._entries.pop(key)
        self._change_bytes(entry.owner, -entry.bytes)
        self._freed(entry)

    def _freed(self, entry: LiveStorage) -> None:
        """Do nothing; subclasses may record that a storage was freed."""

    def _change_bytes(self, owner: str, size: int) -> None:
        self.live_bytes += size
        self._by_owner[owner] = self._by_owner.get(owner, 0) + size
        # Copied at each new peak only; between peaks a change is two additions.
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes
            self._at_peak = dict(self._by_owner)


@cache
def _resizes(func: Any) -> bool:
    return bool(func.namespace == "fsdp")


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in a tensor, a list, tuple or mapping of such, or any other tree that torch knows."""
    found: list[torch.Tensor] = []
    _gather_tensors(tree, found)
    return found


def _gather_tensors(tree: Any, found: list[torch.Tensor]) -> None:
    # written out for the arguments of operations, which come by the thousand: torch's own walk is ten times slower
    if isinstance(tree, torch.Tensor):
        found.append(tree)
    elif type(tree) in {list, tuple}:
        for part in tree:
            _gather_tensors(part, found)
    elif type(tree) is dict:
        for part in tree.values():
            _gather_tensors(part, found)
    elif tree is not None and type(tree) not in {int, float, bool, str}:
        found.extend(leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _with_storage(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors that have a storage; of sparse tensors and of wrappers, such as DTensors, their parts."""
    for tensor in tensors:
        if tensor.layout == torch.sparse_coo:
            yield from (tensor._indices(), tensor._values())  # noqa: SLF001  the public ones want it coalesced
        elif hasattr(type(tensor), "__tensor_flatten__"):
            names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # asked for above
            parts = (getattr(tensor, name) for name in names)
            yield from _with_storage(part for part in parts if isinstance(part, torch.Tensor))
        elif tensor.layout == torch.strided:
            yield tensor

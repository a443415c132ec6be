"""What stages leave behind: boundaries between them, the graphs of their runs, and either of them on the host."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakValueDictionary, ref

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from trainwright.errors import UnsupportedModel
from trainwright.train.parallel.recompute.copies import Copies, HostPacket
from trainwright.train.parallel.recompute.trees import TreeSpec, flatten_tree, storage_key, unflatten_tree

__all__ = [
    "Boundary",
    "InputAlias",
    "OffloadableStorage",
    "OffloadableStorages",
    "OffloadedBoundary",
    "SavedRun",
    "SavedTensor",
    "StorageView",
    "can_move",
    "detach_leaf",
    "saving_nothing",
    "written_error",
]


@dataclass(slots=True)
class Boundary:
    """What one stage hands to the next: the leaves of a tree, its tensors out of the graph."""

    leaves: list[Any]
    spec: TreeSpec
    versions: list[int]
    """How often each tensor had been written; empty for those that came from the host, which nobody else has seen."""

    @classmethod
    def of(cls, value: Any) -> "Boundary":
        """Return a tree of tensors as a boundary."""
        leaves, spec = flatten_tree(value)
        leaves = [detach_leaf(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        made = cls(leaves, spec, [])
        made.versions = [tensor._version for tensor in made.tensors()]  # noqa: SLF001  nothing else counts writes
        return made

    def tensors(self) -> list[torch.Tensor]:
        """Return the leaves that are tensors."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def tree(self, where: str) -> Any:
        """Return the tree; raise UnsupportedModel if one of its tensors has been written since."""
        # A boundary from the host has no versions, and nothing to check.
        for tensor, version in zip(self.tensors(), self.versions, strict=False):
            if tensor._version != version:  # noqa: SLF001  as above
                raise written_error(where, "what it reads")
        return unflatten_tree(self.leaves, self.spec)


class OffloadableStorage:
    """A storage that may go to the host and come back; it lives as long as a graph or a boundary refers to it."""

    __slots__ = ("__weakref__", "_base", "_home", "_packet")

    def __init__(self, tensor: torch.Tensor) -> None:
        # Counts the writes to it.
        self._base: torch.Tensor | None = tensor.detach()
        # Whether it has never been away.
        self._home = True
        self._packet: HostPacket | None = None

    def key(self) -> int | None:
        """Return the identity of the storage, None while it is on the host."""
        return None if self._base is None else storage_key(self._base)

    def version(self) -> int | None:
        """Return how often the storage has been written, None once it has been away."""
        return int(self._base._version) if self._home and self._base is not None else None  # noqa: SLF001  no public one

    def send(self, copies: Copies) -> None:
        """Begin the copy to the host."""
        assert self._base is not None  # noqa: S101  plans are valid
        self._packet = copies.send(self._base.untyped_storage())

    def release(self, copies: Copies) -> None:
        """Let the device's copy go."""
        assert self._packet is not None  # noqa: S101  it was sent
        copies.release(self._packet)
        self._base, self._home = None, False

    def prefetch(self, copies: Copies) -> None:
        """Begin the copy back."""
        assert self._packet is not None  # noqa: S101  it was sent
        storage = copies.prefetch(self._packet)
        self._base = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def wait(self, copies: Copies) -> None:
        """Wait for the copy back."""
        if self._packet is not None:
            copies.wait(self._packet)
            self._packet = None

    def drop(self, copies: Copies) -> None:
        """Forget the copy on the host."""
        if self._packet is not None:
            copies.drop(self._packet)
            self._packet = None

    def storage(self) -> torch.UntypedStorage:
        """Return the storage."""
        assert self._base is not None  # noqa: S101  plans are valid
        return self._base.untyped_storage()


class OffloadableStorages(WeakValueDictionary[int, OffloadableStorage]):
    """By the identity that their storages had when they were found."""


class StorageView(NamedTuple):
    """A tensor by the block that it looks at."""

    block: OffloadableStorage
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    version: int
    wants: bool

    @classmethod
    def of(cls, tensor: torch.Tensor, block: OffloadableStorage, *, wants: bool = False) -> "StorageView":
        """Return the view that a tensor is, and whether it shall want a gradient."""
        return cls(
            block, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()),
            tensor._version, wants,  # noqa: SLF001  autograd's own check sees no packed tensors
        )  # fmt: skip

    def tensor(self) -> torch.Tensor:
        """Return the tensor; raise UnsupportedModel if its storage has been written since."""
        version = self.block.version()
        # What has been to the host is a copy that nobody else can have written.
        if version is not None and version != self.version:
            raise written_error("backward", "a value that a stage needs for it")
        storage = self.block.storage()
        made = torch.empty(0, dtype=self.dtype, device=storage.device)
        return made.set_(storage, self.offset, self.size, self.stride).requires_grad_(self.wants)


class InputAlias(NamedTuple):
    """A view of a stage's input that its graph needs for its backward."""

    place: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    version: int
    storage: "ref[torch.UntypedStorage]"

    @classmethod
    def of(cls, tensor: torch.Tensor, place: int) -> "InputAlias":
        """Return the view that a tensor of the input's place is."""
        return cls(
            place, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()),
            tensor._version,  # noqa: SLF001  autograd's own check sees no packed tensors
            ref(tensor.untyped_storage()),
        )  # fmt: skip

    def of_input(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Return the view of what is the input now: the same storage, or one that was made again or brought back."""
        tensor = tensors[self.place]
        # Counts of writes compare only for one storage: an input that was made again has its own.
        same = self.storage() is tensor.untyped_storage()
        if same and tensor._version != self.version:  # noqa: SLF001  as above
            raise written_error("backward", "a stage's input")
        return tensor.detach().view(self.dtype).as_strided(self.size, self.stride, self.offset)


class SavedTensor:
    """What a graph has in the place of a tensor that one of its nodes needs for its backward: nothing, between runs."""

    __slots__ = ("__weakref__", "held", "version")

    def __init__(self) -> None:
        self.held: torch.Tensor | StorageView | InputAlias | None = None
        # How often the tensor had been written when it was saved.
        self.version = 0


@dataclass(slots=True)
class SavedRun:
    """What a run with gradients has left beside its graph."""

    # If anybody reads it again.
    output: Boundary | None
    # Of what the graph has saved, if that is to move.
    blocks: OffloadableStorages
    # Storages of what the graph has saved that skips stages: it never moves.
    staying: set[int]


@dataclass(slots=True)
class OffloadedBoundary:
    """A boundary, and what a graph has saved beside it, on the host or on the way."""

    # With views in the place of tensors.
    boundary: Boundary | None
    blocks: list[OffloadableStorage]
    fetched: bool = False

    @classmethod
    def sent(
        cls,
        boundary: Boundary | None,
        blocks: Iterable[OffloadableStorage],
        stays: Callable[[torch.Tensor], bool],
        copies: Copies,
    ) -> "OffloadedBoundary":
        """Begin to copy what does not stay to the host."""
        known = {block.key(): block for block in blocks}
        leaves: list[Any] = []
        for leaf in boundary.leaves if boundary is not None else []:
            if isinstance(leaf, torch.Tensor) and can_move(leaf) and not stays(leaf):
                # Leaves and saved tensors of one storage travel together, once.
                key = storage_key(leaf)
                block = known[key] = known.get(key) or OffloadableStorage(leaf)
                leaves.append(StorageView.of(leaf, block, wants=leaf.requires_grad))
            else:
                leaves.append(leaf)
        for block in known.values():
            block.send(copies)
        return cls(None if boundary is None else Boundary(leaves, boundary.spec, []), list(known.values()))

    def back(self, copies: Copies) -> Boundary | None:
        """Begin to copy everything back; return the boundary."""
        self.fetched = True
        for block in self.blocks:
            block.prefetch(copies)
        if self.boundary is None:
            return None
        leaves = [leaf.tensor() if isinstance(leaf, StorageView) else leaf for leaf in self.boundary.leaves]
        return Boundary(leaves, self.boundary.spec, [])


def written_error(where: str, what: str) -> UnsupportedModel:
    """Return the error that says that a value was changed in place."""
    return UnsupportedModel(
        f"{where}: {what} was changed in place after it was read; allowed: stages that write no value that another has "
        "made; let the layer return a new tensor (inplace=False)"
    )


def detach_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without its graph, which wants a gradient if the tensor did."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def can_move(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is its storage, seen in strides."""
    return (
        tensor.layout == torch.strided
        and type(tensor) in {torch.Tensor, nn.Parameter}
        and not (tensor.is_conj() or tensor.is_neg())
    )


def saving_nothing(note: Callable[[torch.Tensor], None] = lambda _: None) -> saved_tensors_hooks:
    """Return a context in which autograd's nodes save no tensor, but tell of it: so do stages run that are not kept."""
    return saved_tensors_hooks(note, _nothing)


def _nothing(_: Any) -> torch.Tensor:
    raise UnsupportedModel(
        "model: got a value that holds tensors where nobody can find them, such as an object of a class of its own; "
        "allowed: tuples, lists, mappings and dataclasses of tensors, between layers and as the result"
    )

"""What stages leave behind: boundaries between them, the graphs of their runs, and either of them on the host."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from trainwright.errors import UnsupportedModel
from trainwright.train.parallel.recompute.copies import Copies, HostCopy
from trainwright.train.parallel.recompute.trees import TreeSpec, flatten_tree, map_only, storage_key, unflatten_tree

__all__ = [
    "Boundary",
    "InputAlias",
    "OffloadedValue",
    "SavedTensor",
    "apart_in_backward",
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

    def replace(self, place: int, tensor: torch.Tensor | None) -> None:
        """Put a tensor, or none, in the place of a leaf; nobody else has seen one that was on the host."""
        self.leaves[place] = tensor
        self.versions = []

    def tree(self, where: str) -> Any:
        """Return the tree; raise UnsupportedModel if one of its tensors has been written since."""
        # A boundary from the host has no versions, and nothing to check.
        for tensor, version in zip(self.tensors(), self.versions, strict=False):
            if tensor._version != version:  # noqa: SLF001  as above
                raise written_error(where, "what it reads")
        return unflatten_tree(self.leaves, self.spec)


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

    __slots__ = ("__weakref__", "held", "moves", "version")

    def __init__(self) -> None:
        self.held: torch.Tensor | InputAlias | None = None
        self.moves = False
        """Whether it goes to the host with its graph."""
        # How often the tensor had been written when it was saved.
        self.version = 0

    def hold(self, tensor: torch.Tensor | None) -> None:
        """Hold a tensor, as it is now, or none."""
        self.held = tensor
        self.version = 0 if tensor is None else tensor._version  # noqa: SLF001  autograd does not check what is packed


class _View(NamedTuple):
    """A tensor without its storage, and what takes it back."""

    key: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    wants: bool
    put: Callable[[torch.Tensor | None], None]


class OffloadedValue:
    """An output, and tensors of it and of a graph, on the host or on the way: each storage once.

    Each tensor comes with what puts another, or none, where it is held.
    """

    def __init__(
        self,
        output: Boundary | None,
        tensors: Iterable[tuple[torch.Tensor, Callable[[torch.Tensor | None], None]]],
        copies: Copies,
    ) -> None:
        self._output, self._copies = output, copies
        self._sent: dict[int, HostCopy] = {}
        self._views: list[_View] = []
        self.fetched = False
        for tensor, put in tensors:
            key = storage_key(tensor)
            if key not in self._sent:
                self._sent[key] = copies.send(tensor.untyped_storage())
            offset = int(tensor.storage_offset())
            view = _View(key, tensor.dtype, tensor.size(), tensor.stride(), offset, tensor.requires_grad, put)
            self._views.append(view)

    def release(self) -> None:
        """Let the device's tensors go."""
        for sent in self._sent.values():
            self._copies.release(sent)
        for view in self._views:
            view.put(None)

    def fetch(self) -> Boundary | None:
        """Begin the copies back, put tensors that look at them where the old ones were, and return the output."""
        self.fetched = True
        storages = {key: self._copies.fetch(sent) for key, sent in self._sent.items()}
        for key, dtype, size, stride, offset, wants, put in self._views:
            tensor = torch.empty(0, dtype=dtype, device=storages[key].device)
            put(tensor.set_(storages[key], offset, size, stride).requires_grad_(wants))
        return self._output

    def wait(self) -> None:
        """Let what is queued from now on read what was fetched."""
        for sent in self._sent.values():
            self._copies.wait(sent)

    def drop(self) -> None:
        """Forget the copies on the host."""
        for sent in self._sent.values():
            self._copies.drop(sent)


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


def apart_in_backward(value: Any) -> Any:
    """Return a value whose gradient is never a part of a larger one's storage: that would live as long."""

    def view_of(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:
            return tensor
        seen = tensor.view_as(tensor)
        seen.register_hook(lambda each: each.clone() if each.untyped_storage().nbytes() > each.nbytes else each)
        return seen

    return map_only(torch.Tensor, view_of, value)

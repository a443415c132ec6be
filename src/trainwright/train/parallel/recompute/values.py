"""What stages leave behind: boundaries between them, the graphs of their runs, and either of them on the host."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from trainwright.errors import UnsupportedModel
from trainwright.train.parallel.recompute.copies import Copies, HostCopy
from trainwright.train.parallel.recompute.trees import StridedView, storage_key

__all__ = [
    "Boundary",
    "InputAlias",
    "OffloadedValue",
    "SavedTensor",
    "can_move",
    "detach_leaf",
    "detach_unseen",
    "saving_nothing",
    "second_derivative_error",
    "second_pass_error",
    "written_error",
]

_PLAIN = frozenset({torch.Tensor, nn.Parameter})


@dataclass(slots=True)
class Boundary:
    """What a stage hands to the next: its tensors, out of the graph; None in the place of one that nobody reads."""

    tensors: list[torch.Tensor | None]
    versions: list[int] | None
    """How often each had been written; None for those that came from the host, which nobody else has seen."""

    @classmethod
    def of(cls, tensors: Iterable[torch.Tensor | None]) -> "Boundary":
        """Return tensors as a boundary."""
        made = [None if tensor is None else detach_leaf(tensor) for tensor in tensors]
        return cls(made, [0 if tensor is None else tensor._version for tensor in made])  # noqa: SLF001  counts writes

    def keep_only(self, places: Collection[int]) -> None:
        """Let go of what is in other places."""
        self.tensors = [tensor if place in places else None for place, tensor in enumerate(self.tensors)]

    def replace(self, place: int, tensor: torch.Tensor | None) -> None:
        """Put a tensor, or none, in a place; nobody else has seen one that was on the host."""
        self.tensors[place] = tensor
        self.versions = None

    def unwritten(self, where: str) -> list[torch.Tensor | None]:
        """Return the tensors; raise UnsupportedModel if one has been written since."""
        for tensor, version in zip(self.tensors, self.versions or (), strict=False):
            if tensor is not None and tensor._version != version:  # noqa: SLF001  as above
                raise written_error(where, "what it reads")
        return self.tensors


class InputAlias(NamedTuple):
    """A view of a stage's input that its graph needs for its backward."""

    place: int
    view: StridedView
    version: int
    storage: "ref[torch.UntypedStorage]"

    @classmethod
    def of(cls, tensor: torch.Tensor, place: int) -> "InputAlias":
        """Return the view that a tensor of the input's place is."""
        # Autograd's own check of versions sees no packed tensors.
        return cls(place, StridedView.of(tensor), tensor._version, ref(tensor.untyped_storage()))  # noqa: SLF001

    def of_input(self, tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Return the view of what is the input now: the same storage, or one that was made again or brought back."""
        tensor = tensors[self.place]
        assert tensor is not None  # noqa: S101  what is linked is there
        # Counts of writes compare only for one storage: an input that was made again has its own.
        same = self.storage() is tensor.untyped_storage()
        if same and tensor._version != self.version:  # noqa: SLF001  as above
            raise written_error("backward", "a stage's input")
        return self.view.of_same(tensor.detach())


class SavedTensor:
    """What a graph has in the place of a tensor that one of its nodes needs for its backward: nothing, between runs."""

    __slots__ = ("__weakref__", "held", "moves", "version")

    def __init__(self) -> None:
        self.held: Any = None
        """A tensor, an `InputAlias`, an operation's result that is to be made again, or nothing."""
        self.moves = False
        """Whether it goes to the host with its graph."""
        # How often the tensor had been written when it was saved.
        self.version = 0

    def hold(self, tensor: torch.Tensor | None) -> None:
        """Hold a tensor, as it is now, or none."""
        self.held = tensor
        self.version = 0 if tensor is None else tensor._version  # noqa: SLF001  autograd does not check what is packed


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
        # Of each tensor: its storage, what it is of that, whether it wants a gradient, and what takes it back.
        self._views: list[tuple[int, StridedView, bool, Callable[[torch.Tensor | None], None]]] = []
        self.fetched = False
        for tensor, put in tensors:
            key = storage_key(tensor)
            if key not in self._sent:
                self._sent[key] = copies.offload(tensor.untyped_storage())
            self._views.append((key, StridedView.of(tensor), tensor.requires_grad, put))

    def release(self) -> None:
        """Let the device's tensors go."""
        for sent in self._sent.values():
            self._copies.release(sent)
        for *_, put in self._views:
            put(None)

    def prefetch(self) -> Boundary | None:
        """Begin the copies back, put tensors that look at them where the old ones were, and return the output."""
        self.fetched = True
        storages = {key: self._copies.prefetch(sent) for key, sent in self._sent.items()}
        for key, view, wants, put in self._views:
            put(view.on(storages[key]).requires_grad_(wants))
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


def second_derivative_error() -> UnsupportedModel:
    """Return the error that says that a gradient is to have a graph of its own."""
    return UnsupportedModel(
        "backward: got create_graph=True; allowed: first derivatives; take second ones of the plain model"
    )


def second_pass_error() -> UnsupportedModel:
    """Return the error that says that a graph was walked before."""
    return UnsupportedModel(
        "backward: got a second pass over one forward; allowed: one; run the forward again, or use the plain model"
    )


def detach_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without its graph, which wants a gradient if the tensor did."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def detach_unseen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without its graph; modes that watch operations are not told of one of torch's own class."""
    if type(tensor) not in _PLAIN:
        return tensor.detach()
    with torch._C._DisableTorchDispatch():  # noqa: SLF001  four times as fast as through a mode's Python code
        return tensor.detach()


def can_move(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is its storage, seen in strides."""
    return tensor.layout == torch.strided and type(tensor) in _PLAIN and not (tensor.is_conj() or tensor.is_neg())


def saving_nothing(note: Callable[[torch.Tensor], object] = lambda _: None) -> saved_tensors_hooks:
    """Return a context in which autograd's nodes save no tensor, but tell of it: so do stages run that are not kept."""
    return saved_tensors_hooks(note, _nothing)


def _nothing(_: Any) -> torch.Tensor:
    raise UnsupportedModel(
        "model: got a value that holds tensors in an unknown container, such as an object of a user's class; "
        "allowed: tuples, lists, mappings and dataclasses of tensors, between layers and as the result"
    )

"""Selective recomputation inside a block: recomputes dropped results of operations from kept ones, in the backward.

A tape watches the tensor operations of a block's forward, below autograd. Of those that a plan names by their numbers
it keeps the arguments, in the place of the results that autograd saves. When a node asks for such a result, its
operation is done again, with those that it reads; each is done once, and its results go when nobody needs them. The
arguments are those of this very forward, so what is made again is right whatever the forward does: another sequence of
operations than planned only keeps more.
"""

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainwright.model.trace.storages import tensors_in
from trainwright.train.parallel.recompute.run_context import drawing_again, read_generators
from trainwright.train.parallel.recompute.trees import StridedView, storage_key
from trainwright.train.parallel.recompute.values import SavedTensor, can_move

__all__ = ["LateWatch", "OperationKind", "OperationMode", "OperationTape", "Remade", "is_minor", "remaking"]

ReadSlot = Callable[[SavedTensor], torch.Tensor]
_BATCH_NORMS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit"})
_STATISTICS, _TRAINING = slice(3, 5), 5
"""Where these have their running statistics, which they write, and whether they do."""
_MINOR = 8


class OperationKind(NamedTuple):
    """What is known of an operation before it runs."""

    view: bool
    """It returns another view of what it is given."""
    repeatable: bool
    """It does the same again, and leaves nothing behind but its results and what it writes."""
    writes: tuple[tuple[int, str], ...]
    """Places and names of the arguments that it writes."""
    hides: bool
    """It writes an argument that it does not return, which autograd has saved before: random numbers, say."""
    normalises: bool
    """It may write running statistics, of which its results do not depend then."""
    draws: bool
    """It may draw random numbers."""

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments that a call writes."""
        return [args[at] if at < len(args) else kwargs.get(name) for at, name in self.writes]


@cache
def _kind_of(func: Any) -> OperationKind:
    schema = func._schema  # noqa: SLF001  the only place where it says what it writes
    listed = [
        (at, each.name) for at, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write
    ]
    returned = {name for each in schema.returns if each.alias_info for name in each.alias_info.before_set}
    hides = any(returned.isdisjoint(schema.arguments[at].alias_info.before_set) for at, _ in listed)
    return OperationKind(
        view=not listed and bool(schema.returns) and all(each.alias_info is not None for each in schema.returns),
        # Of a recurrent layer's operation, one that saves nothing returns less.
        repeatable=func.namespace == "aten" and "_rnn" not in schema.name and not hides,
        writes=tuple(listed),
        hides=hides,
        normalises=schema.name.removeprefix("aten::") in _BATCH_NORMS,
        draws=torch.Tag.nondeterministic_seeded in func.tags,
    )


class OperationMode(TorchDispatchMode, ABC):
    """Numbers the operations of a forward from 0, without views."""

    def __init__(self) -> None:
        super().__init__()
        self.number = -1
        self.seen = 0
        """With views, and what hooks do."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, kind = kwargs or {}, _kind_of(func)
        self.seen += 1
        if kind.view:
            return func(*args, **kwargs)
        if any(hasattr(each, "__tensor_flatten__") for each in types):
            return NotImplemented  # what a wrapper does to its parts comes by afterwards
        self.number += 1
        if kind.normalises and args[_TRAINING]:
            kind = kind._replace(writes=())
        if kind.draws and kwargs.get("generator") is not None:
            kind = kind._replace(repeatable=False)
        return self.run(kind, func, args, kwargs)

    @abstractmethod
    def run(self, kind: OperationKind, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Do an operation, and return what it returns."""


class LateWatch(OperationMode):
    """Sees whether a forward fills what autograd has saved before: it is not over when the last tensor is saved."""

    found = False

    def run(self, kind: OperationKind, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Do an operation."""
        self.found |= kind.hides
        return func(*args, **kwargs)


class OperationTape(OperationMode):
    """Keeps what the operations of these numbers read; `hold` lets a slot hold a tensor."""

    def __init__(self, remade: Collection[int], hold: Callable[[SavedTensor, torch.Tensor], None]) -> None:
        super().__init__()
        self._remade, self._hold = remade, hold
        # By the key of a storage, which may be another's later on.
        self._results: dict[int, tuple[weakref.ref[torch.UntypedStorage], Remade]] = {}
        self._readers: dict[int, list[_Repeated]] = {}

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        # Hooks of autograd hold the tape as long as the graph is there.
        self._results.clear()
        self._readers.clear()

    def pack(self, slot: SavedTensor, tensor: torch.Tensor) -> None:
        """Let a slot hold what a node saves, or how it is made again."""
        origin = self._origin_of(tensor)
        if origin is None:
            self._hold(slot, tensor)
        else:
            slot.held = origin.seen_as(tensor)

    def run(self, kind: OperationKind, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Do an operation; if its results are to be made again, keep what it reads."""
        written = tensors_in(kind.written(args, kwargs)) if kind.writes else []
        repeated = None
        # What is written in place must have been made by an operation that is done again.
        if (
            self.number in self._remade
            and kind.repeatable
            and all(self._origin_of(each) is not None for each in written)
        ):
            repeated = self._repeated(kind, func, args, kwargs)
        for each in written:
            if kind.hides:
                self._keep_saved(each)
            self._before_write(storage_key(each))
        result = func(*args, **kwargs)
        if repeated is not None:
            known = {} if written else {storage_key(each) for each in tensors_in((args, kwargs))}
            found = tensors_in(result)
            for place, tensor in enumerate(found):
                if can_move(tensor) and storage_key(tensor) not in known and not is_minor(tensor, found):
                    made = Remade(_Result(repeated, place), None)
                    self._results[storage_key(tensor)] = weakref.ref(tensor.untyped_storage()), made
        return result

    def _origin_of(self, tensor: torch.Tensor) -> "Remade | None":
        """Return how what is in a tensor's storage is made again, if it is."""
        if not can_move(tensor):
            return None
        storage, origin = self._results.get(storage_key(tensor), (None, None))
        return origin if storage is not None and storage() is tensor.untyped_storage() else None

    def _repeated(self, kind: OperationKind, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "_Repeated":
        """Return an operation to be done again, with what stands for the tensors among its arguments."""
        sources: list[int] = []

        def stand_in(tensor: torch.Tensor) -> "Remade | SavedTensor":
            origin = self._origin_of(tensor)
            if origin is not None:
                return origin.seen_as(tensor)
            slot = SavedTensor()
            self._hold(slot, tensor)
            sources.append(storage_key(tensor))
            return slot

        # What is given no tensor says where it draws.
        devices = {str(each.device) for each in tensors_in((args, kwargs))} or {str(kwargs.get("device") or "cpu")}
        random = read_generators(devices if kind.draws else ())
        if kind.normalises and args[_TRAINING]:
            args = (*args[: _STATISTICS.start], None, None, *args[_STATISTICS.stop :])
        args, kwargs = _map_values(torch.Tensor, stand_in, tuple(args)), _map_values(torch.Tensor, stand_in, kwargs)
        repeated = _Repeated(self.number, kind, func, (args, kwargs), random)
        for key in sources:
            self._readers.setdefault(key, []).append(repeated)
        return repeated

    def _keep_saved(self, tensor: torch.Tensor) -> None:
        """Let who has saved a tensor that is written now read it as it then is, which is no more made again."""
        origin = self._origin_of(tensor)
        if origin is not None:
            outputs = origin.result.operation.outputs
            outputs[:] = [each for each in outputs if each() is not origin.result]
            origin.result.value = tensor

    def _before_write(self, key: int) -> None:
        """Do what reads a storage that changes now, and forget how its content is made."""
        self._results.pop(key, None)
        for reader in self._readers.pop(key, ()):
            with remaking():
                reader.run(_held_tensor)


def _held_tensor(slot: SavedTensor) -> torch.Tensor:
    assert isinstance(slot.held, torch.Tensor)  # noqa: S101  a stage that writes to its input is none
    return slot.held


class _Repeated:
    """An operation that is done again: its arguments, and then its results."""

    def __init__(
        self, number: int, kind: OperationKind, func: Any, given: tuple[Any, Any], random: Mapping[str, Any]
    ) -> None:
        self.number, self._kind, self._func, self._random = number, kind, func, random
        self.given: tuple[Any, Any] | None = given
        self.outputs: list[weakref.ref[_Result]] = []

    def run(self, read: ReadSlot) -> None:
        """Make the results that somebody still refers to."""
        # What is read comes first, in the order of the forward: chains of it may be longer than Python's stack.
        missing: dict[int, _Repeated] = {}
        waiting = [self]
        while waiting:
            each = waiting.pop()
            if each.given is not None and each.number not in missing:
                missing[each.number] = each
                waiting += each.read_operations()
        row = sorted(missing, reverse=True)
        # Each is let go of when it is done: its results are then its readers' alone.
        while row:
            each = missing.pop(row.pop())
            made = each.run_alone(read)
            for reference in each.outputs:
                result = reference()
                if result is not None:
                    result.value = made[result.place]
            each.given = made = result = None  # type: ignore[assignment]  # let go of

    def read_operations(self) -> Iterator["_Repeated"]:
        """Yield the operations whose results are read; of one that is written in place, those that this reads."""
        if self.given is None:
            return
        own = self._written()
        for each in tree_leaves(self.given, is_leaf=lambda each: isinstance(each, Remade | SavedTensor)):
            if isinstance(each, Remade):
                if any(each is one for one in own):
                    yield from each.result.operation.read_operations()
                else:
                    yield each.result.operation

    def run_alone(self, read: ReadSlot) -> list[torch.Tensor]:
        """Return the tensors that the operation makes, for one reader."""
        own = self._written()

        def tensor_of(value: Any) -> torch.Tensor:
            if isinstance(value, SavedTensor):
                return read(value)
            # What it writes is made for it alone.
            return value.tensor(read, alone=any(value is each for each in own))  # type: ignore[no-any-return]

        assert self.given is not None  # noqa: S101  it has not run
        args, kwargs = (_map_values((SavedTensor, Remade), tensor_of, each) for each in self.given)
        with drawing_again(self._random):
            return tensors_in(self._func(*args, **kwargs))

    def _written(self) -> list[Any]:
        assert self.given is not None  # noqa: S101  asked for before
        return self._kind.written(*self.given)


class _Result:
    """A tensor that an operation makes again; it goes when nobody refers to it."""

    __slots__ = ("__weakref__", "operation", "place", "value")

    def __init__(self, operation: _Repeated, place: int) -> None:
        self.operation, self.place = operation, place
        self.value: torch.Tensor | None = None
        operation.outputs.append(weakref.ref(self))


class Remade(NamedTuple):
    """A result of an operation, and the view of it that is wanted."""

    result: _Result
    view: StridedView | None

    def seen_as(self, tensor: torch.Tensor) -> "Remade":
        """Return the view that a tensor is."""
        return self._replace(view=StridedView.of(tensor))

    def tensor(self, read: ReadSlot, *, alone: bool = False) -> torch.Tensor:
        """Return the tensor, made if it is not there yet; one of its own for a reader that writes it, `alone`."""
        operation, view = self.result.operation, self.view
        if alone and operation.given is not None:
            made = operation.run_alone(read)[self.result.place]
        else:
            if self.result.value is None:
                operation.run(read)
            assert self.result.value is not None  # noqa: S101  it refers to the result
            made = _whole_copy(self.result.value) if alone else self.result.value
        return made if view is None or view == StridedView.of(made) else view.of_same(made)


def _whole_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a copy of its storage, of which it may be a part: other views are taken of that."""
    length = tensor.untyped_storage().nbytes() // tensor.itemsize
    return StridedView.of(tensor).of_same(tensor.as_strided((length,), (1,), 0).clone())


def is_minor(tensor: torch.Tensor, results: Sequence[torch.Tensor]) -> bool:
    """Return whether a result of an operation is small beside its largest, as a norm's statistics are: these stay."""
    return tensor.numel() * _MINOR < max(each.numel() for each in results)


@contextlib.contextmanager
def remaking() -> Iterator[None]:
    """Do operations as a tape has seen them: below autograd and autocast."""
    with torch.no_grad(), torch._C._DisableAutocast():  # noqa: SLF001  nested in a backward under autocast
        yield


def _map_values(kind: Any, change: Callable[[Any], Any], value: Any) -> Any:
    """Return arguments in which the values of a kind are changed, in lists, tuples and mappings too."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in {list, tuple}:
        return type(value)(_map_values(kind, change, each) for each in value)
    if type(value) is dict:
        return {name: _map_values(kind, change, each) for name, each in value.items()}
    return value

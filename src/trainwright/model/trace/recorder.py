"""Records every operation of a training step: its module, the storages that it touches, and their lifetimes.

An operation of the backward pass is attributed to the forward operation whose autograd node it computes, by the
sequence number that autograd gives each node.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainwright.model.trace.attention import replace_attention
from trainwright.model.trace.corrections import call_operation
from trainwright.model.trace.flops import count_flops, has_known_work
from trainwright.model.trace.storages import LiveStorage, StorageTracker, tensors_in
from trainwright.model.trace.workspaces import workspace_bytes

__all__ = ["StepRecorder", "StorageLife", "TensorShape", "TracedOperation"]


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Shape, strides and dtype of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorShape":
        """Return the shape, strides and dtype of a tensor."""
        strided = tensor.layout == torch.strided
        return cls(tuple(tensor.shape), tuple(tensor.stride()) if strided else (), tensor.dtype)

    @property
    def elements(self) -> int:
        """Elements in memory: those that an expanded tensor repeats count once."""
        strides = self.stride or (1,) * len(self.shape)
        # A stride of 0 repeats one element; a size of 0 means that there is none.
        return math.prod(size for size, stride in zip(self.shape, strides, strict=True) if stride or not size)

    @property
    def bytes(self) -> int:
        """Bytes of the tensor's elements."""
        return self.elements * self.dtype.itemsize


@dataclass(slots=True)
class StorageLife:
    """The life of a storage: alive after operation `first`, up to and including operation `last`."""

    bytes: int
    first: int
    last: int = -1
    """-1: it outlived the recording."""
    elements: int = 0
    floating: bool = False
    carries_gradient: bool = False


@dataclass(slots=True)
class TracedOperation:
    """One call of an aten operation."""

    func: Any
    phase: str
    call: int
    """Number of the module call that it ran in."""
    path: str
    leaf: bool
    """Whether that module has no children."""
    arguments: tuple[Any, ...]
    """Positional arguments, tensors as `TensorShape`."""
    keywords: dict[str, Any]
    results: tuple[TensorShape, ...]
    reads: dict[int, TensorShape]
    """Storages that it reads, by number."""
    writes: tuple[int, ...]
    """Storages that it changes in place."""
    creates: tuple[int, ...]
    forward: int = -1
    """In the backward pass: the operation of the forward pass that it belongs to."""
    joins: bool = False
    """Whether it is part of a later operation's kernel."""

    @property
    def is_view(self) -> bool:
        """Whether it moves nothing: its result is an argument's storage, unchanged."""
        return not self.creates and not self.writes

    @property
    def flops(self) -> float:
        """Floating-point operations, a multiply-add as two."""
        return count_flops(self.func, self.arguments, [result.shape for result in self.results])

    @property
    def bytes(self) -> int:
        """Bytes that it reads and writes."""
        if self.is_view:
            return 0
        return sum(shaped.bytes for shaped in (*self.reads.values(), *self.results))


@dataclass
class _Call:
    number: int
    path: str
    leaf: bool
    first: int = 0
    """No operation before this one keeps what is kept during the call."""


@dataclass
class _FailedOperation:
    error: BaseException
    operation: str
    shapes: tuple[tuple[int, ...], ...]


class StepRecorder(StorageTracker):
    """A storage tracker that also records every operation in order, and the life of every storage."""

    def __init__(self, *, granule_bytes: int = 64) -> None:
        super().__init__(granule_bytes=granule_bytes)
        self.operations: list[TracedOperation] = []
        self.storages: dict[int, StorageLife] = {}
        self.saved: dict[int, int] = {}
        """Storages that autograd saves, and the operation during or before which each was first saved."""
        self.saved_until: dict[int, int] = {}
        """The same storages, and the operation during or before which each was last saved."""
        self.attentions: set[int] = set()
        """Calls of torch's scaled_dot_product_attention, by number."""
        self.working_peak_bytes = 0
        """The peak with what kernels borrow."""
        self.largest_workspace_bytes = 0
        self.phase = "forward"
        self._funcs: set[Any] = set()
        self.failure: _FailedOperation | None = None
        self._calls = 0
        self._stack = [_Call(0, "", leaf=False)]
        # The operations that autograd's nodes were made for, by their numbers, and the number of the next.
        self._nodes: dict[int, int] = {}
        self._following = 0
        self._latest = -1
        self._packing = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # Questions to a tensor, marks for a profiler, and what is done to record: no work.
        if self._packing or func.namespace in {"prim", "profiler"}:
            return func(*args, **kwargs)
        inputs = tensors_in((args, kwargs))
        shaped: dict[int, TensorShape] = {}
        reads: dict[int, TensorShape] = {}
        for tensor in inputs:
            if id(tensor) not in shaped:
                shaped[id(tensor)] = TensorShape.of(tensor)
                reads.update((entry.number, shaped[id(tensor)]) for entry in self.see(tensor))
        # Autograd works above this dispatch: the node of this operation exists already.
        forward = self._forward_operation()
        try:
            result = call_operation(func, args, kwargs)
        except Exception as error:
            self.failure = _FailedOperation(error, str(func), tuple(tuple(tensor.shape) for tensor in inputs))
            raise
        outputs = tensors_in(result)
        seen = [(entry, tensor) for tensor in outputs for entry in self.see(tensor)]
        # Results in storages that were not read are new; others are views or changed in place.
        creates = tuple(dict.fromkeys(entry.number for entry, _ in seen if entry.number not in reads))
        writes = _written_storages(func, args, kwargs, self) if func._schema.is_mutable else ()  # noqa: SLF001  no public name
        self._funcs.add(func)
        call = self._stack[-1]
        self.operations.append(
            TracedOperation(
                func=func,
                phase=self.phase,
                call=call.number,
                path=call.path,
                leaf=call.leaf,
                arguments=tuple(_shapes_in(value, shaped) for value in args),
                keywords={name: _shapes_in(value, shaped) for name, value in kwargs.items()},
                results=tuple(TensorShape.of(tensor) for tensor in outputs),
                reads=reads,
                writes=writes,
                creates=creates,
                forward=forward,
            )
        )
        borrowed = workspace_bytes(func, self.operations[-1].arguments, self.operations[-1].results)
        self.largest_workspace_bytes = max(self.largest_workspace_bytes, borrowed)
        self.working_peak_bytes = max(self.working_peak_bytes, self.live_bytes + borrowed, self.peak_bytes)
        # Gradients flow from any input that carries them to every floating result.
        flows = any(self.storages[number].carries_gradient for number in reads)
        for entry, tensor in seen:
            stored = self.storages[entry.number]
            if entry.number in creates:
                stored.elements, stored.floating = tensor.numel(), tensor.is_floating_point()
            stored.carries_gradient |= flows and stored.floating
        return result

    @property
    def uncounted(self) -> list[str]:
        """Operations whose work is unknown."""
        return sorted(str(func) for func in self._funcs if not has_known_work(func))

    @contextlib.contextmanager
    def modules(self, model: nn.Module) -> Iterator[None]:
        """Attribute the operations inside to the model's modules, and to its calls of torch's attention."""
        handles: list[Any] = []

        def attend(attention: Any, *args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            self.attentions.add(self._calls)
            path = f"{self.path}.attention".lstrip(".")
            self._stack.append(_Call(self._calls, path, leaf=True, first=len(self.operations)))
            found = attention(*args, **kwargs)
            self._stack.pop()
            return found

        for path, module in model.named_modules():

            def enter(module: nn.Module, _: Any, path: str = path) -> None:
                self._calls += 1
                self._stack.append(_Call(self._calls, path, leaf=next(module.children(), None) is None))

            def leave(_module: nn.Module, _arguments: Any, _result: Any) -> None:
                self._stack.pop()

            handles += [module.register_forward_pre_hook(enter, prepend=True), module.register_forward_hook(leave)]
        try:
            with replace_attention(attend):
                yield
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Record what autograd saves for the backward pass of the operations inside."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            for entry in self.see(tensor):
                # What is saved while a fused attention runs belongs to its call, not to the operation before.
                place = max(self._stack[-1].first, len(self.operations) - 1)
                self.saved.setdefault(entry.number, place)
                self.saved_until[entry.number] = place
            # With its graph, a result that its own node saves would never go where no backward comes by.
            self._packing = True
            try:
                return tensor.detach()
            finally:
                self._packing = False

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def marks(self, tree: Any) -> set[int]:
        """Return the numbers of the storages of tensors, and mark those that carry gradients."""
        found = set()
        for tensor in tensors_in(tree):
            for entry in self.see(tensor):
                found.add(entry.number)
                stored = self.storages[entry.number]
                stored.carries_gradient |= tensor.requires_grad
                stored.elements = max(stored.elements, tensor.numel())
                stored.floating = tensor.is_floating_point()
        return found

    @property
    def live(self) -> set[int]:
        """Numbers of the storages that live now."""
        return {number for number, stored in self.storages.items() if stored.last == -1}

    @property
    def path(self) -> str:
        """Path of the module that runs now, or in which an error ended the run."""
        return self._stack[-1].path

    def _one(self, tensor: torch.Tensor) -> LiveStorage:
        entry = super()._one(tensor)
        if entry.number not in self.storages:
            self.storages[entry.number] = StorageLife(entry.bytes, len(self.operations))
        return entry

    def _freed(self, entry: LiveStorage) -> None:
        self.storages[entry.number].last = len(self.operations) - 1

    def _forward_operation(self) -> int:
        """Return the forward operation that a backward operation belongs to, -1 in the forward pass."""
        if self.phase == "forward":
            following = torch._C._autograd._get_sequence_nr()  # noqa: SLF001  no public way to number nodes
            # Nodes made since the last operation belong to the one that is recorded next.
            self._nodes.update(dict.fromkeys(range(self._following, following), len(self.operations)))
            self._following = following
            return -1
        if self.phase != "backward":
            return -1
        node = torch._C._current_autograd_node()  # noqa: SLF001  likewise
        if node is not None:
            # A node of no forward operation, such as one that accumulates a gradient, stays with the one before it.
            self._latest = self._nodes.get(node._sequence_nr(), self._latest)  # noqa: SLF001  likewise
        return self._latest

    def start(self, phase: str) -> None:
        """Begin the forward pass, the backward pass or another phase."""
        following = torch._C._autograd._get_sequence_nr()  # noqa: SLF001  no public way to number nodes
        if phase == "backward":  # nodes that were made after the last operation belong to it
            self._latest = len(self.operations) - 1
            self._nodes.update(dict.fromkeys(range(self._following, following), self._latest))
        self._following = following
        self.phase = phase


def _shapes_in(value: Any, known: Mapping[int, TensorShape]) -> Any:
    if isinstance(value, torch.Tensor):
        return known[id(value)]
    return type(value)(_shapes_in(part, known) for part in value) if type(value) in {list, tuple} else value


def _written_storages(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tracker: StorageTracker
) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for place, argument in enumerate(func._schema.arguments):  # noqa: SLF001  no public name
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = kwargs.get(argument.name, args[place] if place < len(args) and not argument.kwarg_only else None)
        found.update((entry.number, None) for entry in tracker.see(value))
    return tuple(found)

"""What is held during one forward and backward pass that follows a plan, and what is known of each stage's modules.

Of what a stage was called with, an argument that is what the stage before returned, unchanged, is a link to it: the
stage before may make it again. Any other tensor is held until the stage's backward.
"""

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from trainwright.plan.memory.operations import Value
from trainwright.train.parallel.recompute.gathered import sharded_modules
from trainwright.train.parallel.recompute.operation_tape import LateWatch
from trainwright.train.parallel.recompute.run_context import Autocast, Buffers, RunContext, has_hooks, weight_places
from trainwright.train.parallel.recompute.stage_calls import StageSite
from trainwright.train.parallel.recompute.trees import StridedView, flatten_tree, storage_key, unflatten_tree
from trainwright.train.parallel.recompute.values import (
    Boundary,
    OffloadedValue,
    SavedTensor,
    can_move,
    detach_leaf,
    written_error,
)

__all__ = [
    "Arguments",
    "Slots",
    "StageCall",
    "StageParts",
    "StepStore",
    "alive_slots",
    "links_of",
    "snapshot",
    "tensors_to_move",
    "view_key",
]


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""By place, and by name."""


def view_key(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return what two tensors have in common that are the same view of a storage, written equally often."""
    if tensor.layout != torch.strided:
        return None
    return storage_key(tensor), StridedView.of(tensor), tensor._version  # noqa: SLF001  counts the writes to a tensor


def links_of(leaves: Sequence[Any], below: Sequence[torch.Tensor | None]) -> dict[int, int]:
    """Return which leaves of the arguments are what the stage before has handed on: their places there."""
    made = {view_key(tensor): place for place, tensor in enumerate(below) if tensor is not None}
    made.pop(None, None)
    keys = ((at, view_key(leaf)) for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    return {at: made[key] for at, key in keys if key in made}


@dataclass(slots=True)
class StageCall:
    """A call of a stage, to be done again."""

    forward: Callable[..., Any]
    leaves: list[Any]
    spec: pytree.TreeSpec
    versions: list[int]
    """How often each leaf had been written; 0 for what is no tensor."""
    links: dict[int, int]
    """From places of leaves to places among the tensors that the stage before has handed on."""
    autocast: Autocast

    @classmethod
    def of(cls, forward: Callable[..., Any], arguments: Arguments, below: Sequence[torch.Tensor | None]) -> "StageCall":
        """Return a call, as its arguments are now."""
        leaves, spec = flatten_tree(arguments)
        links = links_of(leaves, below)
        held = [None if at in links else snapshot(leaf) for at, leaf in enumerate(leaves)]
        versions = [leaf._version if isinstance(leaf, torch.Tensor) else 0 for leaf in leaves]  # noqa: SLF001
        return cls(forward, held, spec, versions, links, Autocast.now())

    def arguments(self, below: Sequence[torch.Tensor | None], where: str) -> Arguments:
        """Return the arguments for a rerun; raise UnsupportedModel if one has been written since."""
        found = []
        for at, leaf in enumerate(self.leaves):
            if at in self.links:
                found.append(below[self.links[at]])
            elif isinstance(leaf, torch.Tensor):
                if leaf._version != self.versions[at]:  # noqa: SLF001  counts the writes to a tensor
                    raise written_error(where, "what it reads")
                found.append(leaf)
            else:
                found.append(snapshot(leaf))
        args, kwargs = unflatten_tree(found, self.spec)
        return args, kwargs


_KEPT = (torch.Generator, nn.Module, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
"""What is never copied."""


def snapshot(
    value: Any, known: dict[int, Any] | None = None, *, change: Callable[[torch.Tensor], Any] = detach_leaf
) -> Any:
    """Return a value as it is now, whatever is written to the original: a cache of keys and values, say.

    Objects and containers are copied; their tensors are the same, out of their graph, or what `change` makes of them.
    """
    known = {} if known is None else known
    if isinstance(value, torch.Tensor):
        return change(value)
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, _KEPT):
        return value
    if isinstance(value, list):
        copied: list[Any] = []
        known[id(value)] = copied
        copied += [snapshot(each, known, change=change) for each in value]
        return copied
    if type(value) is tuple:
        return tuple(snapshot(each, known, change=change) for each in value)
    if isinstance(value, dict):
        made = known[id(value)] = copy.copy(value)
        for key in made:
            dict.__setitem__(made, key, snapshot(value[key], known, change=change))
        return made
    if hasattr(value, "__dict__"):
        made = known[id(value)] = copy.copy(value)
        vars(made).update({name: snapshot(each, known, change=change) for name, each in vars(value).items()})
        return made
    return value


Slots = list[weakref.ref[SavedTensor]]
"""A node that has run lets go of its own."""


class StageParts:
    """What is known of a stage's modules."""

    def __init__(self, model: nn.Module, site: StageSite) -> None:
        self.modules, self.site = site.modules, site
        self.sharded = sharded_modules(model, site.name, site.modules)
        self.buffers = Buffers(site.modules)
        # Not known before the first run, but of compiled code, which does not run under a mode that watches it.
        self.fills_late: bool | None = None if site.is_eager() else False
        self.weights = [place for module in site.modules for place in weight_places(module)]
        # Whether they run Python code that is not torch's, which may draw from Python's and NumPy's generators.
        inside = (each for module in site.modules for each in module.modules())
        self.python = any(has_hooks(each) or not type(each).__module__.startswith("torch.") for each in inside)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See in the first run whether operations fill what autograd has saved: the last one saved is not the end."""
        if self.fills_late is not None:
            yield
            return
        with LateWatch() as watch:
            yield
        self.fills_late = watch.found


@dataclass(slots=True, weakref_slot=True)
class StepStore:
    """The store of one forward and backward pass."""

    parts: dict[str, StageParts]
    autocast: Autocast
    generators: list[str]
    # Storages that stay on the device: what several stages may read.
    staying: set[int]
    done: int = 0  # acts
    number: int = 0  # the stage that was called last
    # What is away has None in its place.
    bare: dict[int, Boundary | None] = field(default_factory=dict)
    # Of stages run with gradients, their output, if anybody reads it again.
    saved: dict[int, Boundary | None] = field(default_factory=dict)
    calls: dict[int, StageCall] = field(default_factory=dict)
    # Stages whose output the next one has not been given as it was.
    unread: set[int] = field(default_factory=set)
    slots: dict[int, Slots] = field(default_factory=dict)
    away: dict[tuple[Value, int], OffloadedValue] = field(default_factory=dict)
    seen: dict[int, RunContext] = field(default_factory=dict)

    def outputs(self, value: Value) -> dict[int, Boundary | None]:
        """Return the outputs that lie by themselves, or those beside what graphs have saved."""
        return self.bare if value is Value.OUTPUT else self.saved

    def clear(self) -> None:
        """Let go of all of it."""
        for held in (self.bare, self.saved, self.calls, self.slots, self.away):
            held.clear()


def alive_slots(slots: Slots) -> Iterator[SavedTensor]:
    """Yield the slots that a graph still has."""
    yield from (slot for reference in slots if (slot := reference()) is not None)


def tensors_to_move(
    boundary: Boundary | None, slots: Slots, staying: set[int]
) -> Iterator[tuple[torch.Tensor, Callable[[torch.Tensor | None], None]]]:
    """Yield the tensors of an output and of a graph that go to the host, each with what takes it back."""
    for place, leaf in enumerate(boundary.tensors if boundary is not None else ()):
        if leaf is not None and can_move(leaf) and storage_key(leaf) not in staying:
            yield leaf, partial(boundary.replace, place)  # type: ignore[union-attr]  # it has leaves
    for slot in alive_slots(slots):
        if slot.moves and isinstance(slot.held, torch.Tensor) and storage_key(slot.held) not in staying:
            yield slot.held, slot.hold

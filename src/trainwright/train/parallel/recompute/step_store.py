"""What is held during one forward and backward pass that follows a plan, and what is known of each stage's modules."""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from trainwright.plan.memory.operations import Value
from trainwright.train.parallel.recompute.gathered import sharded_modules
from trainwright.train.parallel.recompute.run_context import Autocast, Buffers, RunContext, has_hooks, weight_places
from trainwright.train.parallel.recompute.stage_arguments import StageCall
from trainwright.train.parallel.recompute.stage_calls import StageSite
from trainwright.train.parallel.recompute.trees import storage_key
from trainwright.train.parallel.recompute.values import Boundary, OffloadedValue, SavedTensor, can_move

__all__ = ["Slots", "StageParts", "StepStore", "alive_slots", "tensors_to_move"]

Slots = list[weakref.ref[SavedTensor]]
"""A node that has run lets go of its own."""


class StageParts:
    """What is known of a stage's modules."""

    def __init__(self, model: nn.Module, site: StageSite) -> None:
        self.modules, self.site = site.modules, site
        self.sharded = sharded_modules(model, site.name, site.modules)
        self.buffers = Buffers(site.modules)
        self.weights = [place for module in site.modules for place in weight_places(module)]
        # Whether they run Python code, which may draw from Python's and NumPy's generators.
        self.python = any(map(_runs_python, site.modules))


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


def _runs_python(stage: nn.Module) -> bool:
    """Return whether a stage runs Python code of modules that are not torch's."""
    return any(has_hooks(each) or not type(each).__module__.startswith("torch.") for each in stage.modules())

"""Recompute or offload activations: a plan's operations inside autograd's own graph, with its gradients to the bit.

The first forward of every stage is plain: what is kept until its backward costs nothing. Of stages that are run again,
the graph holds empty slots in the place of saved tensors. When its walk comes to a stage, the operations up to that
stage's backward are done, and the last run with gradients fills the slots. There is one walk, so gradients live, add
up and reach hooks (those of DDP too) as without a plan. What reruns read lies in the step's store, from which nothing
goes but by an operation. Reruns see the random
numbers, autocast and buffers of the first run. Stages in a row that are always treated alike are one unit (see
`program`): work in Python goes with the units that are run again, not with the stages.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from trainwright.errors import UnsupportedModel
from trainwright.plan.memory.operations import OperationKind, Value
from trainwright.train.parallel.recompute.copies import Copies
from trainwright.train.parallel.recompute.program import (
    FORWARDS,
    Act,
    Release,
    arrange_script,
    lent_units,
    moved_units,
    without_graph,
)
from trainwright.train.parallel.recompute.run_context import (
    Autocast,
    Buffers,
    RunContext,
    drawn_from,
    read_generators,
    weight_places,
)
from trainwright.train.parallel.recompute.stages import StageRow
from trainwright.train.parallel.recompute.tracing import has_hooks
from trainwright.train.parallel.recompute.trees import storage_key, tensors_of
from trainwright.train.parallel.recompute.values import (
    Boundary,
    InputAlias,
    OffloadedValue,
    SavedTensor,
    can_move,
    saving_nothing,
    written_error,
)

__all__ = ["PlanInterpreter"]

_Pack = Callable[[SavedTensor, torch.Tensor], None]
"""Holds a tensor that a node saves in its slot."""
_Slots = list[weakref.ref[SavedTensor]]
"""A node that has run lets go of its own."""
_PYTHONS = ("python", "numpy")
"""Generators that only Python code draws from."""


@dataclass(slots=True, weakref_slot=True)
class _Step:
    """The store of one forward and backward pass."""

    autocast: Autocast
    generators: list[str]
    # Storages that stay on the device: of inputs that want no gradient, and of what rides past several stages.
    staying: set[int]
    done: int = 0  # acts
    # What is away has None in its place.
    bare: dict[int, Boundary | None] = field(default_factory=dict)
    # Of units run with gradients, their output, if anybody reads it again.
    saved: dict[int, Boundary | None] = field(default_factory=dict)
    slots: dict[int, _Slots] = field(default_factory=dict)
    away: dict[tuple[Value, int], OffloadedValue] = field(default_factory=dict)
    seen: dict[int, RunContext] = field(default_factory=dict)

    def outputs(self, value: Value) -> dict[int, Boundary | None]:
        """Return the outputs that lie by themselves, or those beside what graphs have saved."""
        return self.bare if value is Value.OUTPUT else self.saved

    def clear(self) -> None:
        for held in (self.bare, self.saved, self.slots, self.away):
            held.clear()


class _Full(BaseException):
    """All slots are filled: what is left of a stage's forward makes an output that nobody reads.

    No Exception: a stage is free to catch those, and torch.fx looks for their origin at length.
    """


class PlanInterpreter:
    """Acts on units of stages, and what is known of each unit."""

    def __init__(self, row: StageRow, acts: Sequence[Act]) -> None:
        self.row = row
        self.script = arrange_script(acts, len(row.stages))
        self.reruns = {unit for unit, times in self.script.runs.items() if times > 1}
        self.lent, self.moved = lent_units(self.script.acts), moved_units(self.script.acts)
        self.copying = any(isinstance(act, Release) for act in self.script.acts)
        # Made with the first step; its pool of buffers serves all steps.
        self.copies: Copies | None = None
        units = self.script.units
        self.stages = [[row.stages[stage - 1] for stage in unit] for unit in units]
        self.buffers = [Buffers(stages) for stages in self.stages]
        self.weights = [
            [(held, name) for stage in stages for held, name in weight_places(stage)] if unit in self.reruns else []
            for unit, stages in enumerate(self.stages, 1)
        ]
        # Units that run Python code, which may draw from Python's and NumPy's generators.
        self.python = [any(map(_is_users, stages)) for stages in self.stages]
        # The units whose output somebody will read again: a rerun, a graph that has borrowed it, or a copy.
        self.read_again = {unit - 1 for unit in self.reruns | self.lent}
        self.read_again |= {act.stage for act in self.script.acts if isinstance(act, Release)}

    def run(self, held: list[Any]) -> Any:
        """Run all units on the arguments, which are the list's only element: it is emptied."""
        self.row.refresh()
        # Boundaries hold values out of autograd's graph, for reruns; the graph itself goes through `held`.
        boundary = Boundary.of(held[0])
        tensors = boundary.tensors()
        step = _Step(
            Autocast.now(),
            generators=["cpu", *sorted({str(t.device) for t in tensors if t.is_cuda})],
            staying={storage_key(t) for t in tensors if not t.requires_grad},
        )
        if 0 in self.read_again:
            step.bare[0] = boundary
        if self.copying:
            self.copies = self.copies or Copies(_device(self.row, tensors))
            # Copies are joined before the step's tensors go, whatever happened.
            weakref.finalize(step, self.copies.join).atexit = False
        first = 1
        with step.autocast.entered():
            # The forward pass: first forwards build autograd's graph, everything else happens beside it.
            for place, act in enumerate(self.script.acts[: self.script.turn]):
                step.done = place + 1
                if act.kind in FORWARDS and act.stage == first:
                    self._run_first(step, act, held)
                    first += 1
                else:
                    self._do_act(step, place)
        return held.pop()

    def _run_first(self, step: _Step, act: Act, held: list[Any]) -> None:
        """Run a unit in autograd's own graph, from the value that is held to the one that is held then."""
        number = act.stage
        if act.kind is OperationKind.FORWARD_DROP:
            step.bare.pop(number - 1, None)
        with contextlib.ExitStack() as stack:
            # What runs again saves empty slots; autograd then holds no tensor of this unit.
            if number not in self.script.kept:
                slots = step.slots[number] = []
                pack = self._make_packer(number, held[0]) if act.kind is OperationKind.FORWARD_ALL else None
                fill = partial(self._read_slot, step, number)
                stack.enter_context(saved_tensors_hooks(_put_slots(slots, pack), fill))
            # A rerun must see the same weights, random numbers and buffers.
            if number in self.reruns:
                seen = step.seen[number] = RunContext()
                seen.keep_weights(self.weights[number - 1])
                seen.random = read_generators([*step.generators, *(_PYTHONS if self.python[number - 1] else ())])
                stack.enter_context(self.buffers[number - 1].watched(seen))
            value = self._run_stages(step, number, held)
            if number in self.reruns:
                # From the others a rerun draws nothing either.
                seen.random = drawn_from(seen.random)
        output = Boundary.of(value) if number in self.read_again else None
        if act.kind is OperationKind.FORWARD_ALL:
            step.saved[number] = output
        elif output is not None:
            step.bare[number] = output
        # Before the walk enters this unit's last node, the plan's acts up to its backward are done.
        for tensor in tensors_of(value):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(lambda _: self._reach_backward(step, number))
        held.append(value)

    def _run_stages(
        self, step: _Step, number: int, held: list[Any], hand_on: Callable[[Any], Any] = lambda value: value
    ) -> Any:
        """Run a unit's stages on the value that is held, and let go of it with the first; return what they make."""
        value = held.pop()
        for stage in self.script.units[number - 1]:
            value = hand_on(self.row.run(stage, value))
        if self.copying:
            step.staying |= {storage_key(t) for t in self.row.riding(stage, value)}
        return value

    def _reach_backward(self, step: _Step, number: int) -> None:
        """Do what comes before a unit's backward: autograd's walk is there."""
        if torch.is_grad_enabled():
            raise UnsupportedModel(
                "backward: got create_graph=True; allowed: first derivatives; take second ones of the plain model"
            )
        until = self.script.until[number]
        if step.done >= until:
            return
        try:
            with step.autocast.entered():
                while step.done < until:
                    step.done += 1
                    self._do_act(step, step.done - 1)
        except BaseException:
            step.clear()
            raise

    def _do_act(self, step: _Step, place: int) -> None:
        """Do one act, but the first forward of a unit."""
        act = self.script.acts[place]
        number = act.stage
        if isinstance(act, Release):
            step.away[act.value, number].release()
            step.outputs(act.value)[number] = None
        elif act.kind in FORWARDS:
            self._wait_for_copy(step, number - 1)
            self._recompute_unit(step, place)
        elif act.kind is OperationKind.BACKWARD:
            self._wait_for_copy(step, number - 1)
            self._wait_for_copy(step, number)
            step.saved.pop(number, None)
        elif act.value is not None:
            self._move_value(step, act.kind, act.value, number)

    def _recompute_unit(self, step: _Step, place: int) -> None:
        """Run a unit once more, out of autograd's graph; with gradients, fill its slots there."""
        act = self.script.acts[place]
        number, filling, graph_only = act.stage, act.kind is OperationKind.FORWARD_ALL, place in self.script.graphs_only
        where = f"stage {self.script.units[number - 1][0]}"
        held = [self._value_of(step, number - 1).tree(where)]
        if act.kind is OperationKind.FORWARD_DROP:
            step.bare.pop(number - 1, None)
        slots, seen = step.slots[number], step.seen[number]
        if filling and graph_only and not slots:
            return
        # Slots are filled in the order in which the first run made them.
        left = slots[::-1] if filling else []
        hooks = saving_nothing()
        if filling:
            pack = self._make_packer(number, held[0])
            hooks = saving_nothing(_fill_slots(left, pack, where=where, stop=graph_only))
        try:
            with torch.enable_grad(), hooks, seen.again(), seen.same_weights(), Buffers.scratch(seen):
                output = Boundary.of(self._run_stages(step, number, held, without_graph))
        except _Full:
            step.saved[number] = None
            return
        if left:
            raise _differs_error(where)
        if filling:
            step.saved[number] = output
        else:
            step.bare[number] = output

    def _move_value(self, step: _Step, kind: OperationKind, value: Value, number: int) -> None:
        """Do what takes no time: begin a copy, or drop a value, wherever it is."""
        self._wait_for_copy(step, number)
        if kind is OperationKind.OFFLOAD:
            assert self.copies is not None  # noqa: S101  a value that is sent leaves
            boundary, slots = step.outputs(value)[number], step.slots[number] if value is Value.SAVED else []
            tensors = _tensors_to_move(boundary, slots, step.staying)
            step.away[value, number] = OffloadedValue(boundary, tensors, self.copies)
        elif kind is OperationKind.PREFETCH:
            step.outputs(value)[number] = step.away[value, number].fetch()
        else:
            step.outputs(value).pop(number, None)
            for slot in _alive(step.slots[number]) if value is Value.SAVED else ():
                slot.hold(None)
            away = step.away.pop((value, number), None)
            if away is not None:
                away.drop()

    def _wait_for_copy(self, step: _Step, number: int) -> None:
        """Wait for the values of a unit that have been asked back."""
        for value in (Value.OUTPUT, Value.SAVED):
            away = step.away.get((value, number))
            if away is not None and away.fetched:
                del step.away[value, number]
                away.wait()

    def _value_of(self, step: _Step, number: int) -> Boundary:
        """Return what a unit has handed on."""
        boundary = step.bare.get(number) or step.saved.get(number)
        if boundary is None:
            raise _second_pass_error()
        return boundary

    def _make_packer(self, number: int, given: Any) -> _Pack:
        """Return how a unit's saved tensors are held in their slots."""
        borrows, moves = number in self.lent, number in self.moved
        # A saved tensor that is the unit's input is held by its place, as that input may go and be made again.
        places = {storage_key(tensor): place for place, tensor in enumerate(tensors_of(given))} if borrows else {}
        own = [each for stage in self.stages[number - 1] for each in (*stage.parameters(), *stage.buffers())]
        constant = {storage_key(t) for t in (*tensors_of(given), *own)} if moves else set()

        def pack(slot: SavedTensor, tensor: torch.Tensor) -> None:
            key = storage_key(tensor) if (borrows or moves) and can_move(tensor) else None
            if key in places:
                slot.held = InputAlias.of(tensor, places[key])
                return
            # With its graph, an output that its own node holds would never go.
            slot.hold(tensor.detach())
            slot.moves = moves and key is not None and key not in constant

        return pack

    def _read_slot(self, step: _Step, number: int, slot: SavedTensor) -> torch.Tensor:
        """Return what a node has saved, for its backward."""
        if slot.held is None:
            # Autograd's walk came here by a value that skips stages.
            self._reach_backward(step, number)
        held = slot.held
        if isinstance(held, torch.Tensor):
            if held._version != slot.version:  # noqa: SLF001  autograd's own check sees no packed tensors
                raise written_error("backward", "a value that a stage needs for it")
            return held
        if held is None:
            raise _second_pass_error()
        return held.of_input(self._value_of(step, number - 1).tensors())


def _put_slots(slots: _Slots, pack: _Pack | None) -> Callable[[torch.Tensor], SavedTensor]:
    """Return what puts slots in the place of tensors; they hold these only if there is a way to."""

    def empty(tensor: torch.Tensor) -> SavedTensor:
        slot = SavedTensor()
        slots.append(weakref.ref(slot))
        if pack is not None:
            pack(slot, tensor)
        return slot

    return empty


def _fill_slots(left: _Slots, pack: _Pack, *, where: str, stop: bool) -> Callable[[torch.Tensor], None]:
    """Return what puts the tensors that a run saves into the slots that are left, the last one first.

    With `stop` it raises _Full when none is left.
    """

    def fill(tensor: torch.Tensor) -> None:
        if not left:
            raise _differs_error(where)
        slot = left.pop()()
        if slot is not None:
            pack(slot, tensor)
        if stop and not left:
            raise _Full

    return fill


def _alive(slots: _Slots) -> Iterator[SavedTensor]:
    return (slot for reference in slots if (slot := reference()) is not None)


def _tensors_to_move(
    boundary: Boundary | None, slots: _Slots, staying: set[int]
) -> Iterator[tuple[torch.Tensor, Callable[[torch.Tensor | None], None]]]:
    """Yield the tensors of an output and of a graph that go to the host, each with what takes it back."""
    for place, leaf in enumerate(boundary.leaves if boundary is not None else ()):
        if isinstance(leaf, torch.Tensor) and can_move(leaf) and storage_key(leaf) not in staying:
            yield leaf, partial(boundary.replace, place)  # type: ignore[union-attr]  # it has leaves
    for slot in _alive(slots):
        if slot.moves and isinstance(slot.held, torch.Tensor) and storage_key(slot.held) not in staying:
            yield slot.held, slot.hold


def _differs_error(where: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{where}: got another number of saved values from another run; allowed: stages that always do the same"
    )


def _second_pass_error() -> UnsupportedModel:
    return UnsupportedModel(
        "backward: got a second pass over one forward; allowed: one; run the forward again, or use the plain model"
    )


def _is_users(stage: nn.Module) -> bool:
    """Return whether a stage runs Python code of modules that are not torch's."""
    return any(has_hooks(each) or not type(each).__module__.startswith("torch.") for each in stage.modules())


def _device(row: StageRow, tensors: Sequence[torch.Tensor]) -> torch.device:
    """Return the device that computes."""
    of_stages = (parameter.device for stage in row.stages for parameter in stage.parameters())
    return next(of_stages, tensors[0].device if tensors else torch.device("cpu"))

"""Recompute or offload activations: a plan's operations inside autograd's own graph, with its gradients to the bit.

The first forward of every stage is plain: what is kept until its backward costs nothing. Of stages that are run again,
the graph holds empty slots in the place of saved tensors. When its walk comes to a stage, the operations up to that
stage's backward are done, and the last run with gradients fills the slots. There is one walk, so gradients live, add
up and reach hooks (those of DDP too) as without a plan. What reruns read lies in the step's store, from which nothing
goes but by an operation; what skips stages (see `stages`) when no rerun to come reads it. Reruns see the random
numbers, autocast and buffers of the first run. Stages in a row that are always treated alike are one unit (see
`program`): work in Python goes with the units that are run again, not with the stages.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from trainwright.errors import UnsupportedModel
from trainwright.plan.memory.operations import OperationKind, Value
from trainwright.train.parallel.recompute.copies import Copies, copies_for
from trainwright.train.parallel.recompute.program import (
    FORWARDS,
    Act,
    Release,
    apart_in_backward,
    arrange_script,
    lent_units,
    moved_units,
    read_later,
    read_outside,
    wanted_after,
    without_graph,
)
from trainwright.train.parallel.recompute.run_context import Autocast, Buffers, RunContext, weight_places
from trainwright.train.parallel.recompute.stages import StageRow
from trainwright.train.parallel.recompute.tracing import has_hooks
from trainwright.train.parallel.recompute.trees import storage_key, tensors_of
from trainwright.train.parallel.recompute.values import (
    Boundary,
    InputAlias,
    OffloadableStorage,
    OffloadableStorages,
    OffloadedBoundary,
    SavedRun,
    SavedTensor,
    StorageView,
    can_move,
    saving_nothing,
    written_error,
)

__all__ = ["PlanInterpreter"]

_Pack = Callable[[torch.Tensor], torch.Tensor | StorageView | InputAlias]


@dataclass(slots=True, weakref_slot=True)
class _Step:
    """The store of one forward and backward pass."""

    autocast: Autocast
    devices: tuple[int, ...]
    # Storages of inputs that want no gradient, wherever they ride to.
    inputs: set[int]
    done: int = 0  # acts
    bare: dict[int, Boundary] = field(default_factory=dict)
    saved: dict[int, SavedRun] = field(default_factory=dict)
    slots: dict[int, list[weakref.ref[SavedTensor]]] = field(
        default_factory=dict
    )  # a node that has run lets go of its own
    away: dict[tuple[Value, int], OffloadedBoundary] = field(default_factory=dict)
    skips: dict[str, Boundary] = field(default_factory=dict)
    seen: dict[int, RunContext] = field(default_factory=dict)

    def clear(self) -> None:
        for held in (self.bare, self.saved, self.slots, self.away, self.skips):
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
        self.reads = [read_outside(row, unit) for unit in units]
        self.read_later = read_later(row, [range(1, len(row.stages) + 1)])
        # What stages read of others of the same unit.
        self.read_inside = read_later(row, units)
        self.wanted = wanted_after(row, self.script)
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
            devices=tuple({t.device.index for t in tensors if t.device.type == "cuda"}),
            inputs={storage_key(t) for t in tensors if not t.requires_grad},
        )
        if 0 in self.read_again:
            step.bare[0] = boundary
        if self.copying:
            self.copies = self.copies or copies_for(_device(self.row, tensors))
            # Copies are joined before the step's tensors go, whatever happened.
            weakref.finalize(step, self.copies.join).atexit = False
        skips: dict[str, Any] = {}
        first = 1
        with step.autocast.entered():
            # The forward pass: first forwards build autograd's graph, everything else happens beside it.
            for place, act in enumerate(self.script.acts[: self.script.turn]):
                step.done = place + 1
                if act.kind in FORWARDS and act.stage == first:
                    self._run_first(step, place, held, skips)
                    first += 1
                else:
                    self._do_act(step, place)
        return held.pop()

    def _run_first(self, step: _Step, place: int, held: list[Any], skips: dict[str, Any]) -> None:
        """Run a unit in autograd's own graph, from the value that is held to the one that is held then."""
        act = self.script.acts[place]
        number = act.stage
        if act.kind is OperationKind.FORWARD_DROP:
            step.bare.pop(number - 1, None)
        blocks = OffloadableStorages()
        with contextlib.ExitStack() as stack:
            # What runs again saves empty slots; autograd then holds no tensor of this unit.
            if number not in self.script.kept:
                slots = step.slots[number] = []
                given = [held[0], *(skips[name] for name in self.reads[number - 1])]
                pack = self._make_packer(number, given, blocks) if act.kind is OperationKind.FORWARD_ALL else None
                del given
                fill = partial(self._read_slot, step, number)
                stack.enter_context(saved_tensors_hooks(_put_slots(slots, pack), fill))
            # A rerun must see the same weights, random numbers and buffers.
            if number in self.reruns:
                seen = step.seen[number] = RunContext()
                seen.keep_weights(self.weights[number - 1])
                seen.keep_random(step.devices, all_kinds=self.python[number - 1])
                stack.enter_context(self.buffers[number - 1].watched(seen))
                stack.callback(seen.forget_undrawn)
            value, made = self._run_stages(step, place, held, skips, self.read_later, read=apart_in_backward)
        output = Boundary.of(value) if number in self.read_again else None
        if act.kind is OperationKind.FORWARD_ALL:
            step.saved[number] = SavedRun(output, blocks, _staying_storages(blocks, made))
        elif output is not None:
            step.bare[number] = output
        # Before the walk enters this unit's last node, the plan's acts up to its backward are done.
        for tensor in tensors_of(value):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(lambda _: self._reach_backward(step, number))
        held.append(value)

    def _run_stages(
        self,
        step: _Step,
        place: int,
        held: list[Any],
        skips: dict[str, Any],
        later: Sequence[frozenset[str]],
        *,
        read: Callable[[Any], Any] = lambda skip: skip,
        hand_on: Callable[[Any], Any] = lambda value: value,
    ) -> tuple[Any, set[int]]:
        """Run a unit's stages on the value that is held, and let go of it with the first; return what they make.

        What skips stages goes from `skips` to where reruns read it, if one will, and from `skips` with the stage behind
        which nobody is to read it there: `later` says who is. The storages of what is made are returned as well.
        """
        value, storages = held.pop(), set()
        made: dict[str, Any]
        for stage in self.script.units[self.script.acts[place].stage - 1]:
            value, made = hand_on(self.row.run(stage, value, [read(skips[name]) for name in self.row.reads[stage - 1]]))
            storages |= {storage_key(t) for t in tensors_of(made)}
            step.skips |= {name: Boundary.of(made[name]) for name in made if name in self.wanted[place]}
            skips |= made
            made.clear()
            for name in skips.keys() - later[stage - 1]:
                del skips[name]
        return value, storages

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
            self._release_copy(step, act.value, number)
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
        skips = {name: step.skips[name].tree(where) for name in self.reads[number - 1]}
        for name in skips.keys() - self.wanted[place]:
            del step.skips[name]
        if act.kind is OperationKind.FORWARD_DROP:
            step.bare.pop(number - 1, None)
        blocks, slots, seen = OffloadableStorages(), step.slots[number], step.seen[number]
        if filling and graph_only and not slots:
            return
        # Slots are filled in the order in which the first run made them.
        left = slots[::-1] if filling else []
        hooks = saving_nothing()
        if filling:
            pack = self._make_packer(number, [held[0], *skips.values()], blocks)
            hooks = saving_nothing(_fill_slots(left, pack, where=where, stop=graph_only))
        try:
            with torch.enable_grad(), hooks, seen.again(), seen.same_weights(), Buffers.scratch(seen):
                value, made = self._run_stages(step, place, held, skips, self.read_inside, hand_on=without_graph)
        except _Full:
            step.saved[number] = SavedRun(None, blocks, set())
            return
        output = Boundary.of(value)
        if left:
            raise _differs_error(where)
        if filling:
            step.saved[number] = SavedRun(output, blocks, _staying_storages(blocks, made))
        else:
            step.bare[number] = output

    def _move_value(self, step: _Step, kind: OperationKind, value: Value, number: int) -> None:
        """Do what takes no time: begin a copy, or drop a value, wherever it is."""
        key = value, number
        self._wait_for_copy(step, number)
        if kind is OperationKind.OFFLOAD:
            saved = step.saved[number] if value is Value.SAVED else None
            boundary = step.bare[number] if saved is None else saved.output
            blocks = list(saved.blocks.values()) if saved is not None else []
            # Inputs of the model and values that skip stages stay on the device; others read them there.
            here = step.inputs | {storage_key(t) for skip in step.skips.values() for t in skip.tensors()}
            here |= saved.staying if saved is not None else set()
            assert self.copies is not None  # noqa: S101  a value that is sent leaves
            kept = [block for block in blocks if block.key() not in here]
            step.away[key] = OffloadedBoundary.sent(boundary, kept, lambda t: storage_key(t) in here, self.copies)
        elif kind is OperationKind.PREFETCH:
            assert self.copies is not None  # noqa: S101  as above
            boundary = step.away[key].back(self.copies)
            if value is Value.SAVED:
                step.saved[number].output = boundary
            elif boundary is not None:
                step.bare[number] = boundary
        else:
            if value is Value.SAVED:
                step.saved.pop(number, None)
                for slot in (reference() for reference in step.slots[number]):
                    if slot is not None:
                        slot.held = None
            else:
                step.bare.pop(number, None)
            away = step.away.pop(key, None)
            for block in away.blocks if away is not None else ():
                block.drop(self.copies)  # type: ignore[arg-type]  # it was sent

    def _release_copy(self, step: _Step, value: Value, number: int) -> None:
        assert self.copies is not None  # noqa: S101  it was sent
        for block in step.away[value, number].blocks:
            block.release(self.copies)
        if value is Value.OUTPUT:
            step.bare.pop(number, None)
        else:
            step.saved[number].output = None

    def _wait_for_copy(self, step: _Step, number: int) -> None:
        """Wait for the values of a unit that have been asked back."""
        if not step.away:
            return
        for value, held in ((Value.OUTPUT, step.bare), (Value.SAVED, step.saved)):
            away = step.away.get((value, number))
            if away is None or number not in held or not away.fetched:
                continue
            del step.away[value, number]
            for block in away.blocks:
                block.wait(self.copies)  # type: ignore[arg-type]  # it was sent

    def _value_of(self, step: _Step, number: int) -> Boundary:
        """Return what a unit has handed on."""
        saved = step.saved.get(number)
        boundary = step.bare.get(number) or (saved.output if saved is not None else None)
        if boundary is None:
            raise _second_pass_error()
        return boundary

    def _make_packer(self, number: int, given: list[Any], blocks: OffloadableStorages) -> _Pack:
        """Return how a unit's saved tensors are held: views of blocks if they move, an input that goes by its place."""
        borrows, moves = number in self.lent, number in self.moved
        if not borrows and not moves:
            # With its graph, an output that its own node holds would never go.
            return torch.Tensor.detach
        # A saved tensor that is the unit's input is held by its place, as that input may go and be made again.
        places = {storage_key(tensor): place for place, tensor in enumerate(tensors_of(given[0]))} if borrows else {}
        own = [each for stage in self.stages[number - 1] for each in (*stage.parameters(), *stage.buffers())]
        constant = {storage_key(t) for t in (*tensors_of(given), *own)} if moves else set()

        def pack(tensor: torch.Tensor) -> torch.Tensor | StorageView | InputAlias:
            key = storage_key(tensor) if can_move(tensor) else None
            place = None if key is None else places.get(key)
            if place is not None:
                return InputAlias.of(tensor, place)
            if not moves or key is None or key in constant:
                return tensor.detach()
            block = blocks.get(key)
            if block is None or block.key() != key:
                block = blocks[key] = OffloadableStorage(tensor)
            return StorageView.of(tensor, block)

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
        return (
            held.tensor()
            if isinstance(held, StorageView)
            else held.of_input(self._value_of(step, number - 1).tensors())
        )


def _put_slots(slots: list[weakref.ref[SavedTensor]], pack: _Pack | None) -> Callable[[torch.Tensor], SavedTensor]:
    """Return what puts slots in the place of tensors; they hold these only if there is a way to."""

    def empty(tensor: torch.Tensor) -> SavedTensor:
        slot = SavedTensor()
        slots.append(weakref.ref(slot))
        if pack is not None:
            slot.held, slot.version = pack(tensor), tensor._version  # noqa: SLF001  autograd does not check what is packed
        return slot

    return empty


def _fill_slots(
    left: list[weakref.ref[SavedTensor]], pack: _Pack, *, where: str, stop: bool
) -> Callable[[torch.Tensor], None]:
    """Return what puts the tensors that a run saves into the slots that are left, the last one first.

    With `stop` it raises _Full when none is left.
    """

    def fill(tensor: torch.Tensor) -> None:
        if not left:
            raise _differs_error(where)
        slot = left.pop()()
        if slot is not None:
            slot.held, slot.version = pack(tensor), tensor._version  # noqa: SLF001  as above
        if stop and not left:
            raise _Full

    return fill


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


def _staying_storages(blocks: OffloadableStorages, made: Iterable[int]) -> set[int]:
    """Take what skips stages, by its storages, out of what a graph sends to the host; return what it holds of that."""
    return {key for key in made if blocks.pop(key, None) is not None}


def _device(row: StageRow, tensors: Sequence[torch.Tensor]) -> torch.device:
    """Return the device that computes."""
    of_stages = (parameter.device for stage in row.stages for parameter in stage.parameters())
    return next(of_stages, tensors[0].device if tensors else torch.device("cpu"))

"""Recompute or offload activations: a plan's operations inside autograd's own graph, with its gradients to the bit.

The model's forward runs as it is written; what a plan says of a stage is done when the forward calls it (see
`stage_calls`). The first run of every stage is plain: what is kept until its backward costs nothing. Of stages that are
run again, the graph holds empty slots in the place of saved tensors. When autograd's walk comes to a stage, the
operations up to that stage's backward are done, and the last run with gradients fills the slots. There is one walk, so
gradients live, add up and reach hooks (those of DDP too) as without a plan. What reruns read lies in the step's store,
from which nothing goes but by an operation. Reruns see the arguments, random numbers, autocast and buffers of the first
run.

A forward may leave stages out, or call others: what is no call of the plan, in its order, is kept as without one.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from trainwright.errors import UnsupportedModel
from trainwright.plan.memory.operations import Operation, OperationKind, Value
from trainwright.train.parallel.recompute.copies import Copies
from trainwright.train.parallel.recompute.gathered import stage_gathered
from trainwright.train.parallel.recompute.operation_tape import OperationTape, Remade, remaking
from trainwright.train.parallel.recompute.program import (
    FORWARDS,
    NOTHING_REMADE,
    Act,
    Release,
    RemadeOperations,
    arrange_script,
    lent_stages,
    moved_stages,
)
from trainwright.train.parallel.recompute.run_context import (
    Autocast,
    Buffers,
    RunContext,
    drawing_again,
    drawn_from,
    keep_freed_pages,
    read_generators,
)
from trainwright.train.parallel.recompute.stage_calls import StageSite, stage_calls, stage_sites
from trainwright.train.parallel.recompute.step_store import (
    Arguments,
    Slots,
    StageCall,
    StageParts,
    StepStore,
    alive_slots,
    tensors_to_move,
)
from trainwright.train.parallel.recompute.trees import storage_key, storage_keys, tensors_of
from trainwright.train.parallel.recompute.values import (
    Boundary,
    InputAlias,
    OffloadedValue,
    SavedTensor,
    can_move,
    detach_unseen,
    saving_nothing,
    second_derivative_error,
    second_pass_error,
    written_error,
)

__all__ = ["PlanInterpreter"]

_Pack = Callable[[SavedTensor, torch.Tensor], None]
"""Holds a tensor that a node saves in its slot."""
_PYTHONS = ("python", "numpy")
"""Generators that only Python code draws from."""


class _Full(BaseException):
    """All slots are filled: what is left of a stage's forward makes an output that nobody reads.

    No Exception: a stage is free to catch those.
    """


class PlanInterpreter:
    """Acts on stages by their names, and what is known of each."""

    def __init__(self, names: Sequence[str], acts: Sequence[Act], remade: RemadeOperations = NOTHING_REMADE) -> None:
        self.names = tuple(names)
        # What an option does again; a set, which each operation of a stage asks.
        self.remade = {key: frozenset(numbers) for key, numbers in remade.items() if numbers}
        self.script = arrange_script(acts, len(names))
        self.reruns = {stage for stage, times in self.script.runs.items() if times > 1}
        self.lent, self.moved = lent_stages(self.script.acts), moved_stages(self.script.acts)
        self.copying = any(isinstance(act, Release) for act in self.script.acts)
        # Made with the first step; its pool of buffers serves all steps.
        self.copies: Copies | None = None
        # The stages whose output somebody will read again: a rerun, a graph that has borrowed it, or a copy.
        self.read_again = {stage - 1 for stage in self.reruns | self.lent}
        self.read_again |= {act.stage for act in self.script.acts if isinstance(act, Release)}
        # What is only kept is left to the model: it is not called through here.
        self.idle = frozenset() if self.copying else self.script.idle
        self.active = tuple(dict.fromkeys(name for at, name in enumerate(names, start=1) if at not in self.idle))
        self._parts: dict[str, StageParts] = {}

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a model's forward."""
        tensors = tensors_of((args, kwargs))
        device = next((each.device for each in chain(model.parameters(), tensors)), torch.device("cpu"))
        if device.type == "cpu":
            keep_freed_pages()
        step = StepStore(
            self._parts_of(model),
            Autocast.now(),
            generators=["cpu", *([str(device)] if device.type == "cuda" else [])],
            staying={storage_key(t) for t in tensors if not t.requires_grad},
        )
        del tensors
        if self.copying:
            self.copies = self.copies or Copies(device)
            # Copies are joined before the step's tensors go, whatever happened.
            weakref.finalize(step, self.copies.join).atexit = False
        sites = {name: part.site for name, part in step.parts.items()}
        with stage_calls(model, sites, partial(self._call, step)) as forward:
            result = forward(*args, **kwargs)
        self._go_on(step, self.script.turn)
        return result

    def _parts_of(self, model: nn.Module) -> dict[str, StageParts]:
        """Return what is known of each stage, anew where a model has other modules than before."""
        for name, site in stage_sites(model, self.active).items():
            known = self._parts.get(name)
            if known is None or known.modules != site.modules or known.site.owner is not site.owner:
                self._parts[name] = StageParts(model, site)
        return self._parts

    def _call(
        self,
        step: StepStore,
        site: StageSite,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Do what comes before a stage's first forward, and that; a call that is not of the plan is as it is."""
        later = range(step.number + 1, len(self.names) + 1)
        number = next((each for each in later if self.names[each - 1] == site.name), None)
        if number is None:
            return forward(*args, **kwargs)
        before, step.number = step.number, number
        if number in self.idle:
            return forward(*args, **kwargs)
        place = self.script.firsts[number]
        self._go_on(step, place)
        step.done = place + 1
        left_out = any(each not in self.idle for each in range(before + 1, number))
        output = self._run_first(step, place, forward, (args, kwargs), left_out=left_out)
        ends = self.script.firsts.get(number + 1, self.script.turn)
        self._go_on(step, ends)
        return output

    def _go_on(self, step: StepStore, until: int) -> None:
        """Do the acts up to a place; the first forwards of stages are the model's."""
        while step.done < until:
            step.done += 1
            if step.done - 1 not in self.script.first_places:
                self._do_act(step, step.done - 1)

    def _run_first(
        self, step: StepStore, place: int, forward: Callable[..., Any], arguments: Arguments, *, left_out: bool
    ) -> Any:
        """Run a stage in autograd's own graph."""
        act = self.script.acts[place]
        number, kept = act.stage, act.stage in self.script.kept
        part = step.parts[self.names[number - 1]]
        given = tensors_of(arguments)
        if not kept:
            below = None if left_out else step.bare.get(number - 1) or step.saved.get(number - 1)
            call = step.calls[number] = StageCall.of(forward, arguments, () if below is None else below.tensors)
            # Of what the stage before has handed on, only what this one reads can be made again.
            if below is not None:
                below.keep_only(call.links.values())
            step.staying |= {storage_key(leaf) for leaf in call.leaves if isinstance(leaf, torch.Tensor)}
            if not call.links:
                step.unread.add(number - 1)
        if act.kind is OperationKind.FORWARD_DROP:
            step.bare.pop(number - 1, None)
        with contextlib.ExitStack() as stack:
            # A rerun must see the same weights, random numbers and buffers.
            if number in self.reruns:
                seen = step.seen[number] = RunContext()
                seen.keep_weights(part.weights)
                seen.random = read_generators([*step.generators, *(_PYTHONS if part.python else ())])
                stack.enter_context(part.buffers.watched(seen))
            # What runs again saves empty slots; autograd then holds no tensor of this stage.
            if not kept:
                slots = step.slots[number] = []
                pack = None
                if act.kind is OperationKind.FORWARD_ALL:
                    # Last, since an option numbers the operations of the forward alone, without copies of buffers.
                    pack = stack.enter_context(self._packing(part, act, call, given))
                fill = partial(self._read_slot, step, number)
                stack.enter_context(saved_tensors_hooks(_put_slots(slots, pack), fill))
            stack.enter_context(part.watched())
            output = forward(*arguments[0], **arguments[1])
            if number in self.reruns:
                # From the others a rerun draws nothing either.
                seen.random = drawn_from(seen.random)
        boundary = _handed_on(output, storage_keys(given)) if number in self.read_again else None
        if act.kind is OperationKind.FORWARD_ALL:
            step.saved[number] = boundary
        elif boundary is not None:
            step.bare[number] = boundary
        # Before the walk enters this stage's last node, the plan's acts up to its backward are done.
        if step.done < self.script.until[number]:
            for tensor in tensors_of(output):
                if tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(lambda _: self._reach_backward(step, number))
        return output

    def _reach_backward(self, step: StepStore, number: int) -> None:
        """Do what comes before a stage's backward: autograd's walk is there."""
        if torch.is_grad_enabled():
            raise second_derivative_error()
        until = self.script.until[number]
        if step.done >= until:
            return
        try:
            while step.done < until:
                step.done += 1
                self._do_act(step, step.done - 1)
        except BaseException:
            step.clear()
            raise

    def _do_act(self, step: StepStore, place: int) -> None:
        """Do one act, but the first forward of a stage."""
        act = self.script.acts[place]
        number = act.stage
        if isinstance(act, Release):
            if (act.value, number) in step.away:
                step.away[act.value, number].release()
                step.outputs(act.value)[number] = None
        elif act.kind in FORWARDS:
            self._wait_for_copy(step, number - 1)
            self._recompute(step, place)
        elif act.kind is OperationKind.BACKWARD:
            self._wait_for_copy(step, number - 1)
            self._wait_for_copy(step, number)
            step.saved.pop(number, None)
            # No rerun comes behind it.
            if number in step.calls:
                step.calls[number].leaves.clear()
        elif act.value is not None:
            self._move_value(step, act.kind, act.value, number)

    def _recompute(self, step: StepStore, place: int) -> None:
        """Run a stage once more, out of autograd's graph; with gradients, fill its slots there."""
        act = self.script.acts[place]
        number, filling = act.stage, act.kind is OperationKind.FORWARD_ALL
        call, slots = step.calls.get(number), step.slots.get(number, [])
        # A stage that this forward has left out, or what nobody reads as it was.
        if call is None or (number in step.unread and not filling):
            return
        name = self.names[number - 1]
        part, where = step.parts[name], f"stage {number} ({name})"
        below = self._value_of(step, number - 1) if call.links else None
        arguments = call.arguments(() if below is None else below.unwritten(where), where)
        if act.kind is OperationKind.FORWARD_DROP:
            step.bare.pop(number - 1, None)
        del below
        seen, graph_only = step.seen[number], place in self.script.graphs_only or number in step.unread
        if filling and graph_only and not slots:
            return
        given = tensors_of(arguments)
        # Slots are filled in the order in which the first run made them.
        left = slots[::-1] if filling else []
        try:
            with (
                torch.enable_grad(), stage_gathered(part.sharded), call.autocast.entered(), drawing_again(seen.random),
                seen.same_weights(), Buffers.scratch(seen), contextlib.ExitStack() as stack,
            ):  # fmt: skip
                hooks = saving_nothing()
                if filling:
                    pack = stack.enter_context(self._packing(part, act, call, given))
                    hooks = saving_nothing(_fill_slots(left, pack, where, stop=graph_only and not part.fills_late))
                stack.enter_context(hooks)
                output = _handed_on(call.forward(*arguments[0], **arguments[1]), storage_keys(given))
            if filling and graph_only and not left:
                raise _Full
        except _Full:
            step.saved[number] = None
            return
        if left:
            raise _differs_error(where)
        following = step.calls.get(number + 1)
        if following is not None:
            output.keep_only(following.links.values())
        if filling:
            step.saved[number] = output
        else:
            step.bare[number] = output

    def _move_value(self, step: StepStore, kind: OperationKind, value: Value, number: int) -> None:
        """Do what takes no time: begin a copy, or drop a value, wherever it is."""
        self._wait_for_copy(step, number)
        if kind is OperationKind.OFFLOAD:
            assert self.copies is not None  # noqa: S101  a value that is sent leaves
            boundary = step.outputs(value).get(number)
            slots = step.slots.get(number, []) if value is Value.SAVED else []
            tensors = tensors_to_move(boundary, slots, step.staying)
            step.away[value, number] = OffloadedValue(boundary, tensors, self.copies)
        elif kind is OperationKind.PREFETCH:
            step.outputs(value)[number] = step.away[value, number].prefetch()
        else:
            step.outputs(value).pop(number, None)
            for slot in alive_slots(step.slots.get(number, [])) if value is Value.SAVED else ():
                slot.hold(None)
            away = step.away.pop((value, number), None)
            if away is not None:
                away.drop()

    def _wait_for_copy(self, step: StepStore, number: int) -> None:
        """Wait for the values of a stage that have been asked back."""
        for value in (Value.OUTPUT, Value.SAVED):
            away = step.away.get((value, number))
            if away is not None and away.fetched:
                del step.away[value, number]
                away.wait()

    def _value_of(self, step: StepStore, number: int) -> Boundary:
        """Return what a stage has handed on."""
        boundary = step.bare.get(number) or step.saved.get(number)
        if boundary is None:
            raise second_pass_error()
        return boundary

    @contextlib.contextmanager
    def _packing(self, part: StageParts, act: Act, call: StageCall, given: Sequence[torch.Tensor]) -> Iterator[_Pack]:
        """Yield how saved tensors of a stage that runs inside are held in their slots."""
        pack = self._make_packer(part, act.stage, call, given)
        remade = self.remade.get((act.stage, act.option)) if isinstance(act, Operation) else None
        if remade is None:
            yield pack
            return
        with OperationTape(remade, pack) as tape:
            yield tape.pack

    def _make_packer(self, part: StageParts, number: int, call: StageCall, given: Sequence[torch.Tensor]) -> _Pack:
        """Return how a stage's saved tensors are held in their slots."""
        borrows, moves = number in self.lent, number in self.moved
        # A saved tensor that is what the stage before made is held by its place, as that may go and be made again.
        places: dict[int, int] = {}
        if borrows:
            at_tensors = [
                at for at, leaf in enumerate(call.leaves) if at in call.links or isinstance(leaf, torch.Tensor)
            ]
            places = {
                storage_key(tensor): call.links[at]
                for at, tensor in zip(at_tensors, given, strict=True)
                if at in call.links
            }
        constant: set[int] = set()
        if moves:
            own = [each for module in part.modules for each in (*module.parameters(), *module.buffers())]
            constant = {storage_key(each) for each in (*given, *own)}

        if not (borrows or moves):
            return _hold_detached

        def pack(slot: SavedTensor, tensor: torch.Tensor) -> None:
            key = storage_key(tensor) if can_move(tensor) else None
            if key in places:
                slot.held = InputAlias.of(tensor, places[key])
                return
            _hold_detached(slot, tensor)
            slot.moves = moves and key is not None and key not in constant

        return pack

    def _read_slot(self, step: StepStore, number: int, slot: SavedTensor) -> torch.Tensor:
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
            raise second_pass_error()
        if isinstance(held, Remade):
            with remaking():
                return held.tensor(partial(self._read_slot, step, number))
        alias: InputAlias = held
        return alias.of_input(self._value_of(step, number - 1).tensors)


def _hold_detached(slot: SavedTensor, tensor: torch.Tensor) -> None:
    # With its graph, an output that its own node holds would never go.
    slot.hold(detach_unseen(tensor))


def _handed_on(output: Any, given: set[int]) -> Boundary:
    """Return what a stage has made; what it was given and returns again is held as it came."""
    found = tensors_of(output)
    return Boundary.of(
        tensor if tensor.layout == torch.strided and storage_key(tensor) not in given else None for tensor in found
    )


def _put_slots(slots: Slots, pack: _Pack | None) -> Callable[[torch.Tensor], SavedTensor]:
    """Return what puts slots in the place of tensors; they hold these only if there is a way to."""

    def empty(tensor: torch.Tensor) -> SavedTensor:
        slot = SavedTensor()
        slots.append(weakref.ref(slot))
        if pack is not None:
            pack(slot, tensor)
        return slot

    return empty


def _fill_slots(left: Slots, pack: _Pack, where: str, *, stop: bool) -> Callable[[torch.Tensor], None]:
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


def _differs_error(where: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{where}: got another number of saved values from another run; allowed: stages that always do the same"
    )

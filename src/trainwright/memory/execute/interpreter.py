"""The interpreter: a plan's operations carried out stage by stage, with the gradients of plain autograd to the bit.

Each stage is one node of autograd. Its forward does the operations up to the stage's first forward, its backward those
up to the stage's own; so a gradient lives no longer than the plan says. Parameters are inputs of the node: their
gradients come out of it as out of any other, so that hooks (those of DDP too) fire once, in order. What is kept lies in
the step's store, from which nothing goes but by an operation. Reruns see the random numbers, autocast and buffers of
the first run. What skips stages (see `stages`) lies in the store until all that read it have run backward, its gradient
until its maker does.
"""

import contextlib
import copy
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_unflatten

from trainwright.errors import UnsupportedModel
from trainwright.memory.execute.copies import Copies, copies_for
from trainwright.memory.execute.program import FORWARDS, Act, Leave, lent, moved, sorted_to_nodes
from trainwright.memory.execute.stages import Row
from trainwright.memory.execute.surroundings import Autocast, Buffers, Place, Seen, swapped
from trainwright.memory.execute.values import (
    Away,
    Block,
    Blocks,
    Borrowed,
    Boundary,
    Saved,
    View,
    differentiable,
    flat,
    movable,
    storage_key,
)
from trainwright.memory.operations import Kind, Value

__all__ = ["carried_out"]

Check = Callable[[tuple[Any, ...]], None]


def carried_out(
    model: nn.Module,
    row: Row,
    acts: Sequence[Act] | None,
    *,
    check: Check | None = None,
    result: Callable[[Any], Any] = lambda out: out,
) -> nn.Module:
    """Return a module that trains as `acts` (see `program.placed`) say and shares everything with `model`.

    Same class, state_dict keys and order of parameters. In evaluation mode, or without gradients, it runs as the model
    itself. Gradients, outputs, buffers and the state of random generators after a step are those of the model, bit by
    bit. Without acts it runs as the model itself always. `check` sees the arguments of the first stage before they are
    used, `result` what the last returns. Raises `ChainError` if a forward or backward of a stage is missing.
    """
    program = None if acts is None else _Program(row, acts)
    planned = copy.copy(model)  # the same parameters, buffers and children
    plain = type(model).forward
    me = weakref.ref(planned)

    def forward(*args: Any, **kwargs: Any) -> Any:
        module = me()
        assert module is not None  # noqa: S101  it is being called
        if not (module.training and torch.is_grad_enabled()):
            return plain(module, *args, **kwargs)
        values = row.bind(*args, **kwargs)
        if check is not None:
            check(values)
        return plain(module, *args, **kwargs) if program is None else result(program.run(values))

    planned.forward = forward
    return planned


@dataclass(slots=True, weakref_slot=True)
class _Step:
    """The store of one forward and backward pass."""

    autocast: Autocast
    wants: list[bool]  # whether a gradient is wanted of each tensor of the input
    bare: dict[int, Boundary] = field(default_factory=dict)
    saved: dict[int, Saved] = field(default_factory=dict)
    away: dict[tuple[Value, int], Away] = field(default_factory=dict)
    skips: dict[str, Boundary] = field(default_factory=dict)  # values that skip stages, without graphs
    skip_gradients: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)  # of their tensors
    seen: dict[int, Seen] = field(default_factory=dict)
    made: dict[int, torch.Tensor] = field(default_factory=dict)  # gradients not handed out yet, by id of the parameter
    gradient: list[torch.Tensor | None] | None = None  # of the output of the stage whose backward comes next
    left: int = 0  # stages whose backward is to come
    devices: tuple[int, ...] = ()
    inputs: set[int] = field(default_factory=set)  # storages of inputs that want no gradient, wherever they ride to

    def clear(self) -> None:
        self.bare.clear()
        self.saved.clear()
        self.away.clear()
        self.skips.clear()
        self.skip_gradients.clear()
        self.made.clear()
        self.gradient = None


class _Program:
    """Acts sorted to the nodes that do them, and what is known of each stage."""

    def __init__(self, row: Row, acts: Sequence[Act]) -> None:
        self.row = row
        count = len(row.stages)
        self.forwards, self.backwards = sorted_to_nodes(acts, count)
        runs = Counter(act.stage for act in acts if not isinstance(act, Leave) and act.kind in FORWARDS)
        self.reruns = {stage for stage, times in runs.items() if times > 1}
        self.lent, self.moved = lent(acts), moved(acts)
        self.first_reader = {name: number for number, names in enumerate(row.first_reads, 1) for name in names}
        self.copies: Copies | None = None  # its pool is that of all steps
        self.buffers = [Buffers(stage) for stage in row.stages]
        trained = [[p for p in stage.parameters() if p.requires_grad] for stage in row.stages]
        first: dict[int, int] = {}
        for number, own in enumerate(trained, start=1):
            for parameter in own:
                first.setdefault(id(parameter), number)
        self.places: list[list[tuple[Place, nn.Parameter]]] = [_places(stage) for stage in row.stages]
        # The last backward that makes a gradient hands it out: of tied parameters that of the first stage.
        self.returned = [[p for p in own if first[id(p)] == number] for number, own in enumerate(trained, 1)]
        self.trains = [bool(own) for own in trained]
        self.anchor = torch.zeros((), requires_grad=True)  # makes every stage a node, whatever its input
        self.copying = any(isinstance(act, Leave) for act in acts)

    def run(self, values: tuple[Any, ...]) -> Any:
        boundary = flat(values)
        tensors = boundary.tensors()
        devices = tuple({t.device.index for t in tensors if t.device.type == "cuda"})
        step = _Step(Autocast.now(), [t.requires_grad for t in tensors], left=len(self.row.stages), devices=devices)
        step.bare[0] = boundary.with_tensors([t.detach() for t in tensors])
        step.inputs = {storage_key(t) for t in tensors if not t.requires_grad}
        if self.copying:
            self.copies = self.copies or copies_for(_device(self.row, tensors))
            weakref.finalize(step, self.copies.join).atexit = False  # before the step's tensors go, whatever happened
        out: list[Boundary] = []
        for number in range(1, len(self.row.stages) + 1):
            returned = self.returned[number - 1]
            tensors = list(_Node.apply(self, step, number, out, self.anchor, *returned, *tensors))
        result = out[0].with_tensors(tensors)
        return tree_unflatten(result.leaves, result.spec)

    def forward(self, step: _Step, number: int) -> Boundary:
        """Do what comes up to the first forward of a stage; return its output."""
        out = None
        for act in self.forwards[number - 1]:
            made = self.do(step, act)
            out = made if act.stage == number and made is not None else out
        assert out is not None  # noqa: S101  the segment holds the stage's forward
        return out

    def backward(self, step: _Step, number: int, gradient: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Do what comes up to the backward of a stage; return the gradients of its input."""
        step.gradient = gradient
        for act in self.backwards[number - 1]:
            self.do(step, act)
        found, step.gradient = step.gradient, None
        return found

    def do(self, step: _Step, act: Act) -> Boundary | None:
        """Do one act; return the output of a forward."""
        number = act.stage
        if isinstance(act, Leave):
            self._leave(step, act.value, number)
        elif act.kind is Kind.FORWARD_ALL:
            self._arrive(step, number - 1)
            return self._with_graph(step, number)
        elif act.kind in FORWARDS:
            self._arrive(step, number - 1)
            with torch.no_grad(), self._surrounded(step, number):
                out, skips = self._call(number, self._value(step, number - 1), self._read(step, number))
            step.skips = self._still_read(step, skips) | step.skips
            step.bare[number] = flat(out)
            if act.kind is Kind.FORWARD_DROP:
                step.bare.pop(number - 1, None)
            return step.bare[number]
        elif act.kind is Kind.BACKWARD:
            self._arrive(step, number - 1)
            self._arrive(step, number)
            self._backward(step, number)
        elif act.value is not None:
            self._move(step, act.kind, act.value, number)
        return None

    def _move(self, step: _Step, kind: Kind, value: Value, number: int) -> None:
        """Do what takes no time: begin a copy, or drop a value, wherever it is."""
        key = value, number
        self._arrive(step, number)
        if kind is Kind.OFFLOAD:
            saved = step.saved[number] if value is Value.SAVED else None
            boundary = step.bare[number] if saved is None else saved.output
            blocks = list(saved.blocks.values()) if saved is not None else []
            here = step.inputs | {storage_key(t) for skip in step.skips.values() for t in skip.tensors()}
            assert self.copies is not None  # noqa: S101  a value that is sent leaves
            kept = [block for block in blocks if block.key() not in here]
            step.away[key] = Away.sent(boundary, kept, lambda t: storage_key(t) in here, self.copies)
        elif kind is Kind.PREFETCH:
            assert self.copies is not None  # noqa: S101  as above
            boundary = step.away[key].back(self.copies)
            if value is Value.SAVED:
                step.saved[number].output = boundary
            elif boundary is not None:
                step.bare[number] = boundary
        else:
            (step.bare if value is Value.OUTPUT else step.saved).pop(number, None)
            away = step.away.pop(key, None)
            for block in away.blocks if away is not None else ():
                block.drop(self.copies)  # type: ignore[arg-type]  # it was sent

    def _leave(self, step: _Step, value: Value, number: int) -> None:
        assert self.copies is not None  # noqa: S101  it was sent
        for block in step.away[value, number].blocks:
            block.leave(self.copies)
        if value is Value.OUTPUT:
            step.bare.pop(number, None)
        else:
            step.saved[number].output = None

    def _arrive(self, step: _Step, number: int) -> None:
        """Wait for the values of a stage that have been asked back."""
        for value, held in ((Value.OUTPUT, step.bare), (Value.SAVED, step.saved)):
            away = step.away.get((value, number))
            if away is None or number not in held or not away.fetched:
                continue
            del step.away[value, number]
            for block in away.blocks:
                block.arrive(self.copies)  # type: ignore[arg-type]  # it was sent

    def _still_read(self, step: _Step, skips: dict[str, Boundary]) -> dict[str, Boundary]:
        return {name: each for name, each in skips.items() if step.left >= self.first_reader[name]}

    def _read(self, step: _Step, number: int) -> list[Boundary]:
        return [step.skips[name] for name in self.row.reads[number - 1]]

    def _value(self, step: _Step, number: int) -> Boundary:
        if number in step.bare:
            return step.bare[number]
        saved = step.saved.get(number)
        if saved is not None and saved.output is not None:
            return saved.output
        raise UnsupportedModel(
            "backward: got a second pass over one forward; allowed: one; run the forward again, or use the plain model"
        )

    def _call(self, number: int, value: Boundary, read: list[Boundary]) -> tuple[Any, dict[str, Boundary]]:
        given = [tree_unflatten(each.leaves, each.spec) for each in (value, *read)]
        out, skips = self.row.run(number, given[0], given[1:])
        return out, {name: flat(skip) for name, skip in skips.items()}

    def _with_graph(self, step: _Step, number: int) -> Boundary:
        value, read = self._value(step, number - 1), self._read(step, number)
        own = value.tensors()
        tensors = [*own, *(tensor for each in read for tensor in each.tensors())]
        below = any(self.trains[: number - 1]) or any(step.wants)
        wanted = (
            step.wants
            if number == 1
            else [below and differentiable(t) and storage_key(t) not in step.inputs for t in tensors]
        )
        places = self.places[number - 1]
        aliases = {id(parameter): (parameter, _alias(parameter)) for _, parameter in places}
        found: list[torch.Tensor | None] = [None] * len(tensors)
        blocks = Blocks()
        with (
            torch.enable_grad(),
            self._surrounded(step, number),
            swapped([(place, aliases[id(parameter)][1]) for place, parameter in places], "_parameters"),
            self._packing(step, number, own, tensors, blocks),
        ):
            inputs = iter(_Door.apply(found, wanted, self.anchor, *tensors))
            entered = [each.with_tensors([next(inputs) for _ in each.tensors()]) for each in (value, *read)]
            result, skips = self._call(number, entered[0], entered[1:])
            out = flat(result)
        del own, tensors, inputs, entered, result
        results = out.tensors()
        output = out.with_tensors([t.detach() for t in results])
        bare = {name: each.with_tensors([t.detach() for t in each.tensors()]) for name, each in skips.items()}
        step.skips |= self._still_read(step, bare)
        step.saved[number] = Saved(
            found=found,
            edges=[(place, get_gradient_edge(t)) for place, t in enumerate(results) if t.requires_grad],
            skips=[
                ((name, place), get_gradient_edge(t))
                for name, each in skips.items()
                for place, t in enumerate(each.tensors())
                if t.requires_grad
            ],
            output=output if number < len(self.row.stages) else None,
            aliases=list(aliases.values()),
            blocks=blocks,
        )
        return output

    def _packing(
        self, step: _Step, number: int, own: list[torch.Tensor], tensors: list[torch.Tensor], blocks: Blocks
    ) -> contextlib.AbstractContextManager[Any]:
        """Return hooks by which a graph holds what moves as views of blocks, and looks its input up if that goes."""
        borrows, moves = number in self.lent, number in self.moved
        if not borrows and not moves:
            return contextlib.nullcontext()
        places = {storage_key(tensor): place for place, tensor in enumerate(own)} if borrows else {}
        stage = self.row.stages[number - 1]
        constant = {storage_key(t) for t in (*tensors, *stage.parameters(), *stage.buffers())} if moves else set()

        def pack(tensor: torch.Tensor) -> Any:
            key = storage_key(tensor) if movable(tensor) else None
            place = None if key is None else places.get(key)
            if place is not None:
                return Borrowed.of(tensor, place)
            if not moves or key is None or key in constant:
                return tensor.detach()  # an output that its own node holds would never go
            block = blocks.get(key)
            if block is None or block.key() != key:
                block = blocks[key] = Block(tensor)
            return View.of(tensor, block)

        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, View):
                return packed.tensor()
            if isinstance(packed, Borrowed):
                return packed.of_input(number, self._value(step, number - 1).tensors())
            return packed  # type: ignore[no-any-return]  # what pack has returned

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    @contextlib.contextmanager
    def _surrounded(self, step: _Step, number: int) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(step.autocast.entered())
            seen = step.seen.get(number)
            if seen is not None:
                stack.enter_context(seen.again())
                stack.enter_context(Buffers.scratch(seen))
            elif number in self.reruns:
                seen = step.seen[number] = Seen()
                seen.keep_random(step.devices)
                stack.enter_context(self.buffers[number - 1].watched(seen))
                stack.callback(seen.forget_undrawn)
            yield

    def _backward(self, step: _Step, number: int) -> None:
        saved = step.saved.pop(number, None)
        if saved is None:
            self._value(step, -1)
        assert saved is not None  # noqa: S101  the line above has raised
        gradient, step.gradient = step.gradient or [], None
        pairs = [(edge, gradient[place]) for place, edge in saved.edges]
        pairs += [(edge, step.skip_gradients.pop(key, None)) for key, edge in saved.skips]
        pairs = [(edge, given) for edge, given in pairs if given is not None]
        del gradient
        if pairs:
            torch.autograd.backward([edge for edge, _ in pairs], [given for _, given in pairs])
        for parameter, alias in saved.aliases:
            if alias.grad is not None:  # summed as autograd does, in the order of arrival
                before = step.made.get(id(parameter))
                step.made[id(parameter)] = alias.grad if before is None else before + alias.grad
        keys = [
            (name, place) for name in self.row.reads[number - 1] for place in range(len(step.skips[name].tensors()))
        ]
        count = len(saved.found) - len(keys)
        for key, arrived in zip(keys, saved.found[count:], strict=True):
            if arrived is not None:
                before = step.skip_gradients.get(key)
                step.skip_gradients[key] = _alone(arrived) if before is None else before + arrived
        step.left = number - 1
        for name in self.row.first_reads[number - 1]:
            del step.skips[name]
        step.gradient = saved.found[:count]


class _Node(torch.autograd.Function):
    """One stage in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, program: _Program, step: _Step, number: int, result: list[Boundary], *_: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.program, ctx.step, ctx.number = program, step, number
        result[:] = [program.forward(step, number)]
        out = tuple(tensor.detach() for tensor in result[0].tensors())
        ctx.mark_non_differentiable(*(t for t in out if not differentiable(t)))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedModel(
                "backward: got create_graph=True; allowed: first derivatives; take second ones of the plain model"
            )
        program, step, number = ctx.program, ctx.step, ctx.number
        try:
            found = program.backward(step, number, list(gradients))
        except BaseException:
            step.clear()
            raise
        made = [step.made.pop(id(parameter), None) for parameter in program.returned[number - 1]]
        return None, None, None, None, None, *made, *found


class _Door(torch.autograd.Function):
    """The way into a stage's graph: it keeps no tensor, and catches the gradients that come out."""

    @staticmethod
    def forward(ctx: Any, found: list[torch.Tensor | None], wanted: list[bool], _: Any, *tensors: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.found = found
        out = tuple(tensor.detach() for tensor in tensors)
        ctx.mark_non_differentiable(*(t for t, want in zip(out, wanted, strict=True) if not want))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.found[:] = gradients
        return None, None, None, *(None for _ in gradients)


def _alone(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient that is not a part of a larger one's storage: that would live as long."""
    return gradient.clone() if gradient.untyped_storage().nbytes() > gradient.nbytes else gradient


def _device(row: Row, tensors: Sequence[torch.Tensor]) -> torch.device:
    """Return the device that computes."""
    of_stages = (parameter.device for stage in row.stages for parameter in stage.parameters())
    return next(of_stages, tensors[0].device if tensors else torch.device("cpu"))


def _places(stage: nn.Module) -> list[tuple[Place, nn.Parameter]]:
    """Return where a stage's trained parameters stand, each as often as it does."""
    return [
        ((module, name), parameter)
        for module in stage.modules()
        for name, parameter in module._parameters.items()  # noqa: SLF001  named_parameters would leave out the second use
        if parameter is not None and parameter.requires_grad
    ]


def _alias(parameter: nn.Parameter) -> nn.Parameter:
    """Return a leaf of the same storage, whose gradient is its own."""
    return nn.Parameter(parameter.detach())

"""The interpreter: a plan's operations carried out stage by stage, with the gradients of plain autograd to the bit.

Each stage is one node of autograd. Its forward does the operations up to the stage's first forward, its backward those
up to the stage's own; so a gradient lives no longer than the plan says. Parameters are inputs of the node: their
gradients come out of it as out of any other, so that hooks (those of DDP too) fire once, in order. What is kept lies in
the step's store, from which nothing goes but by an operation. Reruns see the random numbers, autocast and buffers of
the first run.
"""

import contextlib
import copy
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from trainwright.errors import ChainError, UnsupportedModel
from trainwright.memory.execute.stages import Row
from trainwright.memory.execute.surroundings import Autocast, Buffers, Place, Seen, swapped
from trainwright.memory.operations import Kind, Operation, Value

__all__ = ["carried_out"]

Check = Callable[[tuple[Any, ...]], None]


def carried_out(
    model: nn.Module,
    row: Row,
    operations: Sequence[Operation] | None,
    *,
    check: Check | None = None,
) -> nn.Module:
    """Return a module that trains as `operations` say and shares everything with `model`.

    Same class, state_dict keys and order of parameters. In evaluation mode, or without gradients, it runs as the model
    itself. Gradients, outputs, buffers and the state of random generators after a step are those of the model, bit by
    bit. Without operations it runs as the model itself always. `check` sees the arguments of the first stage before
    they are used. Raises `ChainError` if the operations are not one forward and one backward of each stage of the row.
    """
    program = None if operations is None else _Program(row, operations)
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
        return plain(module, *args, **kwargs) if program is None else program.run(values)

    planned.forward = forward
    return planned


@dataclass(slots=True)
class _Boundary:
    """What one stage hands to the next: the leaves of a tree."""

    leaves: list[Any]
    spec: TreeSpec

    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> "_Boundary":
        new = iter(tensors)
        return _Boundary([next(new) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves], self.spec)


@dataclass(slots=True)
class _Saved:
    """The graph of one run of a stage with gradients."""

    found: list[torch.Tensor | None]  # gradients of its input, once its backward has run
    edges: list[tuple[int, GradientEdge]]  # place among the output's tensors
    output: _Boundary | None  # without the graph; of the last stage nobody but the caller reads it
    aliases: list[tuple[nn.Parameter, torch.Tensor]]


@dataclass(slots=True)
class _Step:
    """The store of one forward and backward pass."""

    autocast: Autocast
    wants: list[bool]  # whether a gradient is wanted of each tensor of the input
    bare: dict[int, _Boundary] = field(default_factory=dict)
    saved: dict[int, _Saved] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)
    made: dict[int, torch.Tensor] = field(default_factory=dict)  # gradients not handed out yet, by id of the parameter
    gradient: list[torch.Tensor | None] | None = None  # of the output of the stage whose backward comes next
    devices: tuple[int, ...] = ()
    inputs: set[int] = field(default_factory=set)  # storages of inputs that want no gradient, wherever they ride to

    def clear(self) -> None:
        self.bare.clear()
        self.saved.clear()
        self.made.clear()
        self.gradient = None


class _Program:
    """Operations sorted to the nodes that do them, and what is known of each stage."""

    def __init__(self, row: Row, operations: Sequence[Operation]) -> None:
        self.stages, self.tuples = row.stages, row.tuples
        count = len(row.stages)
        self.forwards, self.backwards = _sorted(operations, count)
        runs = Counter(op.stage for op in operations if op.kind in _FORWARDS)
        self.reruns = {stage for stage, times in runs.items() if times > 1}
        self.lent = _lent(operations)
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

    def run(self, values: tuple[Any, ...]) -> Any:
        boundary = _Boundary(*tree_flatten(values))
        tensors = boundary.tensors()
        devices = tuple({t.device.index for t in tensors if t.device.type == "cuda"})
        step = _Step(Autocast.now(), [t.requires_grad for t in tensors], devices=devices)
        step.bare[0] = boundary.with_tensors([t.detach() for t in tensors])
        step.inputs = {_storage(t) for t in tensors if not t.requires_grad}
        out: list[_Boundary] = []
        for number in range(1, len(self.stages) + 1):
            returned = self.returned[number - 1]
            tensors = list(_Node.apply(self, step, number, out, self.anchor, *returned, *tensors))
        result = out[0].with_tensors(tensors)
        return tree_unflatten(result.leaves, result.spec)

    def forward(self, step: _Step, number: int) -> _Boundary:
        """Do what comes up to the first forward of a stage; return its output."""
        out = None
        for operation in self.forwards[number - 1]:
            made = self.do(step, operation)
            out = made if operation.stage == number and made is not None else out
        assert out is not None  # noqa: S101  the segment holds the stage's forward
        return out

    def backward(self, step: _Step, number: int, gradient: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Do what comes up to the backward of a stage; return the gradients of its input."""
        step.gradient = gradient
        for operation in self.backwards[number - 1]:
            self.do(step, operation)
        found, step.gradient = step.gradient, None
        return found

    def do(self, step: _Step, operation: Operation) -> _Boundary | None:
        """Do one operation; return the output of a forward."""
        number = operation.stage
        if operation.kind is Kind.FORWARD_ALL:
            return self._with_graph(step, number)
        if operation.kind in _FORWARDS:
            with torch.no_grad(), self._surrounded(step, number):
                out = self._call(number, self._value(step, number - 1))
            step.bare[number] = _flat(out)
            if operation.kind is Kind.FORWARD_DROP:
                step.bare.pop(number - 1, None)
            return step.bare[number]
        if operation.kind is Kind.BACKWARD:
            self._backward(step, number)
        elif operation.kind is Kind.DELETE:
            (step.bare if operation.value is Value.OUTPUT else step.saved).pop(number, None)
        return None

    def _value(self, step: _Step, number: int) -> _Boundary:
        if number in step.bare:
            return step.bare[number]
        saved = step.saved.get(number)
        if saved is not None and saved.output is not None:
            return saved.output
        raise UnsupportedModel(
            "backward: got a second pass over one forward; allowed: one; run the forward again, or use the plain model"
        )

    def _call(self, number: int, value: _Boundary) -> Any:
        arguments = tree_unflatten(value.leaves, value.spec)
        one = number > 1 and not self.tuples  # a sequence's stages take what the one before has made
        return self.stages[number - 1](arguments) if one else self.stages[number - 1](*arguments)

    def _with_graph(self, step: _Step, number: int) -> _Boundary:
        value = self._value(step, number - 1)
        tensors = value.tensors()
        below = any(self.trains[: number - 1]) or any(step.wants)
        wanted = (
            step.wants
            if number == 1
            else [below and _differentiable(t) and _storage(t) not in step.inputs for t in tensors]
        )
        places = self.places[number - 1]
        aliases = {id(parameter): (parameter, _alias(parameter)) for _, parameter in places}
        found: list[torch.Tensor | None] = [None] * len(tensors)
        with (
            torch.enable_grad(),
            self._surrounded(step, number),
            swapped([(place, aliases[id(parameter)][1]) for place, parameter in places], "_parameters"),
            self._lending(step, number, tensors),
        ):
            inputs = _Door.apply(found, wanted, self.anchor, *tensors)
            out = _flat(self._call(number, value.with_tensors(inputs)))
        del tensors, inputs
        results = out.tensors()
        output = out.with_tensors([t.detach() for t in results])
        step.saved[number] = _Saved(
            found=found,
            edges=[(place, get_gradient_edge(t)) for place, t in enumerate(results) if t.requires_grad],
            output=output if number < len(self.stages) else None,
            aliases=list(aliases.values()),
        )
        return output

    def _lending(self, step: _Step, number: int, tensors: list[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
        """Return hooks by which a graph looks its input up in the store, if that goes and is made again meanwhile."""
        if number not in self.lent:
            return contextlib.nullcontext()
        places = {_storage(tensor): place for place, tensor in enumerate(tensors)}

        def pack(tensor: torch.Tensor) -> Any:
            place = places.get(_storage(tensor))
            if place is None:
                return tensor.detach()  # an output that its own node holds would never go
            return _Borrowed(
                place, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()), _storage(tensor),
                tensor._version,  # noqa: SLF001  autograd's own check sees no packed tensors
            )  # fmt: skip

        def unpack(packed: Any) -> torch.Tensor:
            if not isinstance(packed, _Borrowed):
                return packed  # type: ignore[no-any-return]  # what pack has returned
            tensor = self._value(step, number - 1).tensors()[packed.place]
            if _storage(tensor) == packed.storage and tensor._version != packed.version:  # noqa: SLF001  as above
                raise UnsupportedModel(
                    f"stage {number}: its input was changed in place after it was read; allowed: stages that write no "
                    "value that another has made; let the layer return a new tensor (inplace=False)"
                )
            return tensor.view(packed.dtype).as_strided(packed.size, packed.stride, packed.offset)

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
        pairs = [(edge, gradient[place]) for place, edge in saved.edges if gradient[place] is not None]
        del gradient
        if pairs:
            torch.autograd.backward([edge for edge, _ in pairs], [given for _, given in pairs])
        for parameter, alias in saved.aliases:
            if alias.grad is not None:  # summed as autograd does, in the order of arrival
                before = step.made.get(id(parameter))
                step.made[id(parameter)] = alias.grad if before is None else before + alias.grad
        step.gradient = saved.found


class _Node(torch.autograd.Function):
    """One stage in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, program: _Program, step: _Step, number: int, result: list[_Boundary], *_: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.program, ctx.step, ctx.number = program, step, number
        result[:] = [program.forward(step, number)]
        out = tuple(tensor.detach() for tensor in result[0].tensors())
        ctx.mark_non_differentiable(*(t for t in out if not _differentiable(t)))
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


class _Borrowed(NamedTuple):
    """A view of a stage's input that its graph needs for its backward."""

    place: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    storage: int
    version: int


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  the only identity of a storage


def _differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


_FORWARDS = frozenset({Kind.FORWARD_ALL, Kind.FORWARD_KEEP, Kind.FORWARD_DROP})


def _flat(out: Any) -> _Boundary:
    return _Boundary(*tree_flatten(out))


def _lent(operations: Sequence[Operation]) -> set[int]:
    """Return the stages whose input is dropped between a forward with gradients and the backward."""
    found: set[int] = set()
    waiting: set[int] = set()  # for their backward
    for operation in operations:
        number = operation.stage
        if operation.kind is Kind.FORWARD_ALL:
            waiting.add(number)
        elif operation.kind is Kind.BACKWARD:
            waiting.discard(number)
        elif operation.kind is Kind.FORWARD_DROP and number in waiting:
            found.add(number)
        elif operation.kind is Kind.DELETE:
            if operation.value is Value.SAVED:
                waiting.discard(number)
            if number + 1 in waiting:
                found.add(number + 1)
    return found


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


def _sorted(operations: Sequence[Operation], count: int) -> tuple[list[list[Operation]], list[list[Operation]]]:
    """Return the operations of each stage's node, forward and backward; those of the loss stage are the caller's."""
    forwards: list[list[Operation]] = []
    backwards: list[list[Operation]] = [[] for _ in range(count)]
    segment: list[Operation] = []
    below = count
    for operation in operations:
        if operation.stage > count:
            if operation.kind is Kind.FORWARD_ALL and forwards:
                forwards[-1] += segment
                segment = []
            continue
        if operation.kind in {Kind.OFFLOAD, Kind.PREFETCH}:
            raise ChainError(f"operation: got {operation}; allowed: plans without offloading, for this executor")
        segment.append(operation)
        if len(forwards) < count and operation.kind in _FORWARDS and operation.stage == len(forwards) + 1:
            forwards.append(segment)
            segment = []
        elif operation.kind is Kind.BACKWARD and operation.stage == below:
            backwards[below - 1] = segment
            segment, below = [], below - 1
    if below or len(forwards) < count:
        missing = f"backward of stage {below}" if below else f"forward of stage {len(forwards) + 1}"
        raise ChainError(f"operations: got no {missing}; allowed: a forward and a backward of each of {count} stages")
    backwards[0] += segment
    return forwards, backwards

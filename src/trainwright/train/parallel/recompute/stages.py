"""Stages cut from a module: callables in a row that share its parameters and do together what it does.

A model is traced symbolically, of a (nested) `nn.Sequential` the row of its layers, and cut where a single value is
alive between what came before and the rest, the model's own inputs apart: those are there anyway, and ride along. A
stage begins with a layer that has parameters: what follows it (an activation, a pooling, a write in place) stays with
it, as autograd then need not hold what lies between them.

A part between two cuts that holds much of the model is cut further, where a single value is alive beside those that
skip many layers (a U-Net's levels, a mask made from the input): these ride along with it, stage by stage.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import fx, nn

from trainwright.errors import UnsupportedModel
from trainwright.train.parallel.recompute.tracing import AttributeWatch, CallForm, PartTracer, Tracer, has_hooks
from trainwright.train.parallel.recompute.trees import tensors_of
from trainwright.train.parallel.recompute.values import apart_in_backward

__all__ = ["StageRow", "check_trains", "cut_at", "split_model", "whole_row"]

# Operations with parameters, from which on a value skips them rather than being used by them.
_LONG = 8
# Of a model's operations with parameters.
_MUCH = 0.25


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """The stages of a model, in order; each is called with what the one before returns."""

    stages: tuple[nn.Module, ...]
    names: tuple[str, ...]
    bind: Callable[..., tuple[Any, ...] | None]
    """From the arguments of the model's forward to those of the first stage; None for a call of another form."""
    again: Callable[[nn.Module, CallForm], "StageRow"]
    """Cuts a model in the same way, for calls of another form, or once it has changed."""
    whole: str = ""
    """Why the model is one stage, if it could not be cut."""
    rides: tuple[tuple[int, ...], ...] = ()
    """Of what each stage hands on, the places of the values that skip stages; () if there are none at all."""
    watch: AttributeWatch = field(default_factory=AttributeWatch)
    """What the stages depend on beside their modules."""
    own: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = ()
    """Parameters and buffers that stages use themselves: where a stage has them, where the model has them, the name."""

    def through(self, value: Any) -> Any:
        """Return what the last stage makes of the arguments of the first."""
        for number in range(1, len(self.stages) + 1):
            value = self.run(number, value)
        return value

    def riding(self, number: int, value: Any) -> list[torch.Tensor]:
        """Return the tensors that skip stages among what a stage (from 1) has handed on."""
        return tensors_of([value[place] for place in self.rides[number - 1]]) if self.rides else []

    def refresh(self) -> None:
        """Let stages use the parameters and buffers that the model has now."""
        for here, there, name in self.own:
            here[name] = there[name]

    def run(self, number: int, value: Any) -> Any:
        """Call a stage (from 1) with what the one before returned."""
        stage = self.stages[number - 1]
        # Not called: it is a container of ours without hooks, and torch.fx looks long for where an exception began.
        return stage.forward(*value)


def split_model(model: nn.Module, form: CallForm | None = None, *, skips: bool = True, deep: bool = True) -> StageRow:
    """Return the stages of a model in training mode, for calls of a form; by default one with what has no default.

    A model that cannot be traced is one stage, and `StageRow.whole` says why. Without `skips` parts that long skips
    hold together stay whole. If not `deep`, no module that it calls is looked into. Raises `UnsupportedModel` in
    evaluation mode and for parameters that have no shape yet.
    """
    check_trains(model)
    # The layers of a sequence are its stages, as they are.
    row = type(model) is nn.Sequential and not has_hooks(model)
    tracer = Tracer(form or CallForm.default(model), deep=deep and not row)
    try:
        graph = tracer.trace(model)
    except Exception as error:  # noqa: BLE001  tracing fails in as many ways as models are written
        said = str(error).strip().splitlines() or [type(error).__name__]
        return whole_row(model, why=f"{type(model).__name__} cannot be traced: {said[0]}")
    return _cut(tracer.root, graph, tracer, skips=skips, deep=deep)


def whole_row(model: nn.Module, _: CallForm | None = None, *, why: str) -> StageRow:
    """Return a model as one stage."""
    return StageRow(
        stages=(_Whole(model),),
        names=("model",),
        bind=lambda *args, **kwargs: (args, kwargs),
        whole=why,
        again=partial(whole_row, why=why),
    )


def cut_at(model: nn.Module, paths: Sequence[str]) -> list[nn.Module]:
    """Return parts of a model, the first from its inputs, the others from these modules on; they share its modules.

    Modules in which no part begins are called as they are. A part hands one value on. Raises `UnsupportedModel` where a
    model cannot be cut so.
    """
    tracer = PartTracer(paths)
    try:
        graph = tracer.trace(model)
    except Exception as error:
        raise UnsupportedModel(f"{type(model).__name__} cannot be traced ({error})") from error
    inputs, nodes, output = _operations_of(graph)
    starts, carried = [0], [inputs]
    for path in paths:
        # The part begins where the model first calls the module of that path ..
        place = next((at for at, node in enumerate(nodes) if at >= starts[-1] and _is_below(node, path)), -1)
        if place <= starts[-1]:
            raise UnsupportedModel(f"{type(model).__name__} does not call {path!r}, or not where a part could begin")
        found = _alive_at(nodes, inputs, place)
        at, alive = place, found
        # .. or somewhat before, where a single value goes to the rest.
        while len(alive) != 1 and at > starts[-1] + 1 and not _begins(model, nodes[at - 1]):
            # What has no parameters may as well be on this side.
            at -= 1
            alive = _alive_at(nodes, inputs, at)
        if len(alive) != 1:
            names = ", ".join(node.name for node in found) or "nothing"
            raise UnsupportedModel(f"what goes to {path!r} and behind it is not one value, but {names}")
        starts.append(at)
        carried.append(alive)
    results = [*(value for (value,) in carried[1:]), output.args[0]]
    parts = [nodes[start:stop] for start, stop in pairwise([*starts, len(nodes)])]
    return [_stage(model, *each) for each in zip(carried, parts, results, strict=True)]


def _operations_of(graph: fx.Graph) -> tuple[list[fx.Node], list[fx.Node], fx.Node]:
    """Return the inputs of a traced model, its operations in order, and its output."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    nodes = [node for node in graph.nodes if node.op not in {"placeholder", "get_attr", "output"}]
    (output,) = (node for node in graph.nodes if node.op == "output")
    return inputs, nodes, output


def _alive_at(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], place: int) -> list[fx.Node]:
    """Return what is made before a place and read from there on."""
    after = {*nodes[place:]}
    return [
        each for each in (*inputs, *nodes[:place]) if any(user in after or user.op == "output" for user in each.users)
    ]


def _is_below(node: fx.Node, path: str) -> bool:
    """Whether an operation calls a module, one in it, or the one that begins with it."""
    target = f"{node.target}."
    return node.op == "call_module" and (target.startswith(f"{path}.") or f"{path}.".startswith(target))


def check_trains(model: nn.Module) -> None:
    """Raise `UnsupportedModel` in evaluation mode, for a forward that is not its class's, and lazy parameters."""
    if not model.training:
        raise UnsupportedModel(
            "model: got one in evaluation mode; allowed: training mode, which plans are for; call model.train()"
        )
    # Stages run what the class defines and would pass by a forward on the object. Our own says that it is planned.
    if not getattr(vars(model).get("forward"), "planned", "forward" not in vars(model)):
        raise UnsupportedModel(
            f"model, forward: got one that was set on the object; allowed: that of its class, {type(model).__name__}; "
            "make it a method of a subclass, or of a module around it"
        )
    # A lazy parameter has no bytes to plan with.
    lazy = next(
        (name for name, each in model.named_parameters() if isinstance(each, nn.parameter.UninitializedParameter)), None
    )
    if lazy is not None:
        raise UnsupportedModel(
            f"model, {lazy}: got a parameter without a shape; allowed: known shapes; run the model once before"
        )


class _Whole(nn.Module):
    """A model called with the arguments that were packed for it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return type(self.model).forward(self.model, *args, **kwargs)


def _cut(model: nn.Module, graph: fx.Graph, tracer: Tracer, *, skips: bool, deep: bool) -> StageRow:
    inputs, nodes, output = _operations_of(graph)
    places = {node: place for place, node in enumerate(nodes)}
    # Of each value its last reader. The result of the model counts as read behind all operations.
    last = {node: max((places.get(user, len(nodes)) for user in node.users), default=-1) for node in (*inputs, *nodes)}
    main = _find_cuts(model, nodes, last, skips=skips)
    starts = [0, *main]
    # What else is read from a cut on rides along: inputs of the model, and what skips stages.
    carried = [inputs, *([node, *_others_alive(nodes, inputs, at, node)] for at, node in main.items())]
    parts = [nodes[start:stop] for start, stop in pairwise([*starts, len(nodes)])]
    skipping = {node for at, main_node in main.items() for node in _others_alive(nodes, [], at, main_node)}
    stages, names = [], []
    for number, part in enumerate(parts):
        result: Any = output.args[0] if number + 1 == len(parts) else tuple(carried[number + 1])
        stages.append(_stage(model, carried[number], part, result, apart=skipping))
        first = next((node for node in part if _begins(model, node)), part[0])
        names.append(str(first.target) if first.op == "call_module" else first.name)
    rides = tuple(tuple(at for at, node in enumerate(each) if node in skipping) for each in [*carried[1:], []])
    return StageRow(
        stages=tuple(stages),
        names=tuple(names),
        bind=tracer.form.values,
        again=partial(split_model, skips=skips, deep=deep),
        rides=rides if skipping else (),
        watch=AttributeWatch([model, *tracer.looked_into, *_uncalled_modules(model)]),
        own=tuple(each for stage in stages for each in _direct_tensors(model, stage)),
    )


def _uncalled_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that are not called themselves."""
    return (each for each in model.modules() if isinstance(each, nn.ModuleList | nn.ModuleDict))


def _direct_tensors(model: nn.Module, stage: fx.GraphModule) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """Yield the parameters and buffers that a stage uses itself, not by a module's call."""
    for path in dict.fromkeys(str(node.target) for node in stage.graph.nodes if node.op == "get_attr"):
        prefix, _, name = path.rpartition(".")
        if not hasattr(model, prefix.partition(".")[0]) and prefix:
            continue
        here, there = stage.get_submodule(prefix), model.get_submodule(prefix)
        # The graph holds them in a module of its own, which does not see what the model is given later.
        for mine, theirs in ((here._parameters, there._parameters), (here._buffers, there._buffers)):  # noqa: SLF001
            if here is not there and name in mine and name in theirs:
                yield mine, theirs, name


def _find_cuts(
    model: nn.Module, nodes: Sequence[fx.Node], last: Mapping[fx.Node, int], *, skips: bool
) -> dict[int, fx.Node]:
    """Return the places where stages begin but the first, each with the value that goes there from one to the next."""
    begins = [_begins(model, node) for node in nodes]
    # Operations with parameters before a place.
    before = [0, *accumulate(begins)]
    born = {node: place for place, node in enumerate(nodes)}
    alive: set[fx.Node] = set()
    single: dict[int, fx.Node] = {}
    # Places where one value is alive beside those that skip many layers.
    further: dict[int, fx.Node] = {}
    for place, node in enumerate(nodes):
        alive = {each for each in alive if last[each] >= place}
        if place and begins[place] and alive:
            # Short: fewer than _LONG operations with parameters between the maker and the last reader.
            short = [each for each in alive if before[min(last[each], len(nodes))] - before[born[each] + 1] < _LONG]
            if len(alive) == 1:
                (single[place],) = alive
            # At most one goes on to the next layers; the others skip many, and wait beside the row.
            elif len(short) < 2:
                further[place] = short[0] if short else max(alive, key=lambda each: born[each])
        alive.add(node)
    if skips:
        ends = [0, *single, len(nodes)]
        for start, stop in pairwise(ends):
            inside = before[stop] - before[start]
            if inside >= _LONG and inside >= _MUCH * before[-1]:
                single |= {place: node for place, node in further.items() if start < place < stop}
    return dict(sorted(single.items()))


def _others_alive(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], place: int, main: fx.Node) -> Iterator[fx.Node]:
    """Yield what is alive at a place beside the value that goes there from one stage to the next."""
    return (each for each in _alive_at(nodes, inputs, place) if each is not main)


def _begins(model: nn.Module, node: fx.Node) -> bool:
    """Return whether an operation has parameters."""
    if node.op == "call_module":
        return _has_parameters(model.get_submodule(str(node.target)))
    return any(each.op == "get_attr" for each in node.all_input_nodes)


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _stage(
    model: nn.Module,
    carried: Sequence[fx.Node],
    nodes: Sequence[fx.Node],
    result: Any,
    apart: Collection[fx.Node] = (),
) -> fx.GraphModule:
    """Return the part of a traced model from the values that it takes to a tree of those that it returns.

    Values of `apart` that the part reads have a gradient of their own.
    """
    graph = fx.Graph()
    made = {node: graph.placeholder(node.name) for node in carried}
    read = {each for node in nodes for each in node.all_input_nodes}
    for node in carried:
        if node in apart and node in read:
            made[node] = graph.call_function(apart_in_backward, (made[node],))

    def known(node: fx.Node) -> fx.Node:
        # Parameters and constants are at hand everywhere.
        if node not in made and node.op == "get_attr":
            made[node] = graph.node_copy(node, known)
        return made[node]

    for node in nodes:
        made[node] = graph.node_copy(node, known)
    graph.output(fx.map_arg(result, known))
    graph.lint()
    return fx.GraphModule(model, graph)

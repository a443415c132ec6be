"""A model cut into parts that hand one value on: a graph of operations, with modules that no part begins in whole."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn

from trainwright.errors import UnsupportedModel
from trainwright.train.parallel.recompute.module_state import as_before
from trainwright.train.parallel.recompute.run_context import Autocast

__all__ = ["cut_at", "modules_above"]


def cut_at(model: nn.Module, paths: Sequence[str]) -> list[nn.Module]:
    """Return parts of a model, the first from its inputs, the others from these modules on; they share its modules.

    Modules in which no part begins are called as they are. A part hands one value on. Raises `UnsupportedModel` where a
    model cannot be cut so.
    """
    tracer = _PartTracer(paths)
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


class _PartTracer(fx.Tracer):
    """Looks only into modules in which a part begins."""

    # Operations on buffers become part of the graph, and are not done while it is made.
    proxy_buffer_attributes = True

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()
        self._above = modules_above(paths)
        self._modes = _current_modes()

    def trace(self, root: nn.Module, concrete_args: dict[str, Any] | None = None) -> fx.Graph:  # type: ignore[override]
        """Return the graph of a module's forward; raise if there is none."""
        # torch.fx keeps tensors that a forward makes of nothing as attributes of the root.
        root = copy.copy(root)
        with _refusing_traces(root):
            return super().trace(root, concrete_args)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Look into a module, or leave it one operation."""
        if self.is_leaf_module(m, self.path_of_module(m)):
            return super().call_module(m, forward, args, kwargs)
        with _refusing_traces(m):
            return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002  torch's signature
        """Return whether no part begins in a module."""
        return module_qualified_name not in self._above

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Add an operation, which will run as gradients and autocast stand outside."""
        if _current_modes() != self._modes:
            raise _NotInGraphError("it switches gradients or autocast for a part of itself")
        return super().create_node(*args, **kwargs)


class _NotInGraphError(Exception):
    """A forward does what a graph of operations does not."""


def modules_above(paths: Sequence[str]) -> set[str]:
    """Return the paths of the modules that these are in, the model itself ("") apart."""
    return {path.rsplit(".", up)[0] for path in paths for up in range(1, path.count(".") + 1)}


def _current_modes() -> tuple[bool, Autocast]:
    return torch.is_grad_enabled(), Autocast.now()


@contextmanager
def _refusing_traces(module: nn.Module) -> Iterator[None]:
    """Raise if what happens inside has left traces in a module or in generators, and remove them."""
    with as_before(module) as is_unchanged:
        yield
        if not is_unchanged():
            raise _NotInGraphError("it sets attributes, or draws random numbers, that are no part of a graph")


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
) -> fx.GraphModule:
    """Return the part of a traced model from the values that it takes to a tree of those that it returns."""
    graph = fx.Graph()
    made = {node: graph.placeholder(node.name) for node in carried}

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

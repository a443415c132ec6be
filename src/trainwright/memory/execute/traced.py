"""The joint graph of a compiled step as a `Step`, and a choice carried into the graph by tags for torch's partitioner.

What forward saves is tagged MUST_SAVE, what backward runs again MUST_RECOMPUTE (`torch.utils.checkpoint.
CheckpointPolicy`), as selective checkpointing does. Operations that draw random numbers are never run again.
"""

import contextlib
import hashlib
import operator
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import fx
from torch.utils._mode_utils import no_dispatch
from torch.utils.checkpoint import CheckpointPolicy

from trainwright.errors import UnsupportedModel
from trainwright.kernels import Flags
from trainwright.memory.execute.allocated import allocated_bytes
from trainwright.memory.execute.counted import total_bytes
from trainwright.memory.execute.trees import leaves_of, map_only, tensors_of
from trainwright.memory.saving import Choice, Step

__all__ = ["Traced"]

_REPEATS = 3
_LETS_GO = hasattr(torch.autograd.Function, "boxed_grads_call")
"""Whether gradients that arrive go with their last use, as in torch 2.13; 2.11 holds them to the end of backward."""
_FUSED = 0.25  # of an elementwise operation's time alone, once it is fused with its readers


class Traced:
    """A joint graph of forward and backward, with its nodes in the order of `step`.

    Not `measured`, its seconds and scratch bytes are all 0.
    """

    def __init__(
        self, graph: fx.Graph, forward_outputs: int, *, fuses: bool, granule: int, measured: bool = True
    ) -> None:
        symbolic = next((n for n in graph.nodes if isinstance(n.meta.get("val"), torch.SymInt | torch.SymFloat)), None)
        if symbolic is not None:
            raise UnsupportedModel(
                f"model: got a size that is known only when it runs ({symbolic.name}); allowed with backend='compile': "
                "models whose shapes follow from the sample's; take backend='eager'"
            )
        (results,) = (node for node in graph.nodes if node.op == "output")
        outputs = [each if isinstance(each, fx.Node) else None for each in leaves_of(results.args[0])]
        handed = [each for each in outputs if each is not None]
        ahead = _ancestors(each for each in outputs[:forward_outputs] if each is not None)
        # What else an operation of the forward makes is there from then on: masks, means and deviations.
        ahead |= {node for node in graph.nodes if node.target is operator.getitem and node.args[0] in ahead}
        placed = [node for node in graph.nodes if node.op != "output"]
        tangents = [node for node in placed if node.op == "placeholder" and "tangents" in str(node.target)]
        held = [node for node in placed if node.op in {"placeholder", "get_attr"} and node not in tangents]
        early = [node for node in placed if node in ahead and node not in held]
        late = [node for node in placed if node not in ahead and node not in held and node not in tangents]
        self.nodes: list[fx.Node] = [*held, *early, *tangents, *late]
        self._place = {node: place for place, node in enumerate(self.nodes)}
        arriving = set(tangents)
        trunk = {*tangents, *(each for each in outputs[forward_outputs:] if each is not None)}
        for node in late:
            if any(each in arriving for each in node.all_input_nodes):
                arriving.add(node)
        trunk |= arriving
        storage, kept, owners = self._storages(set(held), granule)
        passing = list(kept)
        if fuses:
            for node in owners:
                if _fusible(node) and all(_fusible(user) or _reduces(user) for user in node.users):
                    passing[storage[self._place[node]]] = 0
        first = np.cumsum([0, *(len(node.all_input_nodes) for node in self.nodes)])
        alone = _Alone(granule, fuses=fuses)
        self.step = Step(
            forward=len(held) + len(early),
            first=first,
            inputs=np.array([self._place[each] for node in self.nodes for each in node.all_input_nodes], np.int64),
            storage=np.array(storage, np.int64),
            kept=np.array([*kept, 0], np.int64),
            passing=np.array([*passing, 0], np.int64),
            scratch=np.array([alone.scratch(node) if measured else 0 for node in self.nodes], np.int64),
            seconds=np.array([alone.seconds(node) if measured and node in ahead else 0.0 for node in self.nodes]),
            fixed=self._flags({*held, *tangents}),
            pinned=self._flags({node for node in early if _pinned(node)}),
            keepable=self._flags({node for node in early if node in owners}),
            trunk=self._flags(trunk),
            handed=self._flags([*handed, *([] if _LETS_GO else tangents)]),
        )

    @cached_property
    def digest(self) -> str:
        """Hash of the graph: what each node calls, by which name, on which others, and what shapes it makes."""
        lines = [
            f"{each.name} {each.op} {_called(each)} {each.args} {each.kwargs} {_shapes(each)}" for each in self.nodes
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def module(self, place: int) -> str:
        """Return the path of the module whose forward makes a node; "" where torch does not say."""
        stack = self.nodes[place].meta.get("nn_module_stack") or {}
        path = next((str(path) for path, _ in reversed(stack.values())), "")
        return path.partition("]")[2].lstrip(".")  # behind the name that the model has where it is called

    def named(self, names: set[str]) -> Flags:
        """Return the forward's nodes of these names."""
        return self._flags({node for node in self.nodes[: self.step.forward] if node.name in names})

    def tag(self, choice: Choice) -> None:
        """Tell torch's partitioner."""
        for place, node in enumerate(self.nodes[: self.step.forward]):
            node.meta.pop("recompute", None)
            if choice.saved[place]:
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            elif choice.again[place] and node.op == "call_function":
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            node.meta["ac_graph_id"] = 0  # one region: nothing is saved for being at the border of two

    def _flags(self, nodes: Any) -> Flags:
        flags = np.zeros(len(self.nodes), np.bool_)
        flags[[self._place[node] for node in nodes]] = True
        return flags

    def _storages(self, held: set[fx.Node], granule: int) -> tuple[list[int], list[int], set[fx.Node]]:
        """Return the storage of each node, bytes of each storage, and the node of each that makes it."""
        known: dict[int, int] = {}
        for node in held:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                known[value.untyped_storage()._cdata] = -1  # noqa: SLF001  the identity of a storage
        storage: list[int] = []
        kept: list[int] = []
        owners: set[fx.Node] = set()
        for node in self.nodes:
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
                storage.append(-1)
                continue
            key = value.untyped_storage()._cdata  # noqa: SLF001  as above
            if key not in known:
                known[key] = len(kept)
                kept.append(-(-value.untyped_storage().nbytes() // granule) * granule)
                owners.add(node)
            storage.append(known[key])
        return storage, kept, owners


def _ancestors(nodes: Iterator[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def _called(node: fx.Node) -> str:
    if isinstance(node.target, str | torch._ops.OpOverload):  # noqa: SLF001  the type of known operations
        return str(node.target)
    return getattr(node.target, "__name__", type(node.target).__name__)


def _tags(node: fx.Node) -> list[torch.Tag]:
    return list(getattr(node.target, "tags", ()))


def _pinned(node: fx.Node) -> bool:
    """Return whether a node is not to be run again, or is a part of what such a one makes."""
    if node.target is operator.getitem:
        return _pinned(node.all_input_nodes[0])
    random = torch.Tag.nondeterministic_seeded in _tags(node) or "inductor_seed" in str(node.target)
    return random or not isinstance(node.target, torch._ops.OpOverload)  # noqa: SLF001  the type of known operations


def _fusible(node: fx.Node) -> bool:
    return torch.Tag.pointwise in _tags(node) or getattr(node.target, "is_view", False) or _DRAWS in str(node.target)


def _reduces(node: fx.Node) -> bool:
    return getattr(torch.Tag, "reduction", None) in _tags(node) or str(node.target).split(".")[1:2] in _REDUCTIONS


_DRAWS = "inductor_random"
_REDUCTIONS = (["sum"], ["mean"], ["var_mean"], ["amax"], ["amin"], ["var"])


class _Alone:
    """Seconds and scratch bytes of operations alone, each distinct one measured once, on tensors of zeros.

    Of what is compiled together with its readers no kernel of torch's runs: it has no scratch.
    """

    def __init__(self, granule: int, *, fuses: bool) -> None:
        self._seconds: dict[str, float] = {}
        self._scratch: dict[str, int] = {}
        self._granule, self._fuses = granule, fuses

    def seconds(self, node: fx.Node) -> float:
        if not _runs(node):
            return 0.0
        known = _once(self._seconds, node, self._timed)
        return known * (_FUSED if self._fuses and _fusible(node) else 1.0)

    def scratch(self, node: fx.Node) -> int:
        if node.op != "call_function" or (self._fuses and (_fusible(node) or _reduces(node))):
            return 0
        value = node.meta.get("val")  # parts of a tuple count once they are taken out of it: until then here
        parts = total_bytes(tensors_of(value), self._granule) if isinstance(value, tuple | list) else 0
        return parts + (_once(self._scratch, node, self._taken) if _runs(node) else 0)

    def _timed(self, node: fx.Node) -> float:
        try:
            with _call(node) as call:
                call()
                found = []
                for _ in range(_REPEATS):
                    _wait(node)
                    start = time.perf_counter()
                    call()
                    _wait(node)
                    found.append(time.perf_counter() - start)
                return min(found)
        except _REFUSALS:  # what zeros cannot go through costs what its bytes do
            return _nbytes(node) / 1e10

    def _taken(self, node: fx.Node) -> int:
        made: list[Any] = []
        try:
            with _call(node) as call:
                call()  # what stays from a first call, such as a library's workspace, is no scratch
                taken = allocated_bytes(lambda: made.append(call()), cuda=_on_cuda(node))
        except _REFUSALS:
            return 0
        return max(0, taken - total_bytes(tensors_of(made), self._granule))


_REFUSALS = (RuntimeError, IndexError, TypeError)
_Number = TypeVar("_Number", int, float)


def _once(known: dict[str, _Number], node: fx.Node, measure: Callable[[fx.Node], _Number]) -> _Number:
    signature = str((node.target, _shapes(node.args), _shapes(node.kwargs)))
    if signature not in known:
        known[signature] = measure(node)
    return known[signature]


def _runs(node: fx.Node) -> bool:
    """Return whether a node is an operation that can be run by itself and leaves no trace."""
    return node.op == "call_function" and not getattr(node.target, "is_view", False) and not _pinned(node)


@contextlib.contextmanager
def _call(node: fx.Node) -> Iterator[Callable[[], Any]]:
    with no_dispatch(), torch.no_grad():
        args, kwargs = map_only(fx.Node, _made, (node.args, node.kwargs))
        yield lambda: node.target(*args, **kwargs)  # type: ignore[operator]  # an operation


def _shapes(tree: Any) -> Any:
    return map_only(
        fx.Node,
        lambda node: str([(tuple(t.shape), t.stride(), t.dtype) for t in leaves_of(node.meta.get("val"))
                          if isinstance(t, torch.Tensor)]),
        tree,
    )  # fmt: skip


def _made(node: fx.Node) -> Any:
    def zeros(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).zero_()

    return map_only(torch.Tensor, zeros, node.meta["val"])


def _nbytes(node: fx.Node) -> int:
    return sum(t.numel() * t.itemsize for t in leaves_of(node.meta.get("val")) if isinstance(t, torch.Tensor))


def _on_cuda(node: fx.Node) -> bool:
    return any(isinstance(t, torch.Tensor) and t.is_cuda for t in leaves_of(node.meta.get("val")))


def _wait(node: fx.Node) -> None:
    if _on_cuda(node):
        torch.cuda.synchronize()

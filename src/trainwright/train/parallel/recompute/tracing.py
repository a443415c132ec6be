"""A module's forward as a graph of operations, looked into as far as the graph is all that the forward does.

A module that does more is one operation, and runs as it is written: one that has hooks, that sets attributes, draws
random numbers beside torch's operations on its inputs, or switches gradients or autocast for a part of its forward. So
is one that cannot be traced at all.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, Final

import torch
from torch import fx, nn
from torch.distributed.fsdp import FSDPModule
from torch.fx.immutable_collections import immutable_dict

from trainwright.train.parallel.recompute.run_context import Autocast, drawn_from, read_generators, set_generators
from trainwright.train.parallel.recompute.trees import TreeSpec, flatten_tree, unflatten_tree

__all__ = ["AttributeWatch", "CallForm", "PartTracer", "Tracer", "as_before", "has_hooks", "modules_above"]

_VALUE: Final = object()
"""In the place of an argument that comes with each call."""
# torch.fx's name for a tensor that a forward makes of nothing.
_CONSTANT: Final = "_tensor_constant"


@dataclass(frozen=True)
class CallForm:
    """What calls of a model have in common that one graph serves: how arguments are nested, which are None or flags."""

    signature: inspect.Signature
    spec: TreeSpec
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "CallForm":
        """Return the form of a call."""
        signature = inspect.signature(type(model).forward)
        leaves, spec = _flatten_call(signature, args, kwargs)
        return cls(signature, spec, tuple(map(_constant_or_value, leaves)))

    @classmethod
    def default(cls, model: nn.Module) -> "CallForm":
        """Return the form of a call with what has no default."""
        return cls._with(model, lambda each: each.default is each.empty)

    @classmethod
    def full(cls, model: nn.Module) -> "CallForm":
        """Return the form of a call with all arguments."""
        return cls._with(model, lambda _: True)

    @classmethod
    def _with(cls, model: nn.Module, wanted: Callable[[inspect.Parameter], bool]) -> "CallForm":
        _, *parameters = inspect.signature(type(model).forward).parameters.values()
        given = [each for each in parameters if each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}]
        given = [each for each in given if wanted(each)]
        args = [_VALUE for each in given if each.kind is each.POSITIONAL_ONLY]
        return cls.of(model, args, {each.name: _VALUE for each in given if each.kind is not each.POSITIONAL_ONLY})

    def values(self, *args: Any, **kwargs: Any) -> tuple[Any, ...] | None:
        """Return what comes with a call, None for one of another form."""
        leaves, spec = _flatten_call(self.signature, args, kwargs)
        if spec != self.spec or tuple(map(_constant_or_value, leaves)) != self.leaves:
            return None
        return tuple(leaf for leaf, own in zip(leaves, self.leaves, strict=True) if own is _VALUE)

    def arguments(self, values: Iterator[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments of a call with these values."""
        args, kwargs = unflatten_tree([next(values) if own is _VALUE else own for own in self.leaves], self.spec)
        return args, kwargs

    def __str__(self) -> str:
        """Return what is not a value, as a person calls it."""
        args, kwargs = self.arguments(iter([Ellipsis] * len(self.leaves)))
        names = list(self.signature.parameters)[1:]
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        return ", ".join(f"{name}={'...' if value is Ellipsis else repr(value)}" for name, value in named.items())


def _flatten_call(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], TreeSpec]:
    # Defaults are filled in, so that calls which mean the same have one form.
    bound = signature.bind(None, *args, **kwargs)
    bound.apply_defaults()
    return flatten_tree((bound.args[1:], bound.kwargs))


def _constant_or_value(leaf: Any) -> Any:
    # A forward may branch on these, and a graph has one branch alone: other ones need a graph of their own.
    fixed = leaf is None or isinstance(leaf, bool | str | Enum | torch.dtype | torch.device)
    return leaf if fixed else _VALUE


class Tracer(fx.Tracer):
    """Looks into modules as far as the graph is all that they do."""

    # Operations on buffers become part of the graph, and are not done while it is made.
    proxy_buffer_attributes = True

    def __init__(self, form: CallForm | None = None, *, deep: bool = True) -> None:
        super().__init__()
        self._form, self._deep = form, deep
        self._current_modes = _current_modes()
        self.looked_into: list[nn.Module] = []

    @property
    def form(self) -> CallForm:
        """The form of the calls that the graph serves."""
        assert self._form is not None  # noqa: S101  its caller has given one
        return self._form

    def trace(self, root: nn.Module, concrete_args: dict[str, Any] | None = None) -> fx.Graph:  # type: ignore[override]
        """Return the graph of a module's forward; raise if there is none."""
        # torch.fx keeps tensors that a forward makes of nothing as attributes of the root.
        root = copy.copy(root)
        with _refusing_traces(root):
            return super().trace(root, concrete_args)

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,
        concrete_args: Any = None,
    ) -> tuple[Any, list[Any]]:
        """Return forward as a function of values alone, and a placeholder for each."""
        if self._form is None:
            return super().create_args_for_root(root_fn, is_module, concrete_args)
        form = self._form
        values = [
            self.create_proxy("placeholder", f"value_{place}", (), {})
            for place, own in enumerate(form.leaves)
            if own is _VALUE
        ]

        def run(*given: Any) -> Any:
            args, kwargs = form.arguments(iter(given))
            return root_fn(self.root, *args, **kwargs)

        return run, values

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Look into a module, or leave it one operation."""
        if self.is_leaf_module(m, self.path_of_module(m)):
            return super().call_module(m, forward, args, kwargs)
        # Look into the module; if its forward does more than operations, take those back and leave it one operation.
        before, stack, known = set(self.graph.nodes), self.module_stack.copy(), len(self.looked_into)
        self.looked_into.append(m)
        try:
            with _refusing_traces(m):
                return super().call_module(m, forward, args, kwargs)
        except Exception:  # noqa: BLE001  tracing fails in as many ways as models are written
            self.module_stack = stack
            del self.looked_into[known:]
            for node in reversed([node for node in self.graph.nodes if node not in before]):
                self.graph.erase_node(node)
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether not to look into a module: its hooks would see proxies, once.

        If not `deep`, into none but sequences.
        """
        known = self._deep or type(m) is nn.Sequential
        return not known or has_hooks(m) or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Add an operation, which will run as gradients and autocast stand outside."""
        if _current_modes() != self._current_modes:
            raise _NotInGraphError("it switches gradients or autocast for a part of itself")
        return super().create_node(*args, **kwargs)

    def create_arg(self, a: Any) -> Any:
        """Return an argument of an operation; a container of a class of its own is made anew with each run."""
        kind: Any = type(a)
        if is_dataclass(a) and not isinstance(a, type | nn.Module):
            own = {each.name: self.create_arg(getattr(a, each.name)) for each in fields(a) if each.init}
            return self.create_node("call_function", kind, (), own)
        if isinstance(a, Mapping) and kind not in {dict, immutable_dict}:
            items = {key: self.create_arg(value) for key, value in a.items()}
            return self.create_node("call_function", kind, (items,), {})
        return super().create_arg(a)


class PartTracer(Tracer):
    """Looks only into modules in which a part begins."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()
        self._above = modules_above(paths)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002  torch's signature
        """Return whether no part begins in a module."""
        return module_qualified_name not in self._above


class AttributeWatch:
    """Numbers, flags, names and children of modules, and whether they have hooks: a graph is good while they last."""

    def __init__(self, modules: Sequence[nn.Module] = ()) -> None:
        # The first is the model: its copies share its children, but not its attributes.
        self._model = _plain_attributes(modules[0]) if modules else {}
        self._below = [(each, _plain_attributes(each)) for each in dict.fromkeys(modules[1:])]
        self._children = [(each, list(each._modules.values())) for each in dict.fromkeys(modules)]  # noqa: SLF001

    def holds(self, model: nn.Module) -> bool:
        """Return whether a model, or a copy of it, is as it was."""
        return (
            _is_still(model, self._model)
            and all(not has_hooks(each) and _is_still(each, known) for each, known in self._below)
            and all([*each._modules.values()] == known for each, known in self._children)  # noqa: SLF001
        )


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    found = {}
    for name, value in vars(module).items():
        # A forward may have branched on these, or computed with them, when it was traced.
        if type(value) in _SCALARS:
            found[name] = value
        elif type(value) in {tuple, list} and all(type(each) in _SCALARS for each in value):
            found[name] = type(value)(value)  # a copy of a list
    return found


def _is_still(module: nn.Module, known: Mapping[str, Any]) -> bool:
    own = vars(module)
    for name, value in known.items():
        now = own.get(name, _VALUE)
        # By type too: 1, 1.0 and True are equal, and a forward may tell them apart.
        if now is not value and (type(now) is not type(value) or now != value):
            return False
    return True


_SCALARS: Final = {bool, int, float, str, complex, type(None)}


class _NotInGraphError(Exception):
    """A forward does what a graph of operations does not."""


def modules_above(paths: Sequence[str]) -> set[str]:
    """Return the paths of the modules that these are in, the model itself ("") apart."""
    return {path.rsplit(".", up)[0] for path in paths for up in range(1, path.count(".") + 1)}


def has_hooks(module: nn.Module) -> bool:
    """Return whether a call of a module does more than its forward."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return isinstance(module, FSDPModule) or any(getattr(module, kind) for kind in kinds)


def _current_modes() -> tuple[bool, Autocast]:
    return torch.is_grad_enabled(), Autocast.now()


@contextmanager
def as_before(module: nn.Module) -> Iterator[Callable[[], bool]]:
    """Put attributes of modules and random generators back at the end; yield whether they are as they were, so far."""
    # Attributes are compared by identity, and containers by their content too.
    held = [(vars(each), _copy_attributes(vars(each))) for each in module.modules()]
    states = read_generators()

    def is_unchanged() -> bool:
        return not drawn_from(states) and not any(_differs(own, before) for own, before in held)

    try:
        yield is_unchanged
    finally:
        for own, before in held:
            if _differs(own, before):
                _restore(own, before)
        set_generators(states)


@contextmanager
def _refusing_traces(module: nn.Module) -> Iterator[None]:
    """Raise if what happens inside has left traces in a module or in generators, and remove them."""
    with as_before(module) as is_unchanged:
        yield
        if not is_unchanged():
            raise _NotInGraphError("it sets attributes, or draws random numbers, that are no part of a graph")


_Attributes = dict[str, tuple[Any, Any]]
"""By the name of an attribute, what it is, and a copy of what it contains."""


def _copy_attributes(attributes: Mapping[str, Any]) -> _Attributes:
    return {
        name: (value, value.copy() if isinstance(value, list | dict | set) else None)
        for name, value in attributes.items()
    }


def _differs(attributes: Mapping[str, Any], before: _Attributes) -> bool:
    if any(name not in before for name in attributes if not name.startswith(_CONSTANT)):
        return True
    return any(
        attributes.get(name, _VALUE) is not value or (content is not None and not _same_content(value, content))
        for name, (value, content) in before.items()
    )


def _same_content(one: Any, other: Any) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, set):
        return bool({*map(id, one)} == {*map(id, other)})
    # By identity: two tensors that are compared by value give no single answer.
    pairs = zip(one.items(), other.items(), strict=True) if isinstance(one, dict) else zip(one, other, strict=True)
    return all(a is b or (isinstance(one, dict) and a[0] is b[0] and a[1] is b[1]) for a, b in pairs)


def _restore(attributes: dict[str, Any], before: _Attributes) -> None:
    for name in [*attributes]:
        if name not in before and not name.startswith(_CONSTANT):
            del attributes[name]
    for name, (value, content) in before.items():
        attributes[name] = value
        # In place, since others may refer to the same container.
        if isinstance(value, list):
            value[:] = content
        elif content is not None:
            value.clear()
            value.update(content)

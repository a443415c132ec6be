"""Finds the stages of a model: its own blocks, found or named, and hooks in when its forward calls one of them.

Nothing is traced: the model's forward runs as it is written, and each stage's forward is replaced while it does. So
control flow, keyword arguments, caches, hooks and autocast are those of the model.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from trainwright.errors import PlanMismatch, UnsupportedModel

__all__ = ["OnCall", "StageSite", "check_trains", "find_stages", "is_compiled", "stage_calls", "stage_sites"]

_FEW = 6
"""Blocks of one list: so few are looked into for blocks of their own, as those of a Swin transformer's levels."""
_MOST = 0.6
"""Of a block's parameters, if the blocks inside are to be taken in its place."""
_SLICE = re.compile(r"^(?:(.*)\.)?(\d+):(\d+)$")


@dataclass(frozen=True, eq=False, slots=True)
class StageSite:
    """Where a stage is in a model: a module that is called, or layers in a row of an `nn.Sequential`."""

    name: str
    """The module's path, or that of the sequence with the places of the layers: "features.3:6"."""
    modules: tuple[nn.Module, ...]
    owner: nn.Module
    """The module whose forward calls them, or that is called."""
    start: int = -1
    """Of layers, the place of the first."""

    def run(self, value: Any) -> Any:
        """Call layers in a row."""
        for module in self.modules:
            value = module(value)
        return value

    def is_eager(self) -> bool:
        """Return whether no module is compiled: compiled code does not run under a mode that watches operations."""
        return not any(
            hasattr(each, "_orig_mod") or is_compiled(each) for module in self.modules for each in module.modules()
        )


OnCall = Callable[[StageSite, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""What is done for a call: of the stage, its own forward, and the arguments; returns what the forward returns."""


def find_stages(model: nn.Module, patterns: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of a model's stages, of which none is in another; "" alone is the model as a whole.

    `patterns` name modules by their paths ("model.layers.*"). Without them they are the elements of lists and
    sequences, taken from inside of few elements if those hold most of them; layers of a sequence with what
    follows a layer with weights (an activation, a norm); and modules beside these that are made of modules.
    """
    if patterns:
        return _without_nested(model, _named_stages(model, patterns))
    whole = [*_of_sequence(model, "", element=False)] if isinstance(model, nn.Sequential) else []
    found = whole if type(model) is nn.Sequential else [*_of_children(model, "")]
    # The same module under two names is called under the first.
    known = dict(model.named_modules())
    return _without_nested(model, tuple(name for name in found if ":" in name or name in known)) or ("",)


def _without_nested(model: nn.Module, names: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out stages that are called inside another, as a layer that blocks share and the model lists beside them."""
    sites = stage_sites(model, names)
    nested = {
        inner for site in sites.values() for module in site.modules for inner in module.modules() if inner is not module
    }
    return tuple(name for name in names if nested.isdisjoint(sites[name].modules))


def _named_stages(model: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    for name, _ in model.named_modules():
        inside = found and name.startswith(f"{found[-1]}.")
        if name and not inside and any(fnmatchcase(name, pattern) for pattern in patterns):
            found.append(name)
    if not found:
        named = ", ".join(repr(each) for each in patterns)
        raise UnsupportedModel(
            f"stages: got {named}, which no module of {type(model).__name__} matches; allowed: paths of modules as in "
            "model.named_modules(), such as 'model.layers.*'"
        )
    return tuple(found)


def _of_children(module: nn.Module, path: str) -> Iterator[str]:
    """Yield the stages inside a module that is none; its layers by themselves belong to no stage."""
    for name, child in module.named_children():
        below = f"{path}.{name}" if path else name
        if not _weighs(child):
            continue
        if type(child) is nn.Sequential:
            yield from _of_sequence(child, below, element=False)
        elif _is_list(child):
            yield from _of_list(child, below)
        # Modules of one class that are made of modules stand in a row anywhere inside, or one in a list.
        elif _runs(child):
            yield from _of_children(child, below)
        elif any(True for _ in child.children()):
            yield below


def _of_list(container: nn.Module, path: str) -> Iterator[str]:
    children = [(f"{path}.{name}", child) for name, child in container.named_children() if _weighs(child)]
    for below, child in children:
        if _is_list(child):
            yield from _of_list(child, below)
        elif type(child) is nn.Sequential:
            yield from _of_sequence(child, below, element=True)
        elif len(children) <= _FEW and _is_run_inside(child):
            yield from _of_children(child, below)
        else:
            yield below


def _of_sequence(sequence: nn.Sequential, path: str, *, element: bool) -> Iterator[str]:
    prefix = f"{path}." if path else ""
    layers = (
        [*sequence.named_children()]
        if len({*map(id, sequence)}) == len(sequence)
        else [(str(place), layer) for place, layer in enumerate(sequence)]
    )
    made = [any(True for _ in layer.children()) for _, layer in layers]
    # An element of a list that is a plain row of layers is one block.
    if element and not any(made):
        yield path
        return
    modules: list[nn.Module] = [layer for _, layer in layers]
    weighing = sum(map(_weighs, modules))
    begin: int | None = None
    for place, (name, layer) in enumerate(layers):
        if not (made[place] and _weighs(layer)):
            # Layers by themselves: a stage begins with each that has weights.
            if begin is None:
                begin = place
            elif _has_weights(layer) and any(map(_has_weights, modules[begin:place])):
                yield _slice_name(prefix, layers, begin, place)
                begin = place
            continue
        if begin is not None:
            yield _slice_name(prefix, layers, begin, place)
            begin = None
        if type(layer) is nn.Sequential:
            yield from _of_sequence(layer, f"{prefix}{name}", element=True)
        elif _is_list(layer):
            yield f"{prefix}{name}"
        elif weighing <= _FEW and _is_run_inside(layer):
            yield from _of_children(layer, f"{prefix}{name}")
        else:
            yield f"{prefix}{name}"
    if begin is not None and any(map(_weighs, modules[begin:])):
        yield _slice_name(prefix, layers, begin, len(layers))


def _slice_name(prefix: str, layers: Sequence[tuple[str, nn.Module]], start: int, stop: int) -> str:
    return f"{prefix}{start}:{stop}" if stop > start + 1 else f"{prefix}{layers[start][0]}"


def _is_list(module: nn.Module) -> bool:
    # A graph of torch.fx holds the modules of a list in plain modules.
    return type(module) in {nn.ModuleList, nn.ModuleDict, nn.Module}


def _is_run_inside(module: nn.Module) -> bool:
    """Return whether runs inside hold most parameters of a module."""
    held = {parameter for run in _runs(module) for each in run for parameter in each.parameters()}
    everything = sum(parameter.numel() for parameter in module.parameters())
    return sum(parameter.numel() for parameter in held) >= _MOST * everything > 0


def _runs(module: nn.Module) -> list[list[nn.Module]]:
    """Return rows of modules that are made of modules: two of one class side by side, in a list anywhere, or alone."""
    found = []
    for each in module.modules():
        if isinstance(each, nn.Sequential | nn.ModuleList) or type(each) is nn.Module:
            made = [child for child in each.children() if any(True for _ in child.children())]
            listed = isinstance(each, nn.ModuleList) and (len(made) == 1 or len({*map(type, made)}) < len(made))
            if listed or any(type(one) is type(other) for one, other in pairwise(made)):
                found.append(made)
    return found


def _weighs(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _has_weights(module: nn.Module) -> bool:
    return any(parameter.dim() > 1 for parameter in module.parameters())


def stage_sites(model: nn.Module, names: Sequence[str]) -> dict[str, StageSite]:
    """Return where these stages are in a model; raise PlanMismatch for one that it has not."""
    found: dict[str, StageSite] = {}
    for number, name in enumerate(names, start=1):
        if name in found:
            continue
        try:
            found[name] = _site(model, name)
        except (AttributeError, IndexError, TypeError) as error:
            raise PlanMismatch(
                f"plan: stage {number} differs first: {name!r} is no part of this {type(model).__name__}; allowed: a "
                "plan of this very model; plan again"
            ) from error
    return found


def _site(model: nn.Module, name: str) -> StageSite:
    layers = _SLICE.match(name)
    if layers is None:
        module = model.get_submodule(name)
        return StageSite(name, (module,), module)
    path, start, stop = layers[1] or "", int(layers[2]), int(layers[3])
    sequence = model.get_submodule(path)
    modules: tuple[nn.Module, ...] = tuple(sequence)[start:stop]  # type: ignore[arg-type]  # a TypeError is a mismatch
    if len(modules) != stop - start:
        raise IndexError(name)
    return StageSite(name, modules, sequence, start)


@contextmanager
def stage_calls(model: nn.Module, sites: Mapping[str, StageSite], on_call: OnCall) -> Iterator[Callable[..., Any]]:
    """Let `on_call` do the calls of stages, and yield the model's forward."""
    forward: Callable[..., Any] = partial(type(model).forward, model)
    rows: dict[nn.Module, dict[int, StageSite]] = {}
    put: dict[nn.Module, Callable[..., Any]] = {}
    for site in sites.values():
        if site.start >= 0:
            rows.setdefault(site.owner, {})[site.start] = site
        else:
            own = forward if site.owner is model else getattr(site.owner, _called_by(site.owner))
            put[site.owner] = partial(_called, on_call, site, own)
    for owner, starts in rows.items():
        put[owner] = partial(_run_row, owner, starts, on_call)
    # The model's own forward is what its caller runs.
    forward = put.pop(model, forward)
    before = {module: vars(module).get(_called_by(module)) for module in put}
    for module, call in put.items():
        vars(module)[_called_by(module)] = call
    try:
        yield forward
    finally:
        for module, own in before.items():
            if own is None:
                del vars(module)["forward"]
            else:
                vars(module)[_called_by(module)] = own


def is_compiled(module: nn.Module) -> bool:
    """Return whether `module.compile()` was called, be it below a pipeline's routing of calls, which says so."""
    implementation = vars(module).get("_compiled_call_impl")
    return implementation is not None and getattr(implementation, "compiled", True)


def _called_by(module: nn.Module) -> str:
    """Return the name of what a module's call runs: where it is compiled, all of that; stages lie inside of routing."""
    implementation = vars(module).get("_compiled_call_impl")
    return "forward" if implementation is None or hasattr(implementation, "compiled") else "_compiled_call_impl"


def _called(on_call: OnCall, site: StageSite, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # Without gradients nothing is saved.
    return on_call(site, forward, args, kwargs) if torch.is_grad_enabled() else forward(*args, **kwargs)


def _run_row(sequence: nn.Module, starts: Mapping[int, StageSite], on_call: OnCall, value: Any) -> Any:
    """Run an `nn.Sequential` with some of its layers in a row as stages."""
    layers: list[nn.Module] = [*sequence]  # type: ignore[misc]  # a sequence of modules
    place = 0
    while place < len(layers):
        site = starts.get(place)
        if site is None:
            value = layers[place](value)
            place += 1
        else:
            value = _called(on_call, site, site.run, value)
            place += len(site.modules)
    return value


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

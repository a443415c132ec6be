"""Captures the state to save: a tree of plain values, and tensors under canonical names.

Weights are named by item and parameter ("model.fc.weight"), whatever wrapped or compiled them; an optimizer's tensors
by the parameter that they belong to ("optimizer.state.model.fc.weight.exp_avg"), never by position. Tensors that are
one in memory are kept once, with their other names as ties.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwright.checkpoint.state.tree import Encoder

if TYPE_CHECKING:
    import torch

__all__ = ["RESERVED", "Captured", "canonical_names", "capture_state", "parameter_names"]

RESERVED = frozenset({"rng", "flags", "counters", "manifest"})
"""Names of items that a checkpoint brings itself."""

_LEADING = re.compile(r"^(module\.)+")
_WRAPPERS = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """State in two parts: `tree` of JSON values, in which a tensor is {"$tensor": name}, and the live tensors by name.

    `ties` maps further names of a tensor to the one that it is kept under. `lazy` names the tensors that change only in
    a step of one of `optimizers`; `loadable` those that may be read from a file straight into their place.
    """

    tree: dict[str, Any]
    tensors: "dict[str, torch.Tensor]"
    ties: dict[str, str]
    lazy: frozenset[str]
    loadable: frozenset[str]
    optimizers: "tuple[torch.optim.Optimizer, ...]"


def capture_state(state: Mapping[str, Any]) -> Captured:
    """Return what the items of `state` hold now; tensors are references, nothing is copied.

    An item is anything with `state_dict`, a generator of torch, a tensor, or a value of JSON. Raises
    `CheckpointStateError` with the path to what cannot be kept.
    """
    import torch

    names = parameter_names(state)
    encoder = Encoder()
    tree: dict[str, Any] = {}
    for item, value in state.items():
        if isinstance(value, torch.nn.Module):
            tree[item] = _encode_module(encoder, item, value)
        elif isinstance(value, torch.optim.Optimizer):
            tree[item] = encoder.encode(_name_parameters(value, names), item)
            encoder.lazy.update(name for name in encoder.tensors if name.startswith(f"{item}.state."))
            encoder.loadable.update(name for name in encoder.tensors if name.startswith(f"{item}.state."))
        elif isinstance(value, torch.Generator):
            tree[item] = encoder.encode(value.get_state(), item)
        else:
            tree[item] = encoder.encode(value.state_dict() if hasattr(value, "state_dict") else value, item)
            if isinstance(value, torch.Tensor):
                encoder.loadable.add(item)
    return Captured(
        tree=tree,
        tensors=encoder.tensors,
        ties=encoder.ties,
        lazy=frozenset(encoder.lazy),
        loadable=frozenset(encoder.loadable),
        optimizers=tuple(value for value in state.values() if isinstance(value, torch.optim.Optimizer)),
    )


def canonical_names(names: Mapping[str, Any]) -> dict[str, str]:
    """Return the canonical name of each of a module's: without what data-parallel wrappers and compilers put in.

    If two would become one, all stay as they are.
    """
    # "module._orig_mod.fc.weight" is "fc.weight" without DDP and torch.compile.
    found = {name: _WRAPPERS.sub("", _LEADING.sub("", _WRAPPERS.sub("", name))) for name in names}
    return found if len(set(found.values())) == len(found) else {name: name for name in names}


def parameter_names(state: Mapping[str, Any]) -> dict[int, str]:
    """Return the name of every parameter of the modules among the items, by `id`: "model.fc.weight"."""
    import torch

    named: dict[int, str] = {}
    for item, value in state.items():
        if isinstance(value, torch.nn.Module):
            parameters = dict(value.named_parameters())
            canonical = canonical_names(parameters)
            for name, parameter in parameters.items():
                named.setdefault(id(parameter), f"{item}.{canonical[name]}")
    return named


def _encode_module(encoder: Encoder, item: str, module: "torch.nn.Module") -> Any:
    state = module.state_dict()
    canonical = canonical_names(state)
    tree = {name: encoder.encode(state[key], f"{item}.{name}") for key, name in canonical.items()}
    # Only parameters wait for the optimizer step: buffers such as running means change in the forward pass.
    held = {f"{item}.{canonical[name]}" for name, _ in module.named_parameters() if name in canonical}
    encoder.lazy.update(held & encoder.tensors.keys())
    encoder.loadable.update(f"{item}.{name}" for name in tree if f"{item}.{name}" in encoder.tensors)
    return tree


def _name_parameters(optimizer: "torch.optim.Optimizer", names: Mapping[int, str]) -> dict[str, Any]:
    """Return an optimizer's state dict with the names of parameters for their positions."""
    state = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # A state dict numbers parameters in the order of their groups; names survive another order.
    positions = [position for group in state["param_groups"] for position in group["params"]]
    name_of = {
        position: names.get(id(parameter), f"{place}")
        for place, (position, parameter) in enumerate(zip(positions, parameters, strict=True))
    }
    return {
        **state,
        "state": {name_of[position]: value for position, value in state["state"].items()},
        "param_groups": [
            {**group, "params": [name_of[position] for position in group["params"]]} for group in state["param_groups"]
        ],
    }

"""State as a checkpoint holds it: a tree of plain values, and tensors under canonical names.

Weights are named by item and parameter ("model.fc.weight"), whatever wrapped or compiled them; an optimizer's tensors
by the parameter that they belong to ("optimizer.state.model.fc.weight.exp_avg"), never by position. Tensors that are
one in memory are kept once, with their other names as ties.
"""

import base64
import collections
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainwright.errors import CheckpointStateError

if TYPE_CHECKING:
    import torch

__all__ = ["RESERVED", "Captured", "canonical_names", "capture", "decode", "parameter_names"]

RESERVED = frozenset({"rng", "flags", "counters", "manifest"})
"""Names of items that a checkpoint brings itself."""

_LEADING = re.compile(r"^(module\.)+")
_WRAPPERS = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_MARK = "$"


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


def capture(state: Mapping[str, Any]) -> Captured:
    """Return what the items of `state` hold now; tensors are references, nothing is copied.

    An item is anything with `state_dict`, a generator of torch, a tensor, or a value of JSON. Raises
    `CheckpointStateError` with the path to what cannot be kept.
    """
    import torch

    names = parameter_names(state)
    encoder = _Encoder()
    tree: dict[str, Any] = {}
    for item, value in state.items():
        if isinstance(value, torch.nn.Module):
            tree[item] = _encode_module(encoder, item, value)
        elif isinstance(value, torch.optim.Optimizer):
            tree[item] = encoder.encode(_named(value, names), item)
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


def decode(tree: Any, tensors: "Mapping[str, torch.Tensor]") -> Any:
    """Return the value that a tree stands for, with the tensors in their places."""
    if isinstance(tree, list):
        return [decode(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = next(iter(tree), "")
    if not kind.startswith(_MARK):
        return {key: decode(item, tensors) for key, item in tree.items()}
    return _DECODERS[kind](tree, tensors)


def _pairs(tree: Any, tensors: "Mapping[str, torch.Tensor]") -> list[tuple[Any, Any]]:
    return [(decode(key, tensors), decode(item, tensors)) for key, item in tree]


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


_DECODERS: dict[str, Any] = {
    "$tensor": lambda tree, tensors: tensors[tree["$tensor"]],
    "$array": lambda tree, tensors: tensors[tree["$array"]].cpu().numpy(),
    "$tuple": lambda tree, tensors: tuple(decode(tree["$tuple"], tensors)),
    "$dict": lambda tree, tensors: dict(_pairs(tree["$dict"], tensors)),
    "$counter": lambda tree, tensors: collections.Counter(dict(_pairs(tree["$counter"], tensors))),
    "$float": lambda tree, _: float(tree["$float"]),
    "$complex": lambda tree, _: complex(*(float(part) for part in tree["$complex"])),
    "$bytes": lambda tree, _: base64.b64decode(tree["$bytes"]),
    "$dtype": lambda tree, _: _dtype(tree["$dtype"]),
}


@dataclass(slots=True)
class _Encoder:
    """Turns values into a tree, gathering the tensors in them."""

    tensors: "dict[str, torch.Tensor]" = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    lazy: set[str] = field(default_factory=set)
    loadable: set[str] = field(default_factory=set)
    _places: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def encode(self, value: Any, path: str) -> Any:
        import numpy as np
        import torch

        if value is None or (isinstance(value, bool | int | str) and type(value) in {bool, int, str}):
            return value
        if isinstance(value, float):  # NumPy's double is one too
            number = float(value)
            return number if math.isfinite(number) else {"$float": str(number)}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, list):
            return [self.encode(item, f"{path}.{place}") for place, item in enumerate(value)]
        if isinstance(value, tuple):
            return {"$tuple": [self.encode(item, f"{path}.{place}") for place, item in enumerate(value)]}
        if isinstance(value, np.generic):
            return self.encode(value.item(), path)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return {"$array": self._tensor(torch.from_numpy(np.ascontiguousarray(value)), path)["$tensor"]}
        if isinstance(value, complex):
            return {"$complex": [str(value.real), str(value.imag)]}
        if isinstance(value, bytes | bytearray):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        raise CheckpointStateError(
            f"{path}: a checkpoint cannot keep {type(value).__name__} {_short(value)}; allowed: objects with "
            "state_dict and load_state_dict, tensors, arrays, and plain values in lists, tuples and dicts"
        )

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        if isinstance(value, collections.Counter):
            return {"$counter": [[self.encode(key, path), count] for key, count in value.items()]}
        if all(type(key) is str and not key.startswith(_MARK) for key in value):
            return {key: self.encode(item, f"{path}.{key}") for key, item in value.items()}
        return {"$dict": [[self.encode(k, path), self.encode(item, f"{path}.{k}")] for k, item in value.items()]}

    def _tensor(self, tensor: "torch.Tensor", path: str) -> dict[str, Any]:
        import torch

        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            kind = "quantized" if tensor.is_quantized else "meta" if tensor.is_meta else str(tensor.layout)
            raise CheckpointStateError(
                f"{path}: a checkpoint cannot keep a {kind} tensor; allowed: dense tensors; save its parts, such as "
                "indices and values, as items of their own"
            )
        tensor = tensor.detach()
        held = getattr(tensor, "_local_tensor", tensor)  # a DTensor has no memory of its own
        place = (held.device, held.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        name, number = path, 1
        while name in self.tensors or name in self.ties:
            number += 1
            name = f"{path}~{number}"
        if held.numel() and place in self._places:
            self.ties[name] = self._places[place]
        else:
            self.tensors[name] = tensor
            self._places[place] = name
        return {"$tensor": name}


def _encode_module(encoder: _Encoder, item: str, module: "torch.nn.Module") -> Any:
    state = module.state_dict()
    canonical = canonical_names(state)
    tree = {name: encoder.encode(state[key], f"{item}.{name}") for key, name in canonical.items()}
    held = {f"{item}.{canonical[name]}" for name, _ in module.named_parameters() if name in canonical}
    encoder.lazy.update(held & encoder.tensors.keys())
    encoder.loadable.update(f"{item}.{name}" for name in tree if f"{item}.{name}" in encoder.tensors)
    return tree


def _named(optimizer: "torch.optim.Optimizer", names: Mapping[int, str]) -> dict[str, Any]:
    """Return an optimizer's state dict with the names of parameters for their positions."""
    state = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
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


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Serialises values as a tree of JSON and back, with their types: other kinds are objects with one mark.

A value comes back with its type, or is refused when it is saved. Nothing is imported or called for a tree.
"""

import base64
import collections
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainwright.errors import CheckpointStateError

if TYPE_CHECKING:
    import torch

__all__ = ["Encoder", "decode_tree"]

_MARK = "$"
_FACTORIES = {"None": None} | {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)}
"""What a defaultdict may make its values with."""


def decode_tree(tree: Any, tensors: "Mapping[str, torch.Tensor]") -> Any:
    """Return the value that a tree stands for, with the tensors in their places."""
    if isinstance(tree, list):
        return [decode_tree(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    # A dict whose first key is a mark stands for another kind of value; plain dicts have no such keys.
    kind = next(iter(tree), "")
    if not kind.startswith(_MARK):
        return {key: decode_tree(item, tensors) for key, item in tree.items()}
    return _DECODERS[kind](tree[kind], tensors)


def _pairs(tree: Any, tensors: "Mapping[str, torch.Tensor]") -> list[tuple[Any, Any]]:
    return [(decode_tree(key, tensors), decode_tree(item, tensors)) for key, item in tree]


def _decode_ordered(tree: Any, tensors: "Mapping[str, torch.Tensor]") -> Any:
    pairs, attributes = tree
    found = collections.OrderedDict(_pairs(pairs, tensors))
    vars(found).update(decode_tree(attributes, tensors))
    return found


def _decode_scalar(tree: Any, _: Any) -> Any:
    import numpy as np

    dtype, content = tree
    return np.frombuffer(base64.b64decode(content), dtype=dtype)[0]


def _decode_parameter(tree: Any, tensors: "Mapping[str, torch.Tensor]") -> Any:
    import torch

    name, requires_grad = tree
    return torch.nn.Parameter(tensors[name], requires_grad=requires_grad)


def _decode_size(tree: Any, _: Any) -> Any:
    import torch

    return torch.Size(tree)


def _decode_dtype(name: str, _: Any) -> Any:
    import torch

    return getattr(torch, name)


_DECODERS: dict[str, Any] = {
    "$tensor": lambda name, tensors: tensors[name],
    "$parameter": _decode_parameter,
    "$array": lambda name, tensors: tensors[name].cpu().numpy(),
    "$scalar": _decode_scalar,
    "$tuple": lambda tree, tensors: tuple(decode_tree(tree, tensors)),
    "$size": _decode_size,
    "$dict": lambda tree, tensors: dict(_pairs(tree, tensors)),
    "$ordered": _decode_ordered,
    "$defaultdict": lambda tree, tensors: collections.defaultdict(_FACTORIES[tree[0]], _pairs(tree[1], tensors)),
    "$counter": lambda tree, tensors: collections.Counter(dict(_pairs(tree, tensors))),
    "$float": lambda text, _: float(text),
    "$complex": lambda parts, _: complex(*(float(part) for part in parts)),
    "$bytes": lambda text, _: base64.b64decode(text),
    "$bytearray": lambda text, _: bytearray(base64.b64decode(text)),
    "$dtype": _decode_dtype,
}


@dataclass(slots=True)
class Encoder:
    """Turns values into a tree, gathering the tensors in them; see `trainwright.checkpoint.state.Captured`."""

    tensors: "dict[str, torch.Tensor]" = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    lazy: set[str] = field(default_factory=set)
    loadable: set[str] = field(default_factory=set)
    _places: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def encode(self, value: Any, path: str) -> Any:
        """Return the tree of a value. Raises `CheckpointStateError` for one that would not come back as it is."""
        import numpy as np
        import torch

        kind = type(value)
        if value is None or kind in {bool, int, str}:
            return value
        # JSON has no NaN and no infinities.
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        # Tensors go to data files; the tree holds only their names.
        if isinstance(value, torch.Tensor):
            tree = self._encode_tensor(value, path)
            return {"$parameter": [tree["$tensor"], value.requires_grad]} if kind is torch.nn.Parameter else tree
        if isinstance(value, Mapping) and (tree := self._encode_mapping(value, path)) is not None:
            return tree
        if kind is list:
            return self._encode_each(value, path)
        if kind is tuple:
            return {"$tuple": self._encode_each(value, path)}
        if kind is torch.Size:
            return {"$size": list(value)}
        # A longlong comes back as the int64 that it is: both have one name in files.
        if isinstance(value, np.generic) and value.dtype.kind in "biufcmM":
            return {"$scalar": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
        if kind is np.ndarray and (tensor := _tensor_of(value)) is not None:
            return {"$array": self._encode_tensor(tensor, path)["$tensor"]}
        if kind is complex:
            return {"$complex": [str(value.real), str(value.imag)]}
        if kind in {bytes, bytearray}:
            return {f"${kind.__name__}": base64.b64encode(value).decode()}
        if kind is torch.dtype:
            return {"$dtype": str(value).removeprefix("torch.")}
        raise CheckpointStateError(
            f"{path}: a checkpoint cannot keep {kind.__name__} {_shorten(value)}; allowed: objects with state_dict and "
            "load_state_dict, tensors, arrays and scalars of NumPy, and plain values in lists, tuples and dicts, also "
            "ordered ones, Counters and defaultdicts of built-in types"
        )

    def _encode_each(self, values: Any, path: str) -> list[Any]:
        return [self.encode(item, f"{path}.{place}") for place, item in enumerate(values)]

    def _encode_mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        """Return the tree of a mapping; None of a kind that cannot be made again."""
        kind = type(value)
        if kind is dict and all(type(key) is str and not key.startswith(_MARK) for key in value):
            return {key: self.encode(item, f"{path}.{key}") for key, item in value.items()}
        attributes = getattr(value, "__dict__", {})
        # Torch's states have attributes.
        if kind is collections.OrderedDict:
            return {"$ordered": [self._pairs(value, path), self.encode(dict(attributes), path)]}
        if attributes:
            return None
        if kind is collections.defaultdict:
            default_factory = getattr(value, "default_factory", None)
            name = next((name for name, factory in _FACTORIES.items() if factory is default_factory), None)
            return None if name is None else {"$defaultdict": [name, self._pairs(value, path)]}
        mark = {dict: "$dict", collections.Counter: "$counter"}.get(kind)
        return None if mark is None else {mark: self._pairs(value, path)}

    def _pairs(self, value: Mapping[Any, Any], path: str) -> list[list[Any]]:
        return [[self.encode(key, path), self.encode(item, f"{path}.{key}")] for key, item in value.items()]

    def _encode_tensor(self, tensor: "torch.Tensor", path: str) -> dict[str, Any]:
        import torch

        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            kind = "quantized" if tensor.is_quantized else "meta" if tensor.is_meta else str(tensor.layout)
            raise CheckpointStateError(
                f"{path}: a checkpoint cannot keep a {kind} tensor; allowed: dense tensors; save its parts, such as "
                "indices and values, as items of their own"
            )
        tensor = tensor.detach()
        # A DTensor has no memory of its own.
        held = getattr(tensor, "_local_tensor", tensor)
        place = (held.device, held.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        name, number = path, 1
        # Two values may have one dotted path, as {"a": {"b": x}, "a.b": y}: the second gets a number.
        while name in self.tensors or name in self.ties:
            number += 1
            name = f"{path}~{number}"
        # The same memory, shape and strides: a tied weight, which is written once.
        if held.numel() and place in self._places:
            self.ties[name] = self._places[place]
        else:
            self.tensors[name] = tensor
            self._places[place] = name
        return {"$tensor": name}


def _tensor_of(array: Any) -> "torch.Tensor | None":
    """Return a tensor of an array's values, in its memory where it can; None for a dtype that torch does not have."""
    import numpy as np
    import torch

    if array.dtype.kind not in "biufc" or not array.dtype.isnative:
        return None
    # Not ascontiguousarray, which gives every array a dimension.
    whole = np.require(array, requirements=["C", "W"])
    try:
        return torch.from_numpy(whole)
    except TypeError:
        # Such as long double.
        return None


def _shorten(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."

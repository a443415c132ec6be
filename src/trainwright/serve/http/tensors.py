"""Tensors of the Open Inference Protocol, version 2: a JSON object each, and the values in it or behind it as bytes.

Binary values are little-endian, row-major, and follow the JSON part in the order of its tensors; the header
`Inference-Header-Content-Length` gives the length of that part, `binary_data_size` of each tensor its bytes.
"""

import itertools
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import RequestError, closest

__all__ = ["DATATYPES", "HEADER_LENGTH", "SIZE", "Bytes", "datatype_of", "described", "refuse_extensions", "values_of"]

HEADER_LENGTH = "Inference-Header-Content-Length"
SIZE = "binary_data_size"
DATATYPES = {
    "BOOL": "?",
    **{f"UINT{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
_NAMES = {np.dtype(code): name for name, code in DATATYPES.items()}
_MOST_DIMENSIONS = 32
_FITTING: Mapping[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}  # in a JSON list


class Bytes:
    """The bytes behind the JSON part of a message, taken tensor by tensor."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._place = content, 0

    def take(self, where: str, count: int) -> memoryview:
        """Return the next `count` bytes, without copying them."""
        left = len(self._content) - self._place
        if count > left:
            raise RequestError(f"{where}.parameters.{SIZE}: got {count}; allowed: at most the {left} bytes that follow")
        self._place += count
        return self._content[self._place - count : self._place]

    def finish(self) -> None:
        """Refuse bytes that belong to no tensor."""
        left = len(self._content) - self._place
        if left:
            raise RequestError(f"body: got {left} bytes behind the last tensor; allowed: what {SIZE} of each names")


def datatype_of(dtype: "np.dtype[Any] | str") -> str:
    """Return the protocol's name of a dtype, such as "FP32" for float32."""
    found = _NAMES.get(np.dtype(dtype).newbyteorder("<"))
    if found is None:
        raise RequestError(f"datatype: got {np.dtype(dtype)}; allowed: {', '.join(map(str, _NAMES))}")
    return found


def described(name: str, values: Array, *, binary: bool) -> tuple[dict[str, Any], list[bytes]]:
    """Return the JSON object of a tensor and the bytes to put behind the JSON part: none if the values are in it."""
    datatype = datatype_of(values.dtype)
    told: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(values.shape)}
    if not binary:
        return {**told, "data": values.reshape(-1).tolist()}, []
    content = np.ascontiguousarray(values, dtype=DATATYPES[datatype]).tobytes()
    return {**told, "parameters": {SIZE: len(content)}}, [content]


def values_of(told: Mapping[str, Any], where: str, behind: Bytes) -> Array:
    """Return the values of a tensor in its shape; binary ones are a view of the message if they lie aligned in it.

    Refuses, with RequestError, what the JSON object does not fit: names, counts, kinds, ranges, NaN and infinities.
    """
    code = _read_code(told.get("datatype"), where)
    shape = _read_shape(told.get("shape"), where)
    count = math.prod(shape)
    parameters = told.get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError(f"{where}.parameters: got {_shorten(parameters)}; allowed: an object with {SIZE}, or none")
    refuse_extensions(parameters, f"{where}.parameters")
    if (SIZE in parameters) == ("data" in told):
        raise RequestError(f"{where}: got {'both' if 'data' in told else 'neither'}; allowed: either data or {SIZE}")
    if "data" in told:
        found = _read_listed(told["data"], code, shape, where)
    else:
        size, wanted = parameters[SIZE], count * np.dtype(code).itemsize
        if type(size) is not int or size != wanted:
            raise RequestError(
                f"{where}.parameters.{SIZE}: got {_shorten(size)}; allowed: {wanted}, as shape {list(shape)} of "
                f"{told['datatype']} takes"
            )
        found = _view_bytes(behind.take(where, size), code, where).reshape(shape)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        first = int(np.isfinite(found).reshape(-1).argmin())
        raise RequestError(
            f"{where}: value {first} is not finite or not within {told['datatype']}; allowed: finite numbers"
        )
    return found


def refuse_extensions(parameters: Mapping[str, Any], where: str) -> None:
    """Refuse what would change the values of a tensor, or where they are; other parameters of it may be ignored."""
    for name in parameters:
        if name == "classification" or name.startswith("shared_memory_"):
            raise RequestError(f"{where}: got {name!r}; allowed: values of the tensor itself, in JSON or binary")


def _read_code(name: object, where: str) -> str:
    if not isinstance(name, str) or name not in DATATYPES:
        raise RequestError(
            f"{where}.datatype: got {_shorten(name)}; allowed: {', '.join(DATATYPES)}{closest(str(name), DATATYPES)}"
        )
    return DATATYPES[name]


def _read_shape(told: object, where: str) -> tuple[int, ...]:
    if (
        not isinstance(told, list)
        or not 1 <= len(told) <= _MOST_DIMENSIONS
        or not all(type(size) is int and 1 <= size < 2**31 for size in told)
    ):
        raise RequestError(
            f"{where}.shape: got {_shorten(told)}; allowed: a list of 1 to {_MOST_DIMENSIONS} sizes >= 1"
        )
    return tuple(told)


def _read_listed(data: object, code: str, shape: Sequence[int], where: str) -> Array:
    """Numbers of a JSON list, flat or nested as the shape says."""
    wanted, kind = math.prod(shape), np.dtype(code).kind
    flat = _flatten_values(data, shape)
    if flat is None or len(flat) != wanted:
        raise RequestError(
            f"{where}.data: got {_shorten(data)}{'' if flat is None else f' of {len(flat)} values'}; allowed: a list "
            f"of {wanted} values, flat or nested as shape {list(shape)}"
        )
    # Before numpy sees them: it would make numbers of words.
    if not set(map(type, flat)) <= _FITTING[kind]:
        wrong = next(value for value in flat if type(value) not in _FITTING[kind])
        raise RequestError(f"{where}.data: got {_shorten(wrong)}; allowed: {_WORDS[kind]}")
    found = np.array(flat)
    if kind in "iu":
        limits = np.iinfo(code)
        if found.dtype.kind not in "iu" or int(found.min()) < limits.min or int(found.max()) > limits.max:
            raise RequestError(f"{where}.data: got {min(flat)} to {max(flat)}; allowed: {limits.min} to {limits.max}")
    if found.dtype.kind == "O":
        raise RequestError(f"{where}.data: got a number beyond 64 bits; allowed: {_WORDS[kind]}")
    # Becomes infinite, which is refused.
    with np.errstate(over="ignore"):
        return found.astype(code).reshape(tuple(shape))


def _flatten_values(data: object, shape: Sequence[int]) -> list[Any] | None:
    """Return the values of a flat list, or of lists nested in the shape's way; None for anything else."""
    if not isinstance(data, list):
        return None
    if not data or not isinstance(data[0], list):
        return data
    if len(data) != shape[0]:
        return None
    for size in shape[1:]:
        if not all(isinstance(part, list) and len(part) == size for part in data):
            return None
        data = list(itertools.chain.from_iterable(data))
    return data


_WORDS = {"b": "true and false", "i": "whole numbers", "u": "whole numbers", "f": "numbers"}


def _view_bytes(content: memoryview, code: str, where: str) -> Array:
    # Copied only where it lies crooked, which torch computes with, but otherwise rounded.
    if code != "?":
        return np.require(np.frombuffer(content, dtype=code), requirements="A")
    raw = np.frombuffer(content, dtype="u1")
    if (raw > 1).any():
        raise RequestError(f"{where}: got a byte {int(raw.max())} in a tensor of BOOL; allowed: 0 and 1")
    return raw.view("?")


def _shorten(value: object) -> str:
    return reprlib.repr(value)

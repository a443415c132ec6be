"""Encodes and decodes tensors of the Open Inference Protocol, version 2: as JSON, or as binary data behind it.

Binary values are little-endian, row-major, and follow the JSON part in the order of its tensors; the header
`Inference-Header-Content-Length` gives the length of that part, `binary_data_size` of each tensor its bytes.
"""

import itertools
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import RequestError

__all__ = [
    "DATATYPES",
    "HEADER_LENGTH",
    "SIZE",
    "Datatype",
    "TrailingBytes",
    "datatype_of",
    "encode_tensor",
    "read_values",
]

HEADER_LENGTH = "Inference-Header-Content-Length"
SIZE = "binary_data_size"
Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"
]
DATATYPES = {
    "BOOL": "?",
    **{f"UINT{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
_NAMES = {np.dtype(code): name for name, code in DATATYPES.items()}
_FITTING: Mapping[str, tuple[set[type], str]] = {  # what a JSON list may hold, by kind of dtype
    "b": ({bool}, "true and false"),
    "i": ({int}, "whole numbers"),
    "u": ({int}, "whole numbers"),
    "f": ({int, float}, "numbers"),
}


class TrailingBytes:
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


def encode_tensor(name: str, values: Array, *, binary: bool) -> tuple[dict[str, Any], list[bytes]]:
    """Return the JSON object of a tensor and the bytes to put behind the JSON part: none if the values are in it."""
    datatype = datatype_of(values.dtype)
    tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(values.shape)}
    if not binary:
        return {**tensor, "data": values.reshape(-1).tolist()}, []
    content = np.ascontiguousarray(values, dtype=DATATYPES[datatype]).tobytes()
    return {**tensor, "parameters": {SIZE: len(content)}}, [content]


def read_values(
    datatype: str,
    shape: Sequence[int],
    *,
    where: str,
    data: list[Any] | None,
    size: int | None,
    behind: TrailingBytes,
) -> Array:
    """Return the values of a tensor in its shape; binary ones are a view of the message if they lie aligned in it.

    Refuses, with RequestError, what does not fit: counts, kinds, ranges, NaN and infinities.
    """
    code = DATATYPES[datatype]
    if (size is None) == (data is None):
        raise RequestError(f"{where}: got {'neither' if data is None else 'both'}; allowed: either data or {SIZE}")
    if data is not None:
        found = _read_listed(data, code, shape, where)
    else:
        wanted = math.prod(shape) * np.dtype(code).itemsize
        if size != wanted:
            raise RequestError(
                f"{where}.parameters.{SIZE}: got {size}; allowed: {wanted}, as shape {list(shape)} of {datatype} takes"
            )
        found = _view_bytes(behind.take(where, wanted), code, where).reshape(tuple(shape))
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        first = int(np.isfinite(found).reshape(-1).argmin())
        raise RequestError(f"{where}: value {first} is not finite or not within {datatype}; allowed: finite numbers")
    return found


def _read_listed(data: list[Any], code: str, shape: Sequence[int], where: str) -> Array:
    """Return the numbers of a JSON list, flat or nested as the shape says."""
    wanted, kind = math.prod(shape), np.dtype(code).kind
    flat = _flatten_values(data, shape)
    if flat is None or len(flat) != wanted:
        raise RequestError(
            f"{where}.data: got {reprlib.repr(data)}{'' if flat is None else f' of {len(flat)} values'}; allowed: a "
            f"list of {wanted} values, flat or nested as shape {list(shape)}"
        )
    # Before numpy sees them: it would make numbers of words.
    # A truth value is an int in Python, but no number of the protocol.
    types, words = _FITTING[kind]
    if not set(map(type, flat)) <= types:
        wrong = next(value for value in flat if type(value) not in types)
        raise RequestError(f"{where}.data: got {reprlib.repr(wrong)}; allowed: {words}")
    found = np.array(flat)
    if kind in "iu":
        limits = np.iinfo(code)
        if found.dtype.kind not in "iu" or int(found.min()) < limits.min or int(found.max()) > limits.max:
            raise RequestError(f"{where}.data: got {min(flat)} to {max(flat)}; allowed: {limits.min} to {limits.max}")
    if found.dtype.kind == "O":
        raise RequestError(f"{where}.data: got a number beyond 64 bits; allowed: {words}")
    # Becomes infinite, which is refused.
    with np.errstate(over="ignore"):
        return found.astype(code).reshape(tuple(shape))


def _flatten_values(data: list[Any], shape: Sequence[int]) -> list[Any] | None:
    """Return the values of a flat list, or of lists nested in the shape's way; None for anything else."""
    if not data or not isinstance(data[0], list):
        return data
    if len(data) != shape[0]:
        return None
    for size in shape[1:]:
        if not all(isinstance(part, list) and len(part) == size for part in data):
            return None
        data = list(itertools.chain.from_iterable(data))
    return data


def _view_bytes(content: memoryview, code: str, where: str) -> Array:
    # Copied only where it lies crooked, which torch computes with, but otherwise rounded.
    if code != "?":
        return np.require(np.frombuffer(content, dtype=code), requirements="A")
    raw = np.frombuffer(content, dtype="u1")
    if (raw > 1).any():
        raise RequestError(f"{where}: got a byte {int(raw.max())} in a tensor of BOOL; allowed: 0 and 1")
    return raw.view("?")

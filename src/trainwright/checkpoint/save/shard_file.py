"""Writes the data file of one rank in safetensors layout, in large writes, and reads it straight into tensors.

The header is padded so that data begins on a page; tensors follow by falling size of their elements (so that each is
aligned), then by falling size. The layout is that of https://github.com/huggingface/safetensors (Apache-2.0).
"""

import ctypes
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from trainwright.checkpoint.digest import CHUNK_BYTES, XXH3, chunk_ranges, combine_digests, digest_bytes
from trainwright.checkpoint.manifest import FileRecord, ShardRecord, TensorRecord

if TYPE_CHECKING:
    import torch

__all__ = ["CODES", "ShardFile", "TensorPlace", "memory_of", "plan_shard_file", "write_shard"]

CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
"""The names of torch's dtypes in safetensors files."""

_PAGE = 4096


class TensorPlace(NamedTuple):
    """Where a tensor lies in the buffer that is written, and what it is."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class ShardFile:
    """The places of all tensors of one file, one after the other."""

    places: tuple[TensorPlace, ...]

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return self.places[-1].start + self.places[-1].size if self.places else 0

    def header(self) -> bytes:
        """Return what comes before the data in the file."""
        header = {}
        for place in self.places:
            # What other readers have no word for is bytes to them; the manifest knows.
            code = CODES.get(place.dtype)
            header[place.name] = {
                "dtype": code or "U8",
                "shape": place.shape if code else [place.size],
                "data_offsets": [place.start, place.start + place.size],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        # Data begins on a page, so that a reader can map it into memory.
        text += b" " * (-(len(text) + 8) % _PAGE)
        return len(text).to_bytes(8, "little") + text


def plan_shard_file(tensors: "Mapping[str, torch.Tensor]") -> ShardFile:
    """Return the layout of a file with these tensors."""
    # Falling element sizes keep every tensor aligned without padding between them.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), -item[1].nbytes, item[0]))
    places, at = [], 0
    for name, tensor in ordered:
        places.append(
            TensorPlace(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), at, tensor.nbytes)
        )
        at += tensor.nbytes
    return ShardFile(tuple(places))


def write_shard(
    write: "Callable[[memoryview], Any]", name: str, layout: ShardFile, data: memoryview
) -> tuple[FileRecord, tuple[TensorRecord, ...]]:
    """Hand a file's bytes to `write` in pieces of at most 16 MiB; return its record and those of its tensors.

    Digests are taken from the buffer before it is written, so that they tell what the file should hold.
    """
    header = layout.header()
    origin = len(header)
    digests = [digest_bytes(header[start:stop], XXH3) for start, stop in chunk_ranges(0, origin)]
    ends = [stop for _, stop in chunk_ranges(0, origin)]
    tensors = []
    write(memoryview(header))
    written = 0
    for place in layout.places:
        own = []
        for start, stop in chunk_ranges(place.start, place.start + place.size):
            own.append(digest_bytes(data[start:stop], XXH3))
            ends.append(origin + stop)
            # Digests follow tensor edges, writes do not: small tensors go out together in one large write.
            if stop - written >= CHUNK_BYTES:
                written = _write_range(write, data, written, stop)
        digests += own
        whole = (0,) * len(place.shape)
        shard = ShardRecord(
            file=name,
            start=origin + place.start,
            bytes=place.size,
            digest=combine_digests(own) if own else digest_bytes(b"", XXH3),
            offsets=whole,
            lengths=place.shape,
        )
        tensors.append(TensorRecord(name=place.name, dtype=place.dtype, shape=place.shape, shards=(shard,)))
    _write_range(write, data, written, layout.size)
    file = FileRecord(name=name, bytes=origin + layout.size, chunks=tuple(digests), ends=tuple(ends))
    return file, tuple(tensors)


def _write_range(write: "Callable[[memoryview], Any]", data: memoryview, start: int, stop: int) -> int:
    for at, end in chunk_ranges(start, stop):
        write(data[at:end])
    return stop


def memory_of(tensor: "torch.Tensor") -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, in place; the tensor must outlive them."""
    if tensor.nbytes == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")

"""Read R's data: data frames as columns of numbers or texts ("R Internals", section 1.8, versions 2 and 3).

A package has its data in one .rda file each, or all in `Rdata.rdb`, with `Rdata.rdx` as the index.
"""

import bz2
import gzip
import lzma
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["read_rda", "read_rdb"]

_UNPACK: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
    (b"\x1f\x8b", gzip.decompress),
    (b"BZh", bz2.decompress),
    (b"\xfd7zXZ", lzma.decompress),
)


def read_rda(path: Path) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """Return every data frame of a file by name; factors are arrays of their levels' texts, missing numbers NaN."""
    content = path.read_bytes()
    for magic, unpack in _UNPACK:
        if content.startswith(magic):
            content = unpack(content)
    if content[:5] not in {b"RDX2\n", b"RDX3\n"}:
        raise ValueError(f"{path} is no .rda file in XDR format")
    return {name: frame for name, frame in _read(content[5:]).items() if isinstance(frame, dict)}


def read_rdb(folder: Path, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return one data frame of a package whose data lie in `Rdata.rdb`."""
    index = _read(zlib.decompress((folder / "Rdata.rdx").read_bytes(), zlib.MAX_WBITS | 32))
    start, length = (int(number) for number in index["variables"][name])
    chunk = (folder / "Rdata.rdb").read_bytes()[start : start + length]
    if chunk[4:5] == b"Z":
        raw = lzma.decompress(chunk[5:], lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}])
    else:
        raw = bz2.decompress(chunk[5:]) if chunk[4:5] == b"2" else zlib.decompress(chunk[4:])
    frame: dict[str, npt.NDArray[Any]] = _read(raw)
    return frame


def _read(content: bytes) -> Any:
    if content[:2] != b"X\n":
        raise ValueError("what R serialised is not in XDR format")
    reader = _Reader(content[2:])
    version = reader.numbers(">i4", 3)[0]
    if version == 3:
        reader.bytes(int(reader.numbers(">i4", 1)[0]))  # the native encoding
    return reader.item()


class _Reader:
    """A cursor over serialised items; what a data frame does not use is refused."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0
        self._symbols: list[str] = []

    def bytes(self, count: int) -> bytes:
        self._at += count
        return self._content[self._at - count : self._at]

    def numbers(self, kind: str, count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self.bytes(count * int(kind[-1])), dtype=kind)

    def item(self) -> Any:
        (flags,) = struct.unpack(">i", self.bytes(4))
        kind, attributed, tagged = flags & 255, bool(flags & 512), bool(flags & 1024)
        if kind == 254:  # nothing
            return None
        if kind == 255:  # a symbol seen before
            return self._symbols[(flags >> 8 or int(self.numbers(">i4", 1)[0])) - 1]
        if kind == 1:
            self._symbols.append(self.item())
            return self._symbols[-1]
        if kind == 2:
            return self._pairs(attributed, tagged)
        if kind == 9:
            size = int(self.numbers(">i4", 1)[0])
            return None if size < 0 else self.bytes(size).decode("latin-1")
        value = self._vector(kind)
        return _with(value, self.item() if attributed else {})

    def _pairs(self, attributed: bool, tagged: bool) -> dict[str, Any]:
        if attributed:
            self.item()
        name = self.item() if tagged else ""
        value = self.item()
        return {name: value, **(self.item() or {})}

    def _vector(self, kind: int) -> Any:
        count = int(self.numbers(">i4", 1)[0])
        if kind in {10, 13}:  # logical, integer
            return self.numbers(">i4", count)
        if kind == 14:
            return self.numbers(">f8", count)
        if kind in {16, 19}:  # texts, list
            return [self.item() for _ in range(count)]
        raise ValueError(f"R's type {kind} is not read here")


def _with(value: Any, attributes: dict[str, Any]) -> Any:
    if isinstance(value, list) and "names" in attributes:
        return dict(zip(attributes["names"], value, strict=True))
    if isinstance(value, np.ndarray) and "levels" in attributes:
        # A missing level is the smallest integer; the text after the last stands for it.
        return np.array([*attributes["levels"], ""])[np.where(value < 0, -1, value - 1)]
    if isinstance(value, np.ndarray) and value.dtype == np.dtype(">i4"):
        return np.where(value == np.iinfo(np.int32).min, np.nan, value)
    return value

"""Slices of stored tensors, read by chunks whose digests are compared.

A tensor is its name and its global shape; ranks and files hold slices of it. A wanted slice is put together from the
stored slices that it meets, whatever number of ranks wrote them; no other chunks are read.
"""

import bisect
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainwright.checkpoint.digest import CHUNK_BYTES, digest_bytes, kind_of, read_at, read_chunk
from trainwright.checkpoint.manifest import FileRecord, Manifest, ShardRecord, TensorRecord
from trainwright.checkpoint.save.shard_file import memory_of
from trainwright.errors import CheckpointCorruptError

if TYPE_CHECKING:
    import torch

__all__ = ["SliceReader", "TensorSlice", "open_slices"]

# Read at once: with the chunk that it ends in, less than two chunks of memory.
_SPAN_BYTES = CHUNK_BYTES // 2


class TensorSlice(NamedTuple):
    """A part of a tensor: from `offsets`, of `lengths`."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> "TensorSlice":
        """Return the slice that is all of a tensor."""
        return cls((0,) * len(shape), shape)

    def intersect(self, other: "TensorSlice") -> "TensorSlice | None":
        """Return what two slices have in common; None if that is nothing."""
        # Slices are half-open intervals per dimension; an empty one in any dimension makes the whole empty.
        low = tuple(max(pair) for pair in zip(self.offsets, other.offsets, strict=True))
        high = tuple(
            min(one + size, two + other_size) for one, size, two, other_size in zip(*self, *other, strict=True)
        )
        if any(start >= stop for start, stop in zip(low, high, strict=True)):
            return None
        return TensorSlice(low, tuple(stop - start for start, stop in zip(low, high, strict=True)))

    def within(self, other: "TensorSlice") -> tuple[slice, ...]:
        """Return the slices that cut this slice out of `other`, which holds it."""
        return tuple(
            slice(low - start, low - start + size)
            for low, size, start in zip(self.offsets, self.lengths, other.offsets, strict=True)
        )


class _Piece(NamedTuple):
    """A part of one chunk that goes to consecutive memory."""

    tensor: str
    file: FileRecord
    chunk: int
    start: int
    view: memoryview


class SliceReader:
    """Reads slices of the tensors of one checkpoint; with `check` every chunk that it reads is compared first."""

    def __init__(
        self, folder: Path, manifest: Manifest, open_file: Callable[[str], int], pool: Executor, *, check: bool = True
    ) -> None:
        self._folder = folder
        self._files = {record.name: record for record in manifest.files}
        self._open = open_file
        self._pool = pool
        self._check = check
        self._last: tuple[str, int, memoryview] | None = None

    def read(self, record: TensorRecord, box: TensorSlice) -> "torch.Tensor":
        """Return a slice of a tensor, on the CPU. Raises as `fill`."""
        import torch

        target = torch.empty(box.lengths, dtype=getattr(torch, record.dtype))
        self.fill([(record, box, target)])
        return target

    def fill(self, wanted: "Iterable[tuple[TensorRecord, TensorSlice, torch.Tensor]]") -> None:
        """Read slices, each into a tensor of its shape on the CPU, several chunks at once.

        What is consecutive in a file and in its tensor is read in place; the rest in parts of less than a chunk. Raises
        `CheckpointCorruptError` if a chunk is damaged, or if the stored slices do not cover what is wanted.
        """
        pieces: list[_Piece] = []
        # Pieces know the memory of tensors, and do not keep it.
        kept = list(wanted)
        for record, box, target in kept:
            covered = 0
            for shard in record.shards:
                stored = TensorSlice(shard.offsets, shard.lengths)
                common = stored.intersect(box)
                if common is None:
                    continue
                covered += prod(common.lengths)
                place = target[common.within(box)]
                # Consecutive in the file and in the target: read straight into place, chunk by chunk, in parallel.
                if place.is_contiguous() and _span_values(common.lengths, _strides_of(stored.lengths)) == place.numel():
                    pieces += self._contiguous_pieces(record.name, shard, common, place)
                    continue
                # Otherwise read stretches of the file that hold the slice, and copy the wanted values out of them.
                for part in _split_slice(common, stored, target.element_size()):
                    target[part.within(box)].copy_(self._read_part(record, shard, part, target))
            if covered != prod(box.lengths):
                raise CheckpointCorruptError(
                    f"{self._folder}: {record.name} has {covered} of the {prod(box.lengths)} values that are asked for"
                )
        for _ in self._pool.map(self._read_piece, pieces):
            pass

    def _contiguous_pieces(
        self, name: str, shard: ShardRecord, box: TensorSlice, place: "torch.Tensor"
    ) -> Iterator[_Piece]:
        record, view = self._files[shard.file], memory_of(place)
        cuts = box.within(TensorSlice(shard.offsets, shard.lengths))
        first = sum(cut.start * stride for cut, stride in zip(cuts, _strides_of(shard.lengths), strict=True))
        start = at = shard.start + first * place.element_size()
        while at < start + len(view):
            number = _chunk_number(record, at)
            end = min(start + len(view), record.chunk_range(number)[1])
            yield _Piece(name, record, number, at, view[at - start : end - start])
            at = end

    def _read_piece(self, piece: _Piece) -> None:
        low, high = piece.file.chunk_range(piece.chunk)
        handle = self._open(piece.file.name)
        # A piece that is a whole chunk is checked in its target; a part of a chunk needs the chunk around it.
        if not self._check or len(piece.view) == high - low:
            count = read_at(handle, piece.start, piece.view)
            if count < len(piece.view) or (self._check and not _has_digest(piece.view, piece.file.chunks[piece.chunk])):
                raise self._damage_error(piece.tensor, piece.file, piece.chunk)
            return
        content = self._read_chunk(piece.tensor, piece.file, piece.chunk)
        piece.view[:] = content[piece.start - low : piece.start - low + len(piece.view)]

    def _read_part(
        self, record: TensorRecord, shard: ShardRecord, part: TensorSlice, like: "torch.Tensor"
    ) -> "torch.Tensor":
        """Return a slice as a view of the bytes from its first value to its last."""
        import torch

        size, strides = like.element_size(), _strides_of(shard.lengths)
        cuts = part.within(TensorSlice(shard.offsets, shard.lengths))
        first = sum(cut.start * stride for cut, stride in zip(cuts, strides, strict=True))
        start = shard.start + first * size
        stop = start + _span_values(part.lengths, strides) * size
        content = self._read_bytes(record.name, self._files[shard.file], start, stop)
        return torch.frombuffer(content, dtype=like.dtype).as_strided(part.lengths, strides)

    def _read_bytes(self, name: str, record: FileRecord, start: int, stop: int) -> bytearray:
        """Return bytes of a file, out of its chunks; the last one is kept, for the next part may begin in it."""
        content = bytearray(stop - start)
        number, at = _chunk_number(record, start), start
        while at < stop:
            low, high = record.chunk_range(number)
            end = min(stop, high)
            if self._last is None or self._last[:2] != (record.name, number):
                # Let go of one before the next is read.
                self._last = None
                self._last = record.name, number, memoryview(self._read_chunk(name, record, number))
            content[at - start : end - start] = self._last[2][at - low : end - low]
            at, number = end, number + 1
        return content

    def _read_chunk(self, name: str, record: FileRecord, number: int) -> bytearray:
        start, stop = record.chunk_range(number)
        content = read_chunk(self._open(record.name), start, stop)
        if len(content) != stop - start or (self._check and not _has_digest(content, record.chunks[number])):
            raise self._damage_error(name, record, number)
        return content

    def _damage_error(self, name: str, record: FileRecord, number: int) -> CheckpointCorruptError:
        start, stop = record.chunk_range(number)
        return CheckpointCorruptError(
            f"{self._folder}: {record.name} is damaged in chunk {number} (bytes {start} to {stop}, {name})"
        )


@contextmanager
def open_slices(folder: Path, manifest: Manifest, *, check: bool = True) -> Iterator[SliceReader]:
    """Open a checkpoint for reading slices; its files are opened when they are needed, and closed at the end."""
    handles: dict[str, int] = {}
    lock = threading.Lock()

    def open_file(name: str) -> int:
        with lock:
            if name not in handles:
                try:
                    handles[name] = os.open(folder / name, os.O_RDONLY)
                except OSError as error:
                    reason = (error.strerror or str(error)).lower()
                    raise CheckpointCorruptError(f"{folder}: {name} cannot be read: {reason}") from error
            return handles[name]

    try:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            yield SliceReader(folder, manifest, open_file, pool, check=check)
    finally:
        for handle in handles.values():
            os.close(handle)


def _split_slice(box: TensorSlice, stored: TensorSlice, size: int) -> Iterator[TensorSlice]:
    """Yield the slices into which `box` is cut so that the stored bytes that one spans are few."""
    strides = _strides_of(stored.lengths)
    if _span_values(box.lengths, strides) * size <= _SPAN_BYTES:
        yield box
        return
    # Cut along the outermost dimension that has more than one row, into as many rows as fit the span.
    dim = next(place for place, length in enumerate(box.lengths) if length > 1)
    rest = _span_values((1, *box.lengths[dim + 1 :]), strides[dim:])
    rows = max(1, (_SPAN_BYTES // size - rest) // strides[dim] + 1)
    for at in range(0, box.lengths[dim], rows):
        part = TensorSlice(
            (*box.offsets[:dim], box.offsets[dim] + at, *box.offsets[dim + 1 :]),
            (*box.lengths[:dim], min(rows, box.lengths[dim] - at), *box.lengths[dim + 1 :]),
        )
        yield from _split_slice(part, stored, size)


def _strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[place + 1 :]) for place in range(len(shape)))


def _span_values(lengths: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of values from the first to the last of a slice."""
    return 1 + sum((length - 1) * stride for length, stride in zip(lengths, strides, strict=True))


def _chunk_number(record: FileRecord, at: int) -> int:
    return bisect.bisect_right(record.ends, at) if record.ends else at // CHUNK_BYTES


def _has_digest(content: bytearray | memoryview, expected: str) -> bool:
    return digest_bytes(content, kind_of(expected)) == expected

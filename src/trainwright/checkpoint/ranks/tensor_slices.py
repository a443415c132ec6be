"""Reads slices of stored tensors, by chunks whose digests it verifies.

A tensor is its name and its global shape; ranks and files hold slices of it. A wanted slice is put together from the
stored slices that it meets, whatever number of ranks wrote them; no other chunks are read.
"""

import bisect
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainwright.checkpoint.digest import CHUNK_BYTES, digest_bytes, kind_of, read_at
from trainwright.checkpoint.manifest import FileRecord, Manifest, ShardRecord, TensorRecord
from trainwright.checkpoint.save.shard_file import memory_of
from trainwright.errors import CheckpointCorruptError

if TYPE_CHECKING:
    import torch

__all__ = ["SliceReader", "TensorShare", "TensorSlice", "open_slices"]


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
    memory: memoryview


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

    def read(self, record: TensorRecord, wanted: TensorSlice) -> "torch.Tensor":
        """Return a slice of a tensor, on the CPU. Raises as `fill`."""
        import torch

        target = torch.empty(wanted.lengths, dtype=getattr(torch, record.dtype))
        self.fill([(record, wanted, target)])
        return target

    def fill(self, wanted: "Iterable[tuple[TensorRecord, TensorSlice, torch.Tensor]]") -> None:
        """Read slices, each into a tensor of its shape on the CPU, several chunks at once.

        What is consecutive in a file and in its tensor is read in place; the rest by way of memory for the stored slice
        from its first value to its last. Raises `CheckpointCorruptError` if a chunk is damaged, or if the stored slices
        do not cover what is wanted.
        """
        import torch

        in_place: list[_Piece] = []
        # Pieces know the memory of tensors, and do not keep it.
        kept = list(wanted)
        for record, part, target in kept:
            size, covered = target.element_size(), 0
            for shard in record.shards:
                stored = TensorSlice(shard.offsets, shard.lengths)
                common = stored.intersect(part)
                if common is None:
                    continue
                # Stored slices do not overlap, so that a smaller number of values shows a hole.
                covered += prod(common.lengths)
                place = target[common.within(part)]
                # Where the slice begins in the stored one, and how many values lie from its first to its last.
                lengths = stored.lengths
                strides = [prod(lengths[place + 1 :]) for place in range(len(lengths))]
                first = sum(cut.start * stride for cut, stride in zip(common.within(stored), strides, strict=True))
                values = 1 + sum((length - 1) * stride for length, stride in zip(common.lengths, strides, strict=True))
                # Without gaps on either side, the bytes of the file are those of the target.
                if place.is_contiguous() and values == place.numel():
                    in_place += self._cut_at_chunks(record.name, shard, first * size, memory_of(place))
                    continue
                span = bytearray(values * size)
                self._read(self._cut_at_chunks(record.name, shard, first * size, memoryview(span)))
                # Between its first value and its last the span holds others, which the strides pass over.
                place.copy_(torch.frombuffer(span, dtype=target.dtype).as_strided(common.lengths, strides))
            if covered != prod(part.lengths):
                raise CheckpointCorruptError(
                    f"{self._folder}: {record.name} has {covered} of the {prod(part.lengths)} values that are asked for"
                )
        self._read(in_place)

    def _cut_at_chunks(self, name: str, shard: ShardRecord, offset: int, memory: memoryview) -> Iterator[_Piece]:
        """Yield the pieces of consecutive bytes of a shard, from `offset` on, that fill a memory."""
        file = self._files[shard.file]
        start = at = shard.start + offset
        while at < start + len(memory):
            # Where a file does not list the ends of its chunks, all have the same size.
            chunk = bisect.bisect_right(file.ends, at) if file.ends else at // CHUNK_BYTES
            end = min(start + len(memory), file.chunk_range(chunk)[1])
            yield _Piece(name, file, chunk, at, memory[at - start : end - start])
            at = end

    def _read(self, pieces: Iterable[_Piece]) -> None:
        # There are no results, but asking for them raises what a piece has raised.
        for _ in self._pool.map(self._read_piece, pieces):
            pass

    def _read_piece(self, piece: _Piece) -> None:
        start, stop = piece.file.chunk_range(piece.chunk)
        handle, whole = self._open(piece.file.name), len(piece.memory) == stop - start
        # Only whole chunks have digests: for a part of one the chunk around it is read.
        memory = piece.memory if whole or not self._check else memoryview(bytearray(stop - start))
        count = read_at(handle, piece.start if memory is piece.memory else start, memory)
        expected = piece.file.chunks[piece.chunk]
        if count < len(memory) or (self._check and digest_bytes(memory, kind_of(expected)) != expected):
            raise CheckpointCorruptError(
                f"{self._folder}: {piece.file.name} is damaged in chunk {piece.chunk} (bytes {start} to {stop}, "
                f"{piece.tensor})"
            )
        if memory is not piece.memory:
            piece.memory[:] = memory[piece.start - start : piece.start - start + len(piece.memory)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorShare:
    """What one rank holds of a tensor: a slice of the global shape, whether it writes it, and if others have it."""

    shape: tuple[int, ...]
    box: TensorSlice
    writes: bool
    shared: bool = False


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

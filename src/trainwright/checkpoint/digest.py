"""Digests of what a checkpoint holds: BLAKE2b-128 of each chunk, taken from memory when it is written.

A file is cut into chunks of at most 16 MiB; files of our own are cut at the edges of tensors too, so that one pass over
the bytes gives the digests of chunks and of tensors: a tensor of several chunks has the digest of their digests.
"""

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["CHUNK_BYTES", "combined", "cuts", "digest", "digest_file", "read_at", "read_chunk"]

CHUNK_BYTES = 16 << 20
"""The most bytes that one digest covers, and that one write hands to the system."""


def digest(data: bytes | bytearray | memoryview) -> str:
    """Return the BLAKE2b-128 of a buffer as 32 hexadecimal digits; lets other threads run meanwhile."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def combined(digests: Sequence[str]) -> str:
    """Return the digest of consecutive chunks taken together: that of a single one is its own."""
    return digests[0] if len(digests) == 1 else digest("".join(digests).encode())


def cuts(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the consecutive (start, stop) of at most 16 MiB that cover a range of bytes; none for an empty one."""
    for at in range(start, stop, CHUNK_BYTES):
        yield at, min(at + CHUNK_BYTES, stop)


def digest_file(path: Path, ends: Sequence[int] = (), *, threads: int | None = None) -> tuple[str, ...]:
    """Return the digest of each chunk of a file, several read at once.

    `ends` says where each chunk ends; without it they are 16 MiB each. A file shorter than the last end gives the
    digests of what is there.
    """
    size = path.stat().st_size
    edges = [0, *ends] if ends else [0, *(stop for _, stop in cuts(0, size))]
    chunks = list(itertools.pairwise(edges))
    handle = os.open(path, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1)) as pool:
            return tuple(pool.map(lambda chunk: digest(read_chunk(handle, *chunk)), chunks))
    finally:
        os.close(handle)


def read_chunk(handle: int, start: int, stop: int) -> bytearray:
    """Return the bytes of an open file from `start` to `stop`, fewer at its end."""
    buffer = bytearray(stop - start)
    return buffer[: read_at(handle, start, memoryview(buffer))]


def read_at(handle: int, start: int, memory: memoryview) -> int:
    """Read from `start` of an open file into memory; return the count of bytes, less than asked for at its end."""
    done = 0
    while done < len(memory):
        count = os.preadv(handle, [memory[done:]], start + done)
        if count == 0:
            break
        done += count
    return done

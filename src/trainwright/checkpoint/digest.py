"""Computes digests (checksums) of files and buffers in chunks of at most 16 MiB, while a checkpoint is written.

BLAKE2b-128 where a digest names something; XXH3-128 ("xxh3:...") for data, at a twentieth of the cost or less. A file
is cut into chunks of at most 16 MiB; files of our own are cut at the edges of tensors too, so that one pass over the
bytes gives the digests of chunks and of tensors: a tensor of several chunks has the digest of their digests.
"""

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = [
    "BLAKE2B",
    "CHUNK_BYTES",
    "XXH3",
    "chunk_ranges",
    "combine_digests",
    "digest_bytes",
    "digest_file",
    "kind_of",
    "read_at",
]

BLAKE2B = "blake2b"
XXH3 = "xxh3"

CHUNK_BYTES = 16 << 20
"""The most bytes that one digest covers, and that one write hands to the system."""


def digest_bytes(data: bytes | bytearray | memoryview, kind: str = BLAKE2B) -> str:
    """Return the digest of a buffer in hexadecimal digits, of a kind that `kind_of` gave, or XXH3 for large data."""
    if kind == XXH3:
        import xxhash

        return f"{XXH3}:{xxhash.xxh3_128_hexdigest(data)}"
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def kind_of(known: str) -> str:
    """Return of which kind a digest is."""
    return XXH3 if known.startswith(f"{XXH3}:") else BLAKE2B


def combine_digests(digests: Sequence[str]) -> str:
    """Return the digest of consecutive chunks taken together: that of a single one is its own."""
    return digests[0] if len(digests) == 1 else digest_bytes("".join(digests).encode(), kind_of(digests[0]))


def chunk_ranges(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the consecutive (start, stop) of at most 16 MiB that cover a range of bytes; none for an empty one."""
    for at in range(start, stop, CHUNK_BYTES):
        yield at, min(at + CHUNK_BYTES, stop)


def digest_file(path: Path, ends: Sequence[int] = (), *, kind: str = BLAKE2B) -> tuple[str, ...]:
    """Return the digest of each chunk of a file; several threads read one stretch of it each.

    `ends` says where each chunk ends; without it they are 16 MiB each. A file shorter than the last end gives the
    digests of what is there.
    """
    size = path.stat().st_size
    # Chunks end with tensors in data files; other files have equal chunks.
    edges = [0, *ends] if ends else [0, *(stop for _, stop in chunk_ranges(0, size))]
    chunks = list(itertools.pairwise(edges))
    workers = max(1, min(8, os.cpu_count() or 1, len(chunks)))

    def digest_stretch(number: int) -> list[str]:
        # One for all: fresh memory costs more than reading.
        buffer = memoryview(bytearray(min(CHUNK_BYTES, size)))
        digests = []
        handle = os.open(path, os.O_RDONLY)
        try:
            # Each thread reads one contiguous stretch, which suits the read-ahead of the system.
            for start, stop in chunks[len(chunks) * number // workers : len(chunks) * (number + 1) // workers]:
                memory = buffer[: stop - start]
                digests.append(digest_bytes(memory[: read_at(handle, start, memory)], kind))
        finally:
            os.close(handle)
        return digests

    if workers == 1:
        return tuple(digest_stretch(0))
    with ThreadPoolExecutor(workers) as pool:
        return tuple(itertools.chain.from_iterable(pool.map(digest_stretch, range(workers))))


def read_at(handle: int, start: int, memory: memoryview) -> int:
    """Read from `start` of an open file into memory; return the count of bytes, less than asked for at its end."""
    done = 0
    while done < len(memory):
        count = os.preadv(handle, [memory[done:]], start + done)
        if count == 0:
            break
        done += count
    return done

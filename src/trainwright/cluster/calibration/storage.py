"""Measures the storage of a folder: a large file written and read, small files read, none from the host's cache."""

import os
import statistics
import tempfile
from pathlib import Path

from trainwright.cluster.calibration.timing import shortest_time, wall_clock
from trainwright.cluster.device import Storage
from trainwright.errors import InputError

__all__ = ["measure_storage"]

_SMALL_FILES, _SMALL_BYTES = 200, 16_384


def measure_storage(folder: Path, *, size: int, repeats: int) -> tuple[Storage, float]:
    """Return the speed of a folder, and how much the median of its repeats is above the shortest.

    A file of `size` bytes is written until it is on disk, and read again after the host was asked to forget it, which
    a parallel file system's own caches may not do; then many files of 16 kB, of which what exceeds their bytes counts.
    `write` is one writer's, no cap of a whole job. Raises `InputError` if the folder cannot be written.
    """
    writes, reads, files = [], [], []
    try:
        with tempfile.TemporaryDirectory(prefix="trainwright-", dir=folder) as name:
            large, small = Path(name) / "large", [Path(name) / f"small{place}" for place in range(_SMALL_FILES)]
            # The small files are written once and read in each repeat.
            for path in small:
                _write_synced(path, os.urandom(_SMALL_BYTES))
            content = os.urandom(size)
            for _ in range(repeats):
                writes.append(wall_clock(lambda: _write_synced(large, content)))
                # Without this the file would come from the host's memory, not from the disk.
                _drop_from_cache(large)
                reads.append(wall_clock(lambda: _read_files(large)))
                for path in small:
                    _drop_from_cache(path)
                files.append(wall_clock(lambda: _read_files(*small)) / _SMALL_FILES)
    except OSError as error:
        raise InputError(f"storage {folder}: cannot be measured ({error}); allowed: a folder to write in") from None
    write, read = size / shortest_time(writes), size / shortest_time(reads)
    # The larger of the two relative differences is the error of the whole.
    spread = max(1 - shortest_time(each) / statistics.median(each) for each in (writes, reads))
    return Storage(
        node_read=read, write=write, file_seconds=max(0.0, shortest_time(files) - _SMALL_BYTES / read)
    ), spread


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read_files(*paths: Path) -> None:
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 22):
                pass


def _drop_from_cache(path: Path) -> None:
    """Ask the host to drop a file from its page cache, where there is a call for it."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

"""Journals: append-only files of one writer each, and the reader that follows many of them.

Because a file has one writer and a restarted writer opens a new one, no lock is needed and nothing is ever written
after a torn tail.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trainwright.errors import LedgerError
from trainwright.ledger.protocol import Dropped
from trainwright.ledger.record import Record

__all__ = ["Fsync", "JournalReader", "JournalWriter"]

Fsync = Literal["lifecycle", "always", "never"]

_LAZY_KINDS = frozenset({"proposed", "reported", "decided", "note"})
_LAZY_SECONDS = 5.0


class JournalWriter:
    """Appends records to one file, created at the first append.

    `fsync="lifecycle"` (default): on disk before `append` returns, except for batches of proposals (a trial's start
    brings them there), reports, decisions and notes alone, which are written at once (they survive the death of the process) and synced within 5 seconds of the next append or
    beat (so only the death of the machine can lose them). "always" syncs every batch, "never" leaves it to the system.
    """

    def __init__(self, path: Path, fsync: Fsync) -> None:
        self.path = path
        self._fsync = fsync
        self._file: int | None = None
        self._unsynced_since: float | None = None

    def append(self, records: Sequence[Record]) -> None:
        """Write the records in one call; raise `LedgerError` naming path and free space if that fails."""
        data = b"".join([record.line() for record in records])
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
                if self._fsync != "never":
                    _sync_directory(self.path.parent)
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(28, "no space left on device")  # a short write on a regular file means just that
        except OSError as error:
            raise LedgerError(_failure(self.path, error)) from error
        self._after_write(records)

    def _after_write(self, records: Sequence[Record]) -> None:
        now = time.monotonic()
        if self._unsynced_since is None:
            self._unsynced_since = now
        urgent = self._fsync == "always" or any(record.kind not in _LAZY_KINDS for record in records)
        if urgent or now - self._unsynced_since > _LAZY_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Bring what was written to the disk, unless the policy leaves that to the system."""
        if self._file is None or self._unsynced_since is None or self._fsync == "never":
            return
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise LedgerError(_failure(self.path, error)) from error
        self._unsynced_since = None

    def close(self) -> None:
        """Sync and close the file."""
        try:
            self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the file as it is: what failed was told already, and a failing close cannot be mended."""
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                os.close(file)


@dataclass(slots=True)
class _Place:
    """How far one journal was read."""

    offset: int = 0
    bad: list[Dropped] = field(default_factory=list)
    tail: int = 0


class JournalReader:
    """Follows all journals of a folder. `places` says how far each was read; keep it to go on from there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[str, _Place] = {}

    def read(self, offsets: dict[str, int], most_bytes: int | None = None) -> tuple[list[Record], dict[str, int]]:
        """Return the whole records beyond `offsets` (file name to bytes), in order per file, and the new offsets.

        With `most_bytes` it stops there, but reads at least one line of a file that has grown.
        """
        records: list[Record] = []
        after = dict(offsets)
        try:
            with os.scandir(self.folder) as entries:
                grown = sorted(
                    entry.name
                    for entry in entries
                    if entry.name.endswith(".jsonl") and entry.stat().st_size > offsets.get(entry.name, 0)
                )
        except OSError as error:
            raise LedgerError(f"cannot read {self.folder}: {error.strerror or error}") from error
        for name in grown:
            start = offsets.get(name, 0)
            after[name] = self._read_file(name, start, most_bytes, records)
            if most_bytes is not None and (most_bytes := most_bytes - (after[name] - start)) <= 0:
                break
        return records, after

    def _read_file(self, name: str, offset: int, most_bytes: int | None, records: list[Record]) -> int:
        with (self.folder / name).open("rb") as file:  # opened anew: a handle kept on NFS shows old bytes
            file.seek(offset)
            data = file.read(most_bytes)
            if most_bytes is not None and len(data) == most_bytes:
                data += file.readline()  # to the end of the line that the limit cut
            size = os.fstat(file.fileno()).st_size
        place = self.places.setdefault(name, _Place())
        hole = data.find(b"\0")  # a page that has not arrived yet on a network file system
        whole = data.rfind(b"\n", 0, hole if hole >= 0 else len(data)) + 1
        lines = data[:whole].split(b"\n")[:-1]
        start = offset
        for line, record in zip(lines, Record.of_lines(lines), strict=True):
            if record is not None:
                records.append(record)
            elif (dropped := Dropped(name, start, len(line) + 1, "its checksum does not hold")) not in place.bad:
                place.bad.append(dropped)
            start += len(line) + 1
        place.offset = offset + whole
        place.tail = size - place.offset if whole < len(data) else 0  # beyond a hole nothing is read
        return offset + whole

    def dropped(self) -> list[Dropped]:
        """Return the damaged lines and unfinished tails seen so far."""
        found: list[Dropped] = []
        for name, place in sorted(self.places.items()):
            found.extend(place.bad)
            if place.tail:
                found.append(Dropped(name, place.offset, place.tail, "its end is missing"))
        return found


def _sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _failure(path: Path, error: OSError) -> str:
    try:
        free = f"; {shutil.disk_usage(path.parent).free:,} bytes are free there"
    except OSError:
        free = ""
    return (
        f"cannot write {path}: {(error.strerror or str(error)).lower()}{free}; mend that and run again, nothing is lost"
    )

"""Appends records to journals durably (fsync): files of one writer each.

Because a file has one writer and a restarted writer opens a new one, no lock is needed and nothing is ever written
after a torn tail.
"""

import contextlib
import errno
import os
import shutil
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from trainwright.errors import LedgerError, LedgerFull
from trainwright.ledger.record import Record
from trainwright.publishing import is_disk_full, sync_folder

__all__ = ["END", "Fsync", "JournalWriter", "write_error"]

Fsync = Literal["lifecycle", "always", "never"]

END = b"%08x %b\n" % (zlib.crc32(b'{"v":1,"end":true}'), b'{"v":1,"end":true}')
"""The last line of a journal that its writer has done with: nothing will follow, so nobody need look again."""

_LAZY_KINDS = frozenset({"proposed", "started", "reported", "decided", "promoted", "note"})
_LAZY_SECONDS = 5.0


class JournalWriter:
    """Appends the records of one writer to its file, WRITER.jsonl, which is created at the first append.

    `fsync="lifecycle"` (default): on disk before `append` returns, except for batches of proposals, starts, reports,
    decisions, promotions and notes alone, which are written at once (they survive the death of the process) and synced
    with the next other record, or within 5 seconds of the next append or heartbeat: only the death of the machine can
    lose them. "always" syncs every batch, "never" leaves it to the system.
    """

    def __init__(self, folder: Path, writer: str, fsync: Fsync) -> None:
        self._folder = folder
        self.path = folder / f"{writer}.jsonl"
        self._fsync = fsync
        self._file: int | None = None
        self._unsynced_since: float | None = None
        self._unsynced: list[Record] = []
        # Acknowledged before a sync that failed: perhaps not on the disk.
        self.doubtful: list[Record] = []

    def append(self, records: Sequence[Record]) -> None:
        """Write the records in one call.

        Raises `LedgerError` with path and free space if that fails, or if the file is no longer there.
        """
        data = b"".join([record.line() for record in records])
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
                if self._fsync != "never":
                    sync_folder(self._folder)
            written = os.write(self._file, data)
            if written != len(data):
                # What a short write on a regular file means.
                raise OSError(errno.ENOSPC, "no space left on device")
            if os.fstat(self._file).st_nlink == 0:
                # Nobody would read there what is acknowledged.
                raise OSError(errno.ESTALE, "it was removed")
        except OSError as error:
            failure = write_error(f"write {self.path}", self._folder, error)
            with contextlib.suppress(LedgerError):
                # What was acknowledged before.
                self.sync()
            raise failure from error
        self._after_write(records)

    def _after_write(self, records: Sequence[Record]) -> None:
        now = time.monotonic()
        if self._unsynced_since is None:
            self._unsynced_since = now
        urgent = self._fsync == "always" or any(record.kind not in _LAZY_KINDS for record in records)
        if urgent or now - self._unsynced_since > _LAZY_SECONDS:
            self.sync()
        elif self._fsync != "never":
            self._unsynced += records

    def sync(self) -> None:
        """Make the records durable by an fsync of their file, unless the policy leaves that to the system."""
        if self._file is None or self._unsynced_since is None or self._fsync == "never":
            return
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self.doubtful, self._unsynced_since = self._unsynced, None
            raise write_error(f"write {self.path}", self._folder, error) from error
        self._unsynced, self._unsynced_since = [], None

    def close(self) -> None:
        """Sync the file, write its last line and let go of it."""
        try:
            self.sync()
            if self._file is not None:
                # Without that line it is only looked at for longer.
                with contextlib.suppress(OSError):
                    os.write(self._file, END)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the file as it is: what failed was told already, and a failing close cannot be mended."""
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                os.close(file)


def write_error(what: str, where: Path, error: OSError) -> LedgerError:
    """Return the error of what could not be done in the folder `where`, with the room that is there."""
    try:
        free = f"; {shutil.disk_usage(where).free:,} bytes are free there"
    except OSError:
        free = ""
    kind = LedgerFull if is_disk_full(error) else LedgerError
    return kind(
        f"cannot {what}: {(error.strerror or str(error)).lower()}{free}; mend that and run again, nothing is lost"
    )

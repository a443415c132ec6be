"""The default ledger: a directory in which each writer appends to a journal of its own; no server, no lock."""

import errno
import hashlib
import math
import os
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args
from urllib.parse import quote

from trainwright.errors import LedgerError, StudyError, closest
from trainwright.ledger.journal import Fsync, JournalWriter, write_error
from trainwright.ledger.protocol import Cursor, Dropped
from trainwright.ledger.reader import JournalReader
from trainwright.ledger.record import Record, new_identity, read_identity
from trainwright.ledger.writers import new_writer
from trainwright.publishing import make_folder, sync_folder

__all__ = ["DirectoryLedger"]


class DirectoryLedger:
    """A ledger in `directory` (a study's `ledger/` folder).

        study.json                 format version, study id, time of creation; written once
        journal/WRITER.jsonl       the records of one writer
        claims/HH/KEY              the token that owns KEY; HH are two hex digits of the key's hash
        beats/WRITER               the writer's count of beats

    Durability: see `JournalWriter`. Claims rest on `link(2)`, judged by the link count or by what is there, which
    network file systems keep even where they lose the return code. `create=True` makes the directory if it is not
    there. `heartbeat` may be called from another thread.
    """

    lease_seconds = 180.0

    def __init__(self, directory: str | Path, *, create: bool = False, fsync: Fsync = "lifecycle") -> None:
        if fsync not in get_args(Fsync):
            raise StudyError(f"DirectoryLedger.fsync: got {fsync!r}; allowed: {', '.join(map(repr, get_args(Fsync)))}")
        self.directory = Path(directory)
        self._fsync = fsync
        try:
            if create:
                _create(self.directory)
            self.study_id = _study_id(self.directory)
        except PermissionError as error:
            raise StudyError(f"cannot write {error.filename or self.directory}: permission denied") from error
        except OSError as error:
            raise StudyError(
                f"cannot use {self.directory} as a ledger: {(error.strerror or str(error)).lower()}"
            ) from error
        self._reader = JournalReader(self.directory / "journal")
        self._lock = threading.RLock()
        # Acknowledged, but perhaps not on the disk: written again with the next ones.
        self._again: list[Record] = []
        # Of every writer that this object was since it was opened.
        self._beats: dict[str, int] = {}
        # The latest token with which a claim was won, and such a claim.
        self._won: dict[str, Path] = {}
        self._open_writer()

    def _open_writer(self) -> None:
        self.writer = new_writer()
        self._seq = 0
        self._journal = JournalWriter(self.directory / "journal", self.writer, self._fsync)

    def append(self, records: Sequence[Record]) -> list[Record]:
        """Write the records as the journal's fsync policy says and return them stamped.

        After a failure, or Ctrl-C in the middle of it, the object goes on as a new writer, since what the old file's
        end looks like is unknown. It writes again what a failed sync has left in doubt. Raises `LedgerError`, on a full
        disk `LedgerFull`.
        """
        with self._lock:
            at, again = time.time(), self._again
            stamped = [record.stamped(self.writer, self._seq + i, at) for i, record in enumerate([*again, *records])]
            try:
                self._journal.append(stamped)
                self._seq += len(stamped)
            except BaseException:
                self._renew()
                raise
            self._again = []
            return stamped[len(again) :]

    def _renew(self) -> None:
        self._again = [*self._again, *self._journal.doubtful]
        self._journal.abandon()
        self._open_writer()

    def read(self, cursor: Cursor | None = None, *, most: int | None = None) -> tuple[list[Record], Cursor]:
        """Return the records beyond `cursor` (bytes per journal); see `JournalReader` for how soon they are seen."""
        return self._reader.read(cursor or {}, most)

    def claim(self, key: str, token: str) -> str:
        """Return the token that owns `key`, after trying to put `token` there."""
        # No "." and "..", no hidden files.
        name = quote(key, safe="").replace(".", "%2E")
        folder = self.directory / "claims" / hashlib.blake2b(name.encode(), digest_size=1).hexdigest()
        path = folder / name
        try:
            with suppress(FileNotFoundError):
                # A look costs a tenth of a try, and at a study's end all want the last numbers.
                return _owner(path)
            try:
                return token if self._put(path, token) else _owner(path)
            except FileNotFoundError:
                # The first claim there.
                folder.mkdir(exist_ok=True)
                return token if self._put(path, token) else _owner(path)
        except OSError as error:
            raise write_error(f"claim {key} in {self.directory}", self.directory, error) from error

    def _put(self, path: Path, token: str) -> bool:
        """Put a claim there unless one is; return False if whose it is has to be read.

        All claims of a writer are names of one file: to make a file takes some 40 times as long as another name.
        """
        if token in self._won:
            try:
                os.link(self._won[token], path)
            except FileExistsError:
                return False
            except OSError as error:
                # It is gone, or can have no more names.
                if isinstance(error, FileNotFoundError) and not path.parent.is_dir():
                    raise
                self._won.clear()
            else:
                return True
        if won := _link(path, token):
            self._won = {token: path}
        return won

    def heartbeat(self) -> None:
        """Write this writer's next count, and those of the writers it was, and bring late reports to the disk."""
        with self._lock:
            self._beats.setdefault(self.writer, 0)
            try:
                for writer in self._beats:
                    self._beats[writer] += 1
                    with (self.directory / "beats" / writer).open("wb", buffering=0) as file:
                        file.write(b"%d" % self._beats[writer])
            except OSError as error:
                raise write_error(f"write {self.directory / 'beats'}", self.directory, error) from error
            try:
                self._journal.sync()
            except LedgerError:
                # After a failed sync nobody knows which pages reached the disk.
                self._renew()
                raise

    def heartbeats(self, writers: Sequence[str]) -> dict[str, int]:
        """Return the counts of beats."""
        return {writer: _count_beats(self.directory / "beats" / writer) for writer in writers}

    def silences(self, writers: Sequence[str]) -> dict[str, float]:
        """Return the seconds since each writer's last heartbeat, by its file's time; inf if it sent none."""
        return {writer: max(0.0, time.time() - _beaten_at(self.directory / "beats" / writer)) for writer in writers}

    def dropped(self) -> list[Dropped]:
        """Return the damaged lines and unfinished tails that reading has met."""
        return self._reader.dropped()

    def close(self) -> None:
        """Sync and close the journal; if it is used again, it is as a new writer."""
        with self._lock:
            if self._again:
                self.append([])
            try:
                self._journal.close()
            finally:
                self._beats.clear()
                self._renew()


def _create(directory: Path) -> None:
    if (directory / "study.json").exists():
        # A newer version's ledger is left as it is.
        _study_id(directory)
    for name in ("journal", "claims", "beats"):
        make_folder(directory / name)
    if not (directory / "study.json").exists():
        # The first of several creators wins.
        _link(directory / "study.json", new_identity(), sync=True)
    # Also what another creator has not synced yet: without these names no record would be found again.
    sync_folder(directory)


def _study_id(directory: Path) -> str:
    path = directory / "study.json"
    try:
        return read_identity(path.read_bytes(), path)
    except FileNotFoundError:
        raise _no_study(directory.parent) from None
    except NotADirectoryError:
        raise StudyError(f"no study in {directory.parent}: it is a file; give a study's directory") from None


def _no_study(directory: Path) -> StudyError:
    """Return the error that names the studies in this directory, or else beside it."""
    found = [
        sorted({str(path.parents[1]) for name in ("study.json", "url") for path in folder.glob(f"*/ledger/{name}")})
        for folder in (directory, directory.parent)
    ]
    inside, beside = found
    near = ", ".join((inside or beside)[:5])
    listed = f"; studies there: {near}" if near else "; give the directory that a study was made in"
    return StudyError(f"no study in {directory}{listed}{'' if inside else closest(str(directory), beside)}")


def _link(path: Path, content: str, *, sync: bool = False) -> bool:
    """Put `content` at `path` unless something is there; return whether it was this call that did."""
    temporary = path.with_name(f".{path.name[:100]}-{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content.encode())
            if sync:
                file.flush()
                os.fsync(file.fileno())
        return _linked(temporary, path, content)
    finally:
        temporary.unlink(missing_ok=True)


def _linked(temporary: Path, path: Path, content: str) -> bool:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            return _create_exclusively(path, content)
        # The link was made, only the answer was lost.
        if temporary.stat().st_nlink == 2:
            return True
        if not isinstance(error, FileExistsError):
            raise
        return False
    return True


_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def _create_exclusively(path: Path, content: str) -> bool:
    """Do without hard links: the file's creation decides, its content tells who it was."""
    try:
        with path.open("xb") as file:
            file.write(content.encode())
    except FileExistsError:
        return False
    return _owner(path) == content


def _owner(path: Path) -> str:
    return path.read_bytes().decode()


def _count_beats(path: Path) -> int:
    with suppress(OSError, ValueError), path.open("rb", buffering=0) as file:
        return int(file.read())
    return 0


def _beaten_at(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return -math.inf

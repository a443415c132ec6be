"""Reads the journals of all writers incrementally; skips torn and corrupted records by their checksums.

One look takes one `stat` of the folder and one of each journal that may still grow, and `open`, `pread`, `close` for
each that has grown; that is the least while every writer has a file of its own. The folder is listed only when its time
has changed, or every ten seconds, since network file systems show old times.
"""

# ruff: noqa: PTH116, PTH208 -- paths are texts here: a look at a thousand journals makes no thousand objects

import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG

from trainwright.errors import LedgerError
from trainwright.ledger.journal import END
from trainwright.ledger.protocol import TORN, Dropped
from trainwright.ledger.record import LONGEST, Record

__all__ = ["JournalReader", "first_pause", "pause_after"]

# Lines that are parsed at once.
_BLOCK = 1000
# Bytes that are read at once.
_CHUNK = 2**18
# The folder is listed at least so often.
_LIST_SECONDS = 10.0
# A folder's time tells changes apart that lie so far from each other, on any file system.
_SETTLE_SECONDS = 2.0
# For zeros that may be a page on its way: after so long a silent writer is held dead.
_HOLE_SECONDS = 180.0
# By which a host's clock may differ from the file system's.
_CLOCKS_SECONDS = 3600.0
# Damaged lines of one journal that are named one by one.
_MOST_BAD = 1000

_WHOLE = (0, 0, False)
# The place in a journal that was read to its very end.
_DONE = -1


@dataclass(slots=True)
class _Journal:
    """What is known of one journal. Times are the reader's own."""

    name: str
    path: str
    writer: str
    size: int = 0
    # By the file system's clock.
    changed: float = 0.0
    ended: bool = False
    # By where they start.
    bad: dict[int, Dropped] = field(default_factory=dict)
    # Place and size at which no whole line was found, and if by a hole.
    torn: tuple[int, int, bool] = _WHOLE
    # Where there are zeros, and since when.
    hole: tuple[int, float] = (-1, 0.0)
    # Zeros up to here are damage; beyond they may be a page that has not arrived yet.
    settled: int = 0
    # From this line's start on there is no newline up to there.
    searched: tuple[int, int] = (-1, 0)

    def drop(self, offset: int, size: int, why: str) -> None:
        """Name bytes that hold no record; of very many the last are named together."""
        if len(self.bad) < _MOST_BAD or offset in self.bad:
            self.bad[offset] = Dropped(self.name, offset, size, why)
            return
        start = max(self.bad)
        if offset > start:
            self.bad[start] = Dropped(self.name, start, offset + size - start, "this and more that follows: " + why)


class JournalReader:
    """Follows the journals of a folder.

    Records are seen by the next `read` after they were appended; on a network file system that is as late as its caches
    are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # By name, in the order of names.
        self._journals: dict[str, _Journal] = {}
        # The folder's time by the file system's clock (ns).
        self._time = -1
        self._changed = self._listed = -_LIST_SECONDS

    def read(self, places: dict[str, int], most: int | None = None) -> tuple[list[Record], dict[str, int]]:
        """Return the whole records beyond `places` (journal to bytes), in order per writer, and the new places.

        With `most` it stops after about so many records; fewer than `most` are all that there are.
        """
        after: dict[str, int] = {}
        records: list[Record] = []
        if most is not None:
            # What the last look has found.
            self._collect(places, after, records, most)
        if most is None or len(records) < most:
            self._look()
            self._collect(places, after, records, most)
        return records, {**places, **after} if after else places

    # Looking.

    def _look(self) -> None:
        """Find out which journals there are and how long they have become."""
        now = time.monotonic()
        try:
            changed = os.stat(self.folder).st_mtime_ns
            if changed != self._time:
                self._time, self._changed = changed, now
            if now - self._changed < _SETTLE_SECONDS or now - self._listed >= _LIST_SECONDS:
                self._list(now)
        except OSError as error:
            raise LedgerError(f"cannot read {self.folder}: {error.strerror or error}") from error
        for journal in self._journals.values():
            if not journal.ended:
                self._measure(journal)

    def _list(self, now: float) -> None:
        self._listed = now
        present = {name for name in os.listdir(self.folder) if name.endswith(".jsonl")}
        if new := present - self._journals.keys():
            for name in new:
                path = f"{self.folder}/{name}"
                # An earlier version went on in WRITER~0001.jsonl after 16 MiB.
                self._journals[name] = _Journal(name, path, name.removesuffix(".jsonl").partition("~")[0])
            self._journals = dict(sorted(self._journals.items()))

    def _measure(self, journal: _Journal) -> None:
        try:
            about = os.stat(journal.path)
        except FileNotFoundError:
            # Of a journal that was removed by hand stays what was read.
            return
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise LedgerError(f"cannot read {journal.path}: {error.strerror or error}") from error
            journal.drop(0, 0, "it is no file")
            journal.ended = True
            return
        if about.st_size > journal.size:
            if not S_ISREG(about.st_mode):
                journal.drop(0, about.st_size, "it is no file")
                journal.ended = True
                return
            journal.size = about.st_size
        journal.changed = about.st_mtime

    # Reading.

    def _collect(self, places: dict[str, int], after: dict[str, int], records: list[Record], most: int | None) -> None:
        """Read on from `places` as changed by `after`, which is brought up to date."""
        enough = _BLOCK if most is None else min(most, _BLOCK)
        chunks: list[tuple[str, int, list[bytes]]] = []
        waiting = 0
        for name, start, lines in self._chunks(places, after):
            chunks.append((name, start, lines))
            waiting += len(lines)
            if waiting >= enough:
                self._parse(chunks, records)
                waiting = 0
                if most is not None and len(records) >= most:
                    return
        self._parse(chunks, records)

    def _parse(self, chunks: list[tuple[str, int, list[bytes]]], records: list[Record]) -> None:
        """Add the records of `chunks`, which is emptied; keep what was damaged. One parse for many is half the time."""
        parsed = Record.of_lines([line for _, _, lines in chunks for line in lines])
        journals = self._journals
        of_lines = [journals[name].writer for name, _, lines in chunks for _ in lines]
        if str not in {*map(type, parsed)} and [record[4] for record in parsed] == of_lines:
            records += parsed  # type: ignore[arg-type]  # no text is among them
            chunks.clear()
            return
        following = 0
        for name, start, lines in chunks:
            found = parsed[following : (following := following + len(lines))]
            self._drop_unreadable(name, start, lines, found, records)
        chunks.clear()

    def _drop_unreadable(
        self, name: str, start: int, lines: list[bytes], found: list[Record | str], records: list[Record]
    ) -> None:
        """Add those records of a journal that are whole and its writer's; name the other lines, which are damaged."""
        journal = self._journals[name]
        for line, record in zip(lines, found, strict=True):
            if isinstance(record, Record) and record.writer == journal.writer:
                records.append(record)
            else:
                why = "it is of another writer" if isinstance(record, Record) else record
                journal.drop(start, len(line) + 1, "there are zeros in it" if b"\0" in line else why)
            start += len(line) + 1

    def _chunks(self, places: dict[str, int], after: dict[str, int]) -> Iterator[tuple[str, int, list[bytes]]]:
        """Yield the whole lines that were not read yet, some of one journal at a time, with where they start."""
        for name, journal in self._journals.items():
            place = after.get(name, places.get(name, 0))
            while place != _DONE and place < journal.size:
                if journal.torn == (place, journal.size, False):
                    break
                data = self._bytes(journal, place)
                hole = self._hole(journal, place, data)
                whole = data.rfind(b"\n", 0, hole if hole >= 0 else len(data)) + 1
                if not whole and hole < 0 and data and (beyond := self._next_line(journal, place, len(data))):
                    journal.drop(place, beyond - place, "no record is that long")
                    after[name] = place = beyond
                    continue
                if not whole:
                    journal.torn = (place, journal.size, hole >= 0 or not data)
                    break
                journal.torn = _WHOLE
                lines = data[: whole - 1].split(b"\n")
                start, place = place, place + whole
                if place == journal.size and lines[-1] == END[:-1]:
                    lines.pop()
                    place, journal.ended = _DONE, True
                after[name] = place
                yield name, start, lines

    # Damage.

    def _hole(self, journal: _Journal, place: int, data: bytes) -> int:
        """Return where the first zero in `data` is that may be a page on its way, as on network file systems; else -1.

        A record holds none. What was written later may be seen earlier; so zeros are waited for as long as the
        journal's writer may be alive. Then they are damage like any other.
        """
        hole = data.find(b"\0", max(0, journal.settled - place))
        if hole < 0:
            return -1
        now = time.monotonic()
        if journal.hole[0] != place + hole:
            journal.hole = (place + hole, now)
        if now - journal.hole[1] < _HOLE_SECONDS and not self._is_over(journal):
            return hole
        journal.settled = journal.size
        return -1

    def _is_over(self, journal: _Journal) -> bool:
        """Whether all that a journal's writer has written must have arrived: it ended the journal, or others are newer.

        Times are those of the file system; this host's clock may differ from it by an hour.
        """
        latest = max(time.time() - _CLOCKS_SECONDS, *(each.changed for each in self._journals.values()))
        if journal.ended or (journal.changed and latest - journal.changed > _HOLE_SECONDS):
            return True
        try:
            return _read_at(journal.path, max(0, journal.size - len(END)), len(END)) == END
        except OSError:
            return False

    def _next_line(self, journal: _Journal, place: int, size: int) -> int:
        """Return where the next line starts after `size` bytes of one that is too long or holds zeros; 0: nowhere yet.

        It is looked for in pieces, so that no line takes more memory than one.
        """
        if size < LONGEST and journal.settled <= place:
            # Its end may still come.
            return 0
        at = max(place + size, journal.searched[1] if journal.searched[0] == place else 0)
        while data := _read_at(journal.path, at, min(_CHUNK, journal.size - at)):
            if (newline := data.find(b"\n")) >= 0:
                return at + newline + 1
            at += len(data)
        journal.searched = (place, journal.size)
        return 0

    def _bytes(self, journal: _Journal, place: int) -> bytes:
        """Return the next bytes of a journal: a whole line at least, if there is one; none if the file is gone."""
        try:
            most = _CHUNK
            while True:
                data = _read_at(journal.path, place, min(most, journal.size - place))
                if b"\n" in data or b"\0" in data or len(data) < most or most >= LONGEST:
                    return data
                most *= 4
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise LedgerError(f"cannot read {journal.path}: {error.strerror or error}") from error

    def dropped(self) -> list[Dropped]:
        """Return the damaged lines and unfinished tails seen so far."""
        found: list[Dropped] = []
        for name, journal in self._journals.items():
            found += journal.bad.values()
            place, size, hole = journal.torn
            if size > place and size == journal.size:
                why = "zeros, until it is sure that nothing comes in their place" if hole else TORN
                found.append(Dropped(name, place, size - place, why))
        return found


def _read_at(path: str, start: int, size: int) -> bytes:
    # Opened anew: a handle kept on a network file system shows old bytes.
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.pread(handle, size, start)
    finally:
        os.close(handle)


_SHARE = 0.02  # of a worker's time, at most
_SELDOM_SECONDS = 30.0
_RESULT_SECONDS = 1e-4  # to read and learn what another worker found, about
_PER_CORE = 2.0  # workers of one host for each of its cores: more of them read less often, so that all read as much


def pause_after(took_seconds: float, workers: int, cores: int) -> float:
    """Return the seconds until a worker reads again, after reading and learning that took `took_seconds`.

    `workers` share `cores`, itself among them. That takes one part in fifty of its time, or less: of all workers of a
    host together no more than a twenty-fourth of its processors.
    """
    crowd = max(1.0, workers / (_PER_CORE * cores))
    return crowd * min(_SELDOM_SECONDS, took_seconds * (1.0 / _SHARE - 1.0))


def first_pause(draw: float, workers: int, cores: int) -> float:
    """Return the seconds until a worker reads for the first time, by a draw from [0, 1) of its own.

    At once where cores suffice; else workers that begin together would all read when each has its first result.
    """
    if workers <= _PER_CORE * cores:
        return 0.0
    return draw * pause_after(workers * _RESULT_SECONDS, workers, cores)

"""Snapshots: compacts the journals of finished writers into one file per generation.

    snapshot/gen-000007-0.jsonl     the bytes of journal after journal, as they were; then one line, the index, with the
                                    name, the size and whether the writer ended it, of each; then where that line starts

Bytes keep their place within their journal, so a reader that stands somewhere in a journal goes on in the snapshot from
that place, and nothing is folded, rewritten or renumbered. A snapshot is renamed to its name when it is whole and on
the disk. What was moved stays where it was for a day, since readers on a network file system may see old folders.
"""

import contextlib
import errno
import itertools
import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.errors import LedgerError, LedgerTooNew
from trainwright.ledger.journal import END, writer_of
from trainwright.ledger.protocol import Dropped
from trainwright.ledger.record import FORMAT
from trainwright.publishing import sync_folder

__all__ = ["DAY_SECONDS", "JournalPlace", "Packer", "Snapshots", "is_snapshot"]

DAY_SECONDS = 86400.0
"""A journal is given up by its writer if neither it nor the writer's beats changed for so long; and is kept for so long
after it was moved."""

# After which another may try what a packer has begun and not brought to its end.
_ABANDONED_SECONDS = 3600.0
# Bytes of the last line.
_POINTER = 17
_MOST_INDEX_BYTES = 2**28
# Of a journal that is moved: its writer leaves off at a sixteenth of that.
_MOST_BYTES = 2**28
_NAME = re.compile(r"gen-\d{6}-\d+\.jsonl")


class JournalPlace(NamedTuple):
    """Where a snapshot holds a journal: its bytes are `size` from `start` on; `ended` if no more can come."""

    path: Path
    start: int
    size: int
    ended: bool


@dataclass(frozen=True, slots=True)
class _Generation:
    """One snapshot file: bytes of journals, when it was made by the file system's clock (s), what it stands for."""

    path: Path
    size: int
    made: float
    journals: dict[str, JournalPlace]
    # Names of earlier snapshots that it holds too.
    replaced: tuple[str, ...]
    damaged: bool = False

    @classmethod
    def read(cls, path: Path) -> "_Generation":
        """Read the index of a snapshot; one whose index is damaged is a single journal, whose lines name their writers.

        Raises `OSError`, and `LedgerTooNew` for a format that this version does not know.
        """
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            try:
                file.seek(max(0, about.st_size - _POINTER))
                end = int(file.read(_POINTER))
                file.seek(end)
                line = file.read(min(about.st_size - end, _MOST_INDEX_BYTES)).rsplit(b"\n", 2)[0]
                if int(line[:8], 16) != zlib.crc32(line[9:]):
                    raise ValueError
                index = json.loads(line[9:])
                if index["v"] > FORMAT:
                    raise LedgerTooNew(
                        f"{path}: format {index['v']}; this version reads up to {FORMAT}; upgrade trainwright"
                    )
                places = _places(path, index["journals"], end)
                replaced = [name for name in index["replaced"] if _NAME.fullmatch(name)]
            except (ValueError, KeyError, TypeError, RecursionError):
                whole = {path.name: JournalPlace(path, 0, about.st_size, True)}
                return cls(path, about.st_size, about.st_mtime, whole, (), damaged=True)
        return cls(path, end, about.st_mtime, places, tuple(replaced))


def _places(path: Path, journals: Any, end: int) -> dict[str, JournalPlace]:
    """Return where the journals of an index lie; raises `ValueError` unless they fill the file up to `end`."""
    names, sizes, ended = zip(*journals, strict=True) if journals else ((), (), ())
    if {*map(type, names)} - {str} or {*map(type, sizes)} - {int} or {*map(type, ended)} - {bool}:
        raise ValueError
    starts = [*itertools.accumulate(sizes, initial=0)]
    if min(sizes, default=0) < 0 or starts[-1] != end:
        raise ValueError
    return {name: JournalPlace(path, *rest) for name, *rest in zip(names, starts[:-1], sizes, ended, strict=True)}


def is_snapshot(name: str) -> bool:
    """Whether this is the name of a snapshot, and of no journal."""
    return _NAME.fullmatch(name) is not None


class Snapshots:
    """The snapshots of a ledger, as far as `refresh` has seen them; `places` says which journals they hold, where."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[str, JournalPlace] = {}
        self.generations: dict[str, _Generation] = {}
        self.damaged: dict[str, Dropped] = {}
        self._unreadable: set[str] = set()

    def refresh(self) -> None:
        """Look for new snapshots, and forget those that are gone."""
        try:
            names = sorted(path.name for path in self.folder.iterdir() if _NAME.fullmatch(path.name))
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise LedgerError(f"cannot read {self.folder}: {error.strerror or error}") from error
        if self.generations.keys() | self._unreadable == set(names):
            return
        found = {name: self.generations.get(name) or self._read(name) for name in names if name not in self._unreadable}
        self.generations = {name: generation for name, generation in found.items() if generation is not None}
        self.places = {}
        for name, generation in self.generations.items():
            self.places |= generation.journals
            if generation.damaged:
                why = "its index is damaged: it is read line by line"
                self.damaged[name] = Dropped(name, 0, generation.size, why)

    def _read(self, name: str) -> _Generation | None:
        try:
            return _Generation.read(self.folder / name)
        except FileNotFoundError:
            # Replaced meanwhile, by one that is listed the next time.
            return None
        except OSError as error:
            self._unreadable.add(name)
            self.damaged[name] = Dropped(name, 0, 0, f"it cannot be read: {error.strerror}")
            return None


class Packer:
    """Moves journals that are done with into a snapshot, and removes what was moved a day ago.

    Killed at any moment it leaves what was there, and perhaps a temporary file that the next one removes. Of several
    packers the one wins whose `claim` does.
    """

    def __init__(self, directory: Path, snapshots: Snapshots, claim: Callable[[str, str], str]) -> None:
        self._journals = directory / "journal"
        self._beats = directory / "beats"
        self._snapshots = snapshots
        self._claim = claim

    def pack(self, *, least: int = 1, keep_seconds: float = DAY_SECONDS) -> int:
        """Move journals if `least` can be moved; return how many were. Remove what was moved `keep_seconds` ago.

        Raises `OSError`.
        """
        folder = self._snapshots.folder
        folder.mkdir(exist_ok=True)
        temporary = folder / f".packing-{secrets.token_hex(8)}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            # Of the file system: clocks of hosts are never compared.
            now = os.fstat(handle).st_mtime
            self._snapshots.refresh()
            self._sweep(now, keep_seconds)
            done = sorted(self._done(now))
            if len(done) < least or (name := self._turn(now)) is None:
                return 0
            moved = self._write(handle, done)
            if moved:
                os.fsync(handle)
                temporary.rename(folder / name)
                sync_folder(folder)
            return moved
        finally:
            os.close(handle)
            temporary.unlink(missing_ok=True)

    def _sweep(self, now: float, keep_seconds: float) -> None:
        """Remove what snapshots of more than `keep_seconds` ago hold too."""
        for generation in self._snapshots.generations.values():
            if now - generation.made < keep_seconds:
                continue
            for name, place in generation.journals.items():
                path = self._journals / name
                with contextlib.suppress(FileNotFoundError):
                    # Else its writer came back, after a day: it stays.
                    if path.stat().st_size == place.size:
                        path.unlink()
                        (self._beats / writer_of(name)).unlink()
            for name in generation.replaced:
                (self._snapshots.folder / name).unlink(missing_ok=True)
        for path in self._snapshots.folder.glob(".packing-*"):
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()

    def _done(self, now: float) -> Iterator[tuple[str, int, bool, bool]]:
        """Yield name, size, whether it has ended and was silent for a day, of each journal that is done with."""
        with os.scandir(self._journals) as entries:
            journals = [entry for entry in entries if entry.name.endswith(".jsonl") and entry.is_file()]
        for entry in journals:
            if entry.name in self._snapshots.places:
                continue
            # Another packer was faster.
            with contextlib.suppress(FileNotFoundError):
                about = entry.stat()
                if about.st_size > _MOST_BYTES:
                    continue
                tail = min(about.st_size, len(END))
                ended = _bytes_of(Path(entry.path), about.st_size - tail, tail) == END
                past = now - max(about.st_mtime, self._beaten(writer_of(entry.name))) > DAY_SECONDS
                if ended or past:
                    yield entry.name, about.st_size, ended, past

    def _beaten(self, writer: str) -> float:
        try:
            return (self._beats / writer).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _turn(self, now: float) -> str | None:
        """Return the name of the next snapshot, now ours to make; None if another packer is at it."""
        number = 1 + max((int(name.split("-")[1]) for name in self._snapshots.generations), default=0)
        for turn in itertools.count():
            token = f"{secrets.token_hex(8)} {now:.0f}"
            winner = self._claim(f"compact/{number}/{turn}", token)
            if winner == token:
                return f"gen-{number:06d}-{turn}.jsonl"
            if now - float(winner.split()[1]) < _ABANDONED_SECONDS:
                return None
        raise AssertionError("there is always another turn")

    def _write(self, handle: int, done: list[tuple[str, int, bool, bool]]) -> int:
        """Write a snapshot of these journals and of the smaller snapshots; return how many journals were moved.

        Because a snapshot takes in those that are no greater, their number stays logarithmic, and each byte is written
        so often.
        """
        replaced = self._to_replace(sum(size for _, size, *_ in done))
        held = [(name, p) for gen in replaced for name, p in gen.journals.items() if self._snapshots.places[name] == p]
        index: list[tuple[str, int, bool]] = []
        for name, place in held:
            _write_all(handle, _bytes_of(place.path, place.start, place.size))
            index.append((name, place.size, place.ended))
        for name, size, ended, past in done:
            data = _bytes_of(self._journals / name, 0, size)
            # A page that a network file system has not brought yet.
            if b"\0" in data and not past:
                continue
            _write_all(handle, data)
            index.append((name, size, ended))
        end = sum(size for _, size, _ in index)
        names = [name for gen in replaced for name in (*gen.replaced, gen.path.name)]
        line = json.dumps({"v": FORMAT, "journals": index, "replaced": names}, separators=(",", ":")).encode()
        _write_all(handle, b"%08x %b\n%016d\n" % (zlib.crc32(line), line, end))
        return len(index) - len(held)

    def _to_replace(self, size: int) -> list[_Generation]:
        generations = self._snapshots.generations
        past = {name for generation in generations.values() for name in generation.replaced}
        found: list[_Generation] = []
        for _, generation in sorted(generations.items(), reverse=True):
            if generation.path.name not in past:
                if generation.size > size:
                    break
                found.append(generation)
                size += generation.size
        return found


def _bytes_of(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(size)
    if len(data) < size:
        raise OSError(errno.EIO, f"{path} is shorter than it was")
    return data


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]

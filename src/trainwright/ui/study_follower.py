"""One reader per study for all open pages, and the registry of the studies under a folder.

A reader follows the ledger by cursor and notifies pages of news. Names from a browser are looked up in the registry,
never used as paths.
"""

import gc
import hashlib
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trainwright.errors import InputError, TrainwrightError
from trainwright.ledger import Cursor, Dropped, Ledger, State, blocks, fold, open_ledger
from trainwright.ledger.opening import is_url
from trainwright.ledger.writers import under_way
from trainwright.report.overview import Overview

__all__ = ["StudyFollower", "StudyRegistry"]

_POLL_SECONDS = 0.25
_LOOK_SECONDS = 1.0  # between looks whether those who run trials are at work
_IDLE_SECONDS = 60.0  # after nobody asked for so long, nothing is read until somebody asks again
_REOPEN_SECONDS = 2.0  # between attempts on a ledger that cannot be read


class StudyFollower:
    """A study that is followed from the first question on: its state, and a revision that grows with every change.

    `error` is the sentence that says why the ledger cannot be read now; what was read before is kept. `records` counts
    what was read. All is read under `reading()`, which keeps the reader out meanwhile.
    """

    def __init__(self, where: str | Path, name: str) -> None:
        self.where, self.name = where, name
        self.revision = 0
        self.records = 0
        self.loaded = False  # the ledger was read to its end once
        self.error: str | None = None
        self.study_id = ""
        self._state = State()
        self._dropped: list[Dropped] = []
        self._words: dict[int, str] = {}  # of the trials under way
        self._looked = -math.inf  # when they were found
        self._overview: tuple[int, Overview] | None = None
        self._ledger: Ledger | None = None
        self._cursor: Cursor | None = None
        self._lock = threading.RLock()
        self._wanted = threading.Event()
        self._asked = 0.0
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def directory(self) -> Path | None:
        """The study's folder; None for a ledger at a URL, which has no files."""
        return None if is_url(self.where) else Path(self.where)

    def want(self) -> None:
        """Say that somebody looks: follow, from now on and for a minute."""
        self._asked = time.monotonic()
        self._wanted.set()
        with self._lock:
            if self._thread is None and not self._ending.is_set():
                self._thread = threading.Thread(target=self._follow, name=f"follow {self.name}", daemon=True)
                self._thread.start()

    @contextmanager
    def reading(self) -> Iterator[Overview]:
        """Give what the study has come to, which does not change meanwhile."""
        with self._lock:
            if self._overview is None or self._overview[0] != self.revision:
                # Half a ledger is shown as none: to look at it again and again would take longer than to read the rest.
                self._overview = (
                    self.revision,
                    Overview(self._state, self._words) if self.loaded else Overview(State()),
                )
            yield self._overview[1]

    @property
    def dropped(self) -> list[Dropped]:
        """What of the ledger could not be read."""
        with self._lock:
            return list(self._dropped)

    def close(self) -> None:
        """End the reader."""
        self._ending.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(5.0)
        if self._ledger is not None:
            self._ledger.close()

    def catch_up(self) -> bool:
        """Read what is new and return whether there was anything; an error is kept as a sentence."""
        before = self.revision
        try:
            # Blocks are folded one by one under the lock, so that readers wait for one block at most.
            ledger = self._open_ledger()
            for records, cursor in blocks(ledger, self._cursor):
                with self._lock:
                    fold(records, into=self._state)
                    self._cursor = cursor
                    self.records += len(records)
                    if records and self.loaded:
                        self.revision += 1
                if self._ending.is_set():
                    return True
            # Whether workers are at work changes without a record: their heartbeats stop.
            if time.monotonic() - self._looked >= _LOOK_SECONDS:
                self._update_words(under_way(ledger, self._state))
            self._update_status(error=None, dropped=ledger.dropped())
        except TrainwrightError as error:
            self._close_ledger()
            self._update_status(error=str(error), dropped=self._dropped)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # A record whose body no version has written.
            self._close_ledger()
            self._update_status(
                error=f"a record cannot be understood ({type(error).__name__}: {error})", dropped=self._dropped
            )
        return self.revision != before

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            ledger = open_ledger(self.where)
            with self._lock:
                # A study deleted and begun again in the same place is another study.
                # The first look, or another study in the same place.
                if self.study_id != ledger.study_id:
                    self._state, self._cursor, self.study_id = State(), None, ledger.study_id
                    self.records, self.loaded = 0, False
                    self.revision += 1
            self._ledger = ledger
        return self._ledger

    def _close_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        # What is read again from the cursor on is folded once only.

    def _update_words(self, words: dict[int, str]) -> None:
        with self._lock:
            self._looked = time.monotonic()
            if words != self._words:
                self._words = words
                self.revision += 1

    def _update_status(self, *, error: str | None, dropped: list[Dropped]) -> None:
        with self._lock:
            # A new revision only if something changed, since every page draws again on it.
            if (error, len(dropped), True) != (self.error, len(self._dropped), self.loaded):
                self.error, self._dropped, self.loaded = error, dropped, True
                self.revision += 1

    def _follow(self) -> None:
        frozen = False
        while not self._ending.is_set():
            self.catch_up()
            # What was read stays: the garbage collector need not look at it again and again.
            if not frozen:
                gc.freeze()
                frozen = True
            # Nobody looks at this study: stop polling its file system until somebody does.
            if time.monotonic() - self._asked > _IDLE_SECONDS:
                self._wanted.clear()
                self._wanted.wait()
            # A ledger that cannot be read is tried again less often.
            self._ending.wait(_POLL_SECONDS if self.error is None else _REOPEN_SECONDS)


_DEPTH, _MOST = 3, 500
_RESCAN_SECONDS = 3.0
_NO_STUDIES = frozenset({"ledger", "checkpoints", "library", "logs", "stages", "__pycache__"})


class StudyRegistry:
    """The studies at `where`: one study's directory or URL, or a folder with studies up to three folders down."""

    def __init__(self, where: str | Path) -> None:
        self.where = where
        self._followers: dict[str, StudyFollower] = {}
        self._lock = threading.Lock()
        self._looked = -_RESCAN_SECONDS
        self._single = is_url(where) or _is_study(Path(where))
        if is_url(where):
            # Refuses a URL behind which there is no study.
            open_ledger(where).close()
        elif not Path(where).is_dir():
            raise InputError(f"{where}: there is no such directory; give a study's directory, or a folder of studies")
        if not self.studies():
            raise InputError(
                f"{where}: no study in it, nor up to {_DEPTH} folders down; allowed: a study's directory (it has a "
                "folder ledger/), a folder of studies, or redis://HOST:PORT/0?study=NAME"
            )

    @property
    def single(self) -> bool:
        """Whether this is one study, and no folder of them."""
        return self._single

    def studies(self) -> Mapping[str, StudyFollower]:
        """Return the studies that are there, by short names; one that vanished stays, to tell that it did."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= _RESCAN_SECONDS:
                self._looked = now
                for name, place in self._find_places():
                    # Addresses use a digest of the path, which may have any characters.
                    key = hashlib.blake2b(str(place).encode(), digest_size=6).hexdigest()
                    if key not in self._followers:
                        self._followers[key] = StudyFollower(place, name)
            return dict(self._followers)

    def find(self, key: str) -> StudyFollower | None:
        """Return the study of a short name, None if there is none, and have it followed."""
        follower = self._followers.get(key) or self.studies().get(key)
        if follower is not None:
            follower.want()
        return follower

    def close(self) -> None:
        """End all readers."""
        for follower in self._followers.values():
            follower.close()

    def _find_places(self) -> list[tuple[str, str | Path]]:
        if is_url(self.where):
            text = str(self.where)
            return [(text.rpartition("study=")[2] or "study", text)]
        root = Path(self.where)
        if self._single:
            return [(root.resolve().name, root)]
        found: list[tuple[str, str | Path]] = []
        # Folders that cannot be read are passed over.
        for folder, names, _ in os.walk(root):
            here = Path(folder)
            depth = len(here.relative_to(root).parts)
            if _is_study(here):
                found.append((str(here.relative_to(root)), here))
                # A study has no studies in its folders.
                names.clear()
            elif depth >= _DEPTH:
                names.clear()
            else:
                names[:] = sorted(name for name in names if name not in _NO_STUDIES and not name.startswith("."))
            if len(found) >= _MOST:
                break
        return found


def _is_study(folder: Path) -> bool:
    return any((folder / "ledger" / name).is_file() for name in ("study.json", "url"))

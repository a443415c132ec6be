"""A ledger in memory, for tests, ask-and-tell loops and the simulator: durable as long as the process lives."""

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trainwright.errors import InputError
from trainwright.ledger.kinds import misfits
from trainwright.ledger.protocol import Cursor, Dropped
from trainwright.ledger.record import CheckedRecord, Record
from trainwright.ledger.writers import new_writer

__all__ = ["MemoryLedger"]

_CHECKED = frozenset({CheckedRecord})


@dataclass
class _Store:
    clock: Callable[[], float]
    records: list[Record] = field(default_factory=list)
    # When each was, by the clock.
    appended: list[float] = field(default_factory=list)
    # So many of the records has somebody read.
    delivered: int = 0
    claims: dict[str, str] = field(default_factory=dict)
    beats: dict[str, int] = field(default_factory=dict)
    study_id: str = field(default_factory=new_writer)
    dropped: list[Dropped] = field(default_factory=list)
    # By the clock.
    beaten_at: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryLedger:
    """A ledger that lives in this process. `MemoryLedger(of=other)` is another writer on the same records.

    It can be as bad as a ledger may be. `visibility_seconds`: this object reads what is that old by `clock` (the first
    object's; seconds), its own records too. `repeats`: each read begins up to so many records before its cursor.
    `crash()`: it loses what nobody could see yet.
    """

    lease_seconds = 30.0

    def __init__(
        self,
        *,
        of: "MemoryLedger | None" = None,
        visibility_seconds: float = 0.0,
        repeats: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not visibility_seconds >= 0 or repeats < 0:
            raise InputError(
                f"MemoryLedger: got visibility_seconds={visibility_seconds!r}, repeats={repeats!r}; allowed: numbers "
                ">= 0"
            )
        self._store: _Store = of._store if of is not None else _Store(clock)  # noqa: SLF001 -- two writers share one store
        self._visibility_seconds = visibility_seconds
        self._repeats = repeats
        self._reads = 0
        self._open_writer()

    def _open_writer(self) -> None:
        self.writer = new_writer()
        self._seq = 0

    @property
    def study_id(self) -> str:
        """The identity of the study whose records these are."""
        return self._store.study_id

    def append(self, records: Sequence[Record]) -> list[Record]:
        """Keep the records and return them stamped."""
        at = time.time()
        store = self._store
        with store.lock:
            stamped = [record.stamped(self.writer, self._seq + i, at) for i, record in enumerate(records)]
            self._seq += len(stamped)
            fitting = stamped
            # What `facts` makes was checked there; only records made in another way are checked here.
            if not _CHECKED.issuperset(map(type, records)):
                wrong = misfits(stamped)
                fitting = [record for place, record in enumerate(stamped) if place not in wrong]
                store.dropped += [Dropped(self.writer, stamped[place].seq, 1, why) for place, why in wrong.items()]
            store.records.extend(fitting)
            store.appended.extend([store.clock()] * len(fitting))
        return stamped

    def read(
        self,
        cursor: Cursor | None = None,
        *,
        most: int | None = None,
        thorough: bool = False,  # noqa: ARG002 -- the protocol has it; here every read is
    ) -> tuple[list[Record], Cursor]:
        """Return the records since `cursor` (a count); every read is `thorough`."""
        store, start = self._store, cursor or 0
        with store.lock:
            visible = max(start, self._visible() if self._visibility_seconds else len(store.records))
            end = visible if most is None else min(visible, start + most)
            store.delivered = max(store.delivered, end)
            first = self._repeated_from(start) if self._repeats else start
            return store.records[first:end], end

    def _visible(self) -> int:
        """Return how many records are old enough to be seen."""
        store = self._store
        if not self._visibility_seconds:
            return len(store.records)
        return bisect_right(store.appended, store.clock() - self._visibility_seconds)

    def _repeated_from(self, start: int) -> int:
        """Return from where on records are delivered, those that are repeated among them."""
        from trainwright.randomness import rng

        self._reads += 1
        return max(0, start - int(rng(0, "repeats", self._reads).integers(self._repeats + 1)))

    def claim(self, key: str, token: str) -> str:
        """Return the first token ever given for `key`."""
        return self._store.claims.setdefault(key, token)

    def heartbeat(self) -> None:
        """Count a heartbeat."""
        with self._store.lock:
            self._store.beats[self.writer] = self._store.beats.get(self.writer, 0) + 1
            self._store.beaten_at[self.writer] = self._store.clock()

    def heartbeats(self, writers: Sequence[str]) -> dict[str, int]:
        """Return the counts of beats."""
        return {writer: self._store.beats.get(writer, 0) for writer in writers}

    def silences(self, writers: Sequence[str]) -> dict[str, float]:
        """Return the seconds since each writer's last heartbeat; inf if it sent none."""
        now = self._store.clock()
        return {writer: max(0.0, now - self._store.beaten_at.get(writer, -math.inf)) for writer in writers}

    def dropped(self) -> list[Dropped]:
        """Return the records that do not fit their kind, which nobody reads."""
        return list(self._store.dropped)

    def crash(self) -> None:
        """Die as a machine does that had not synced: this writer's newest records, that nobody could see, are lost.

        The object goes on as a new writer.
        """
        store, writer = self._store, self.writer
        with store.lock:
            seen = max(store.delivered, self._visible())
            kept = [i for i in range(seen, len(store.records)) if store.records[i].writer != writer]
            store.records[seen:] = [store.records[i] for i in kept]
            store.appended[seen:] = [store.appended[i] for i in kept]
            self._open_writer()

    def close(self) -> None:
        """Nothing to let go of."""

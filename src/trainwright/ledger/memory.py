"""A ledger in memory, for tests, ask-and-tell loops and the simulator: durable as long as the process lives."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainwright.ledger.kinds import misfits
from trainwright.ledger.protocol import Cursor, Dropped
from trainwright.ledger.record import Record
from trainwright.ledger.writers import new_writer

__all__ = ["MemoryLedger"]


@dataclass
class _Store:
    records: list[Record] = field(default_factory=list)
    claims: dict[str, str] = field(default_factory=dict)
    beats: dict[str, int] = field(default_factory=dict)
    study_id: str = field(default_factory=new_writer)
    dropped: list[Dropped] = field(default_factory=list)
    # By the monotonic clock.
    beaten_at: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryLedger:
    """A ledger that lives in this process. `MemoryLedger(of=other)` is another writer on the same records."""

    lease_seconds = 30.0

    def __init__(self, *, of: "MemoryLedger | None" = None) -> None:
        self._store: _Store = of._store if of is not None else _Store()  # noqa: SLF001 -- two writers share one store
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
            wrong = misfits(stamped)
            store.dropped += [Dropped(self.writer, stamped[place].seq, 1, why) for place, why in wrong.items()]
            store.records += [record for place, record in enumerate(stamped) if place not in wrong]
        return stamped

    def read(self, cursor: Cursor | None = None, *, most: int | None = None) -> tuple[list[Record], Cursor]:
        """Return the records since `cursor` (a count)."""
        store, start = self._store, cursor or 0
        with store.lock:
            end = len(store.records) if most is None else min(len(store.records), start + most)
            return store.records[start:end], end

    def claim(self, key: str, token: str) -> str:
        """Return the first token ever given for `key`."""
        return self._store.claims.setdefault(key, token)

    def heartbeat(self) -> None:
        """Count a heartbeat."""
        with self._store.lock:
            self._store.beats[self.writer] = self._store.beats.get(self.writer, 0) + 1
            self._store.beaten_at[self.writer] = time.monotonic()

    def heartbeats(self, writers: Sequence[str]) -> dict[str, int]:
        """Return the counts of beats."""
        return {writer: self._store.beats.get(writer, 0) for writer in writers}

    def silences(self, writers: Sequence[str]) -> dict[str, float]:
        """Return the seconds since each writer's last heartbeat; inf if it sent none."""
        now = time.monotonic()
        return {writer: max(0.0, now - self._store.beaten_at.get(writer, -math.inf)) for writer in writers}

    def dropped(self) -> list[Dropped]:
        """Return the records that do not fit their kind, which nobody reads."""
        return list(self._store.dropped)

    def close(self) -> None:
        """Nothing to let go of."""

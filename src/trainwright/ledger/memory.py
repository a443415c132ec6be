"""A ledger in memory, for tests, ask-and-tell loops and the simulator: durable as long as the process lives."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainwright.ledger.protocol import Cursor, Dropped
from trainwright.ledger.record import Record
from trainwright.ledger.writers import new_writer

__all__ = ["MemoryLedger"]


@dataclass
class _Store:
    records: list[Record] = field(default_factory=list)
    claims: dict[str, str] = field(default_factory=dict)
    beats: dict[str, int] = field(default_factory=dict)


class MemoryLedger:
    """A ledger that lives in this process. `MemoryLedger(of=other)` is another writer on the same records."""

    def __init__(self, *, of: "MemoryLedger | None" = None) -> None:
        self._store: _Store = of._store if of is not None else _Store()  # noqa: SLF001 -- two writers share one store
        self._seq = 0
        self.writer = new_writer()

    def append(self, records: Sequence[Record]) -> list[Record]:
        """Keep the records and return them stamped."""
        at = time.time()
        stamped = [record.stamped(self.writer, self._seq + i, at) for i, record in enumerate(records)]
        self._seq += len(stamped)
        self._store.records.extend(stamped)
        return stamped

    def read(self, cursor: Cursor | None = None, *, most: int | None = None) -> tuple[list[Record], Cursor]:
        """Return the records since `cursor` (a count)."""
        start = cursor or 0
        end = len(self._store.records) if most is None else min(len(self._store.records), start + most)
        return self._store.records[start:end], end

    def claim(self, key: str, token: str) -> str:
        """Return the first token ever given for `key`."""
        return self._store.claims.setdefault(key, token)

    def beat(self) -> None:
        """Count a beat."""
        self._store.beats[self.writer] = self._store.beats.get(self.writer, 0) + 1

    def beats(self, writers: Sequence[str]) -> dict[str, int]:
        """Return the counts of beats."""
        return {writer: self._store.beats.get(writer, 0) for writer in writers}

    def dropped(self) -> list[Dropped]:
        """Nothing is ever torn in memory."""
        return []

    def close(self) -> None:
        """Nothing to let go of."""

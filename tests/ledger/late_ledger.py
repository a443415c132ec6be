"""A ledger in memory that is as bad as a ledger may be: late, repetitive, and forgetful in a crash."""

import time
from bisect import bisect_right

from trainwright.ledger import MemoryLedger
from trainwright.ledger.writers import new_writer
from trainwright.randomness import rng


class LateLedger(MemoryLedger):
    """`visibility_seconds`: it reads what is that old by `clock` (the first object's), its own records too.

    `repeats`: each read begins up to so many records before its cursor. `crash()` loses what nobody could see yet.
    """

    def __init__(self, *, of=None, visibility_seconds=0.0, repeats=0, clock=time.monotonic):
        super().__init__(of=of)
        self.clock = clock if of is None else of.clock
        self.appended = [] if of is None else of.appended
        self.delivered = [0] if of is None else of.delivered
        self.visibility_seconds, self.repeats, self.reads = visibility_seconds, repeats, 0

    def append(self, records):
        before = len(self._store.records)
        stamped = super().append(records)
        self.appended.extend([self.clock()] * (len(self._store.records) - before))
        return stamped

    def read(self, cursor=None, *, most=None):
        start = cursor or 0
        visible = max(start, self._visible())
        end = visible if most is None else min(visible, start + most)
        self.delivered[0] = max(self.delivered[0], end)
        self.reads += 1
        first = max(0, start - int(rng(0, "repeats", self.reads).integers(self.repeats + 1)))
        return self._store.records[first:end], end

    def _visible(self):
        if not self.visibility_seconds:
            return len(self._store.records)
        return bisect_right(self.appended, self.clock() - self.visibility_seconds)

    def crash(self):
        """Die as a machine does that had not synced: this writer's newest records, that nobody could see, are lost."""
        records = self._store.records
        seen = max(self.delivered[0], self._visible())
        kept = [i for i in range(seen, len(records)) if records[i].writer != self.writer]
        records[seen:], self.appended[seen:] = [records[i] for i in kept], [self.appended[i] for i in kept]
        self.writer, self._seq = new_writer(), 0

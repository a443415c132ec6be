"""Many writers on one ledger: the cost of a sync, and of the three operations, in a fresh process.

    python -m benchmarks.ledger.many sync KIND WHERE WRITERS      a reader's sync after each writer wrote 3 records
    python -m benchmarks.ledger.many operations KIND WHERE        append + claim + read; KIND: memory, directory, redis

The least that a sync of the directory ledger can cost, while each writer has a file of its own: one `stat` of the
folder, one of each live journal, and `open`, `pread`, `close` of each that has grown.
"""

import itertools
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Self

from trainwright.ledger import DirectoryLedger, Ledger, MemoryLedger, RedisLedger, State, blocks, facts, fold

__all__ = ["main"]

_ROUNDS = 20
_CALLS = ("stat", "listdir", "open", "pread", "close")
_SETTLED_SECONDS = 2.5  # after which a folder in which nothing appeared is no longer listed


def main(argv: list[str]) -> dict[str, float]:
    """Do one measurement and give its numbers."""
    act, *rest = argv
    return _sync(rest[0], rest[1], int(rest[2])) if act == "sync" else _operations(*rest)


def _ledger(kind: str, where: str, *, create: bool = False) -> DirectoryLedger | RedisLedger:
    if kind == "redis":
        return RedisLedger(where, create=create)
    return DirectoryLedger(where, create=create, fsync="never")


def _sync(kind: str, where: str, writers: int) -> dict[str, float]:
    """Return medians over syncs: when all of the writers wrote, when an eighth of them did, and when none did.

    On Redis the writers' connections stay open, as those of live workers do; the server's own time counts.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(4096, 2 * writers)), hard))  # all are in this process
    _ledger(kind, where, create=True)
    team = [_ledger(kind, where) for _ in range(writers)]
    for number, one in enumerate(team):
        one.append([_report(number, 1)])
    reader, state, cursor = _ledger(kind, where), State(), None
    epochs = itertools.count(2)

    def sync() -> float:
        nonlocal cursor
        start = time.perf_counter()
        for records, after in blocks(reader, cursor):
            cursor = after
            fold(records, into=state)
        return 1e3 * (time.perf_counter() - start)

    def wrote(share: Sequence[Ledger]) -> None:
        for number, one in enumerate(share):
            one.append([_report(number, next(epochs)) for _ in range(3)])

    sync()
    time.sleep(_SETTLED_SECONDS)
    sync()
    found: dict[str, float] = {}
    for name, share in (("all", team), ("eighth", team[::8]), ("none", [])):
        times = []
        for _ in range(_ROUNDS):
            wrote(share)
            times.append(sync())
        wrote(share)
        with _Counted() as calls:
            sync()
        found[f"ms_{name}"] = statistics.median(times)
        if kind == "directory":
            found |= {f"calls_{name}": calls.count, f"least_{name}": 1 + writers + 3 * len(share)}
    found["us_a_record"] = 1e3 * (found["ms_all"] - found["ms_none"]) / (3 * writers)
    return found


class _Counted:
    """Counts the system calls of reading while it is entered; a listing counts as one."""

    def __enter__(self) -> Self:
        self.count = 0
        self._real = {name: getattr(os, name) for name in _CALLS}
        for name, real in self._real.items():
            setattr(os, name, self._counting(real))
        return self

    def _counting(self, real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return real(*arguments, **named)

        return call

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)


def _operations(kind: str, where: str = "") -> dict[str, float]:
    """Return milliseconds of append, claim and read, one after the other, as a task of a worker has them at least."""
    ledger: Ledger
    if kind == "memory":
        ledger = MemoryLedger()
    elif kind == "redis":
        ledger = RedisLedger(where, create=True)
    else:
        ledger = DirectoryLedger(where, create=True)
    times, cursor = [], None
    for number in range(1000):
        start = time.perf_counter()
        ledger.claim(f"number/{number}/0", ledger.writer)
        ledger.append([facts.finished(number, 1, reason="completed", values={"val_loss": 0.1}, wall_seconds=9.5)])
        _, cursor = ledger.read(cursor)
        times.append(1e3 * (time.perf_counter() - start))
    return {"median_ms": statistics.median(times), "p95_ms": statistics.quantiles(times, n=20)[-1]}


def _report(number: int, epoch: int) -> Any:
    return facts.reported(number, 1, epoch=epoch, step=None, metrics={"val_loss": 1 / epoch}, wall_seconds=epoch)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))

"""Detects dead workers (writers): by their process on this host, by missed heartbeats elsewhere.

Drivers decide by `Liveness`; viewers, which look once and write nothing, show the words of `under_way`.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.ledger.protocol import Ledger
from trainwright.ledger.trials import Status

if TYPE_CHECKING:
    from trainwright.ledger.fold import State

__all__ = ["SILENT", "Liveness", "Writer", "new_writer", "state_counts", "under_way"]

_QUARTERS = 4
# The fields of a writer that its record tells.
_PLACE = ("host", "boot", "pid", "process_start", "namespace")


def new_writer() -> str:
    """Return a fresh writer identity: host, process, 64 random bits. A restart never reuses one."""
    host = "".join(c if c.isalnum() else "-" for c in socket.gethostname())[:32]
    return f"{host}-{os.getpid()}-{secrets.token_hex(8)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """The process behind a writer identity, as its `joined` record tells it.

    `host`, `boot` and `namespace` name the place where `pid` means something: two containers on one host may both have
    a process 1, and two machines one host name.
    """

    host: str
    boot: str
    pid: int
    process_start: str
    # "" where it is not known: then the process cannot be looked at.
    namespace: str = ""
    left: bool = False

    @classmethod
    def here(cls) -> "Writer":
        """Return the writer that this process is."""
        host, pid = socket.gethostname(), os.getpid()
        return cls(host=host, boot=_boot(), pid=pid, process_start=_start_of(pid), namespace=_namespace())

    def body(self) -> dict[str, Any]:
        """Return the body of the `joined` record."""
        return {name: getattr(self, name) for name in _PLACE}

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "Writer":
        """Return the writer of a `joined` record's body."""
        return cls(**{name: body[name] for name in _PLACE if name in body})

    @property
    def is_here(self) -> bool:
        """Whether it was on this host since the host's last start, in whatever container."""
        return self.host == socket.gethostname() and self.boot == _boot()

    def gone(self) -> bool | None:
        """Return whether the process is gone, or None if that cannot be known from here: beats tell then.

        It cannot from another host, from another container (a pid namespace of its own), or after a restart: that
        looks like another machine of the same name.
        """
        if self.left:
            return True
        place = (socket.gethostname(), _boot(), _namespace())
        if not self.namespace or (self.host, self.boot, self.namespace) != place:
            return None
        return _start_of(self.pid) != self.process_start


class Liveness:
    """Detects dead workers: a writer whose process is gone, or whose heartbeats have not moved for `lease_seconds`.

    Clocks of different hosts are never compared: the time is that of the observer's own monotonic clock, from when it
    first saw the count. A newcomer therefore waits the whole time. Of the time between two looks no more than a quarter
    of a lease counts: after an outage of the observer, or of everybody, the living have time for a heartbeat.
    """

    def __init__(self, lease_seconds: float, clock: Callable[[], float] | None = None) -> None:
        self.lease_seconds = lease_seconds
        self._clock = clock or time.monotonic
        self._seen: dict[str, _Seen] = {}

    def is_dead(self, name: str, writer: Writer | None, beats: int) -> bool | None:
        """Return whether the writer `name` with so many heartbeats is dead; None while that is not known yet."""
        gone = writer.gone() if writer is not None else None
        if gone is not None:
            return gone
        return self.is_silent(name, beats)

    def is_silent(self, name: str, beats: int) -> bool | None:
        """Return the same by the beats alone, whatever is known of the process."""
        now = self._clock()
        seen = self._seen.setdefault(name, _Seen(beats, now))
        if beats != seen.beats:
            self._seen[name] = _Seen(beats, now, moved=True)
            return False
        seen.silent_seconds += min(now - seen.looked, self.lease_seconds / _QUARTERS)
        seen.looked = now
        if seen.silent_seconds >= self.lease_seconds:
            return True
        return False if seen.moved else None


@dataclass(slots=True)
class _Seen:
    """An observer's knowledge of a writer's heartbeats, by the observer's own clock."""

    beats: int
    looked: float
    # Watched without a heartbeat.
    silent_seconds: float = 0.0
    moved: bool = False


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _namespace() -> str:
    """Return what names the pid namespace of this process; "" if that is not the one that /proc shows, or unknown."""
    try:
        shown = os.readlink("/proc/self")  # noqa: PTH115 -- looked at often: no object wanted here
        return os.readlink("/proc/self/ns/pid") if shown == str(os.getpid()) else ""  # noqa: PTH115 -- likewise
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """Return when process `pid` started, in clock ticks since boot, or "" if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    # A zombie runs no more.
    return "" if fields[0] in {"Z", "X"} else fields[19]


SILENT = "silent"
"""The word for a trial whose holder gives no sign, though it may live."""

# Of a lease without a heartbeat, of which four are due in it.
_SHARE = 1 / 3


def under_way(ledger: Ledger, state: "State") -> dict[int, str]:
    """Return the word for each trial that is recorded as running, by number: "running", "silent" or "lost".

    It is lost if its holder's process is gone: the next driver takes it over. It is silent if that process has sent no
    heartbeat for a third of a lease: after a whole lease other drivers take it over. The time since a
    heartbeat is by the clock of the ledger's storage; it is only shown, and drivers never decide by it.
    """
    held = {n: state.trials[n].holder for n in sorted(state.open) if state.trials[n].status is Status.RUNNING}
    silences = ledger.silences(sorted(set(held.values())))
    words = {}
    for holder, seconds in silences.items():
        writer = state.writers.get(holder)
        if writer is not None and writer.gone():
            words[holder] = str(Status.LOST)
        else:
            words[holder] = SILENT if seconds > ledger.lease_seconds * _SHARE else str(Status.RUNNING)
    return {number: words[holder] for number, holder in held.items()}


def state_counts(state: "State", words: Mapping[int, str]) -> dict[str, int]:
    """Return how many trials are in each state, those under way by their words; "silent" only where one is."""
    counts = {str(status): count for status, count in state.counts.items()}
    for number, word in words.items():
        # It may have ended since the words were found.
        if state.trials[number].status is Status.RUNNING:
            counts[Status.RUNNING] -= 1
            counts[word] = counts.get(word, 0) + 1
    return counts

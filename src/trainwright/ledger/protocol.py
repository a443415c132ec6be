"""The protocol of ledgers: append, read and claim; and liveness by heartbeats."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from trainwright.ledger.record import Record

__all__ = ["TORN", "Cursor", "Dropped", "Ledger"]

TORN = "its end is missing"
"""Why the last line of a killed writer's journal is left out."""

Cursor = Any
"""Where a reader stands: opaque to everybody but the ledger that gave it; None is the beginning."""


class Dropped(NamedTuple):
    """Bytes of a journal that hold no whole record."""

    path: str
    offset: int
    size: int
    why: str

    @property
    def torn(self) -> bool:
        """Whether it is the unfinished end of a journal, as a killed writer leaves it: nothing acknowledged."""
        return self.why == TORN

    def __str__(self) -> str:
        return f"{self.path}: {self.size} bytes at {self.offset} dropped ({self.why})"


class Ledger(Protocol):
    """What every ledger does. One object is one writer; many may be open on one study, in many processes."""

    lease_seconds: float
    """How long a writer on another host may be silent before it is held dead; it beats twelve times in that time."""

    @property
    def study_id(self) -> str:
        """The identity of the study; another one if it was deleted and begun again in the same place."""

    @property
    def writer(self) -> str:
        """The identity under which this object appends; unique for ever."""

    def append(self, records: Sequence[Record]) -> list[Record]:
        """Make the records durable, in order, and return them stamped with writer, seq and time.

        On disk `JournalWriter.append` writes and syncs them.
        """

    def read(self, cursor: Cursor | None = None, *, most: int | None = None) -> tuple[list[Record], Cursor]:
        """Return the records since `cursor`, in order per writer, each at least once, and the new cursor.

        With `most` it may stop after about so many, and the new cursor goes on from there (see `blocks`); fewer than
        `most` are all that there were.
        """

    def claim(self, key: str, token: str) -> str:
        """Return the token that owns `key`: the first ever given for it. You won if it is yours.

        Workers claim trial numbers, leases and slots with it: see `study/claims.py`.
        """

    def heartbeat(self) -> None:
        """Say that this writer is alive; `study/driver/heartbeat.py` sends it every few seconds."""

    def heartbeats(self, writers: Sequence[str]) -> dict[str, int]:
        """Return each writer's count of beats; a writer never heard of has 0."""

    def silences(self, writers: Sequence[str]) -> dict[str, float]:
        """Return the seconds since each writer's last heartbeat, by the storage's clock; inf if it sent none.

        For viewers of a study. A driver that takes over another's trials watches its heartbeats instead.
        """

    def dropped(self) -> list[Dropped]:
        """Return what the latest reads had to leave out."""

    def close(self) -> None:
        """Flush and let go of files; whoever appends afterwards starts a new file."""

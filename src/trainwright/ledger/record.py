"""The unit of the ledger: one fact, by one writer, in one line."""

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from trainwright.errors import LedgerTooNew

__all__ = ["FORMAT", "Record"]

FORMAT = 1
"""The newest format of records that this version reads, and the one that it writes."""


_NO_PARTICULARS: Mapping[str, Any] = {}


class Record(NamedTuple):
    """One fact about a study.

    `kind` says what happened (see `trainwright.ledger.facts`), `body` holds its particulars as JSON values. A ledger
    stamps `writer`, `seq` (consecutive per writer) and `at` (wall seconds, shown but never compared) when it appends;
    (writer, seq) is unique, so that a record that is read twice is folded once.

    A tuple, since every worker reads every record of the others: it is made in a sixth of a dataclass's time.
    """

    kind: str
    body: Mapping[str, Any] = _NO_PARTICULARS
    trial: int | None = None
    lease: int | None = None
    writer: str = ""
    seq: int = -1
    at: float = 0.0
    v: int = FORMAT

    def stamped(self, writer: str, seq: int, at: float) -> "Record":
        """Return this record as written by `writer` as its `seq`-th, at wall time `at` (s)."""
        return Record(self.kind, self.body, self.trial, self.lease, writer, seq, round(at, 6), self.v)

    def line(self) -> bytes:
        """Return the record's journal line: crc32 in 8 hex digits, a space, canonical JSON, a newline."""
        content = {
            "v": self.v,
            "kind": self.kind,
            "writer": self.writer,
            "seq": self.seq,
            "trial": self.trial,
            "lease": self.lease,
            "at": self.at,
            "body": self.body,
        }
        try:
            text = json.dumps(content, separators=(",", ":"), allow_nan=False)
        except ValueError:  # a NaN or infinity somewhere: rare, so only now are they looked for
            text = json.dumps(_spell_out(content), separators=(",", ":"), allow_nan=False)
        data = text.encode()
        return b"%08x %b\n" % (zlib.crc32(data), data)

    @classmethod
    def of_lines(cls, lines: Sequence[bytes]) -> "list[Record | None]":
        """Return the record of each journal line (without its newline); None where checksum or JSON does not hold.

        Raises `LedgerTooNew` if a record is of a newer format. The lines are parsed as one JSON array: half the time.
        """
        sound = [_sound(line) for line in lines]
        texts = [line[9:] for line, ok in zip(lines, sound, strict=True) if ok]
        try:
            parsed = json.loads(b"[" + b",".join(texts) + b"]")
        except ValueError:
            parsed = []
        if len(parsed) != len(texts):  # a checksum holds over something that is no JSON: nothing that we wrote
            return [record for line in lines for record in (cls.of_lines([line]) if len(lines) > 1 else [None])]
        records = _records(parsed)
        if len(records) == len(lines):
            return records
        found = iter(records)
        return [next(found) if ok else None for ok in sound]


_fields = itemgetter(*Record._fields)


def _records(contents: Sequence[Any]) -> "list[Record | None]":
    """Return the records that JSON values stand for; None for those that stand for none."""
    try:
        newest = max([content["v"] for content in contents], default=FORMAT)
        if newest > FORMAT:
            raise LedgerTooNew(
                f"the ledger holds records of format {newest}; this version reads up to {FORMAT}; upgrade trainwright"
            )
        return [*map(Record._make, map(_fields, contents))]
    except (KeyError, TypeError):  # sound JSON, but no record: nothing that we wrote
        return [record for content in contents for record in (_records([content]) if len(contents) > 1 else [None])]


def _sound(line: bytes) -> bool:
    try:
        return int(line[:8], 16) == zlib.crc32(line[9:])
    except ValueError:
        return False


def _spell_out(value: Any) -> Any:
    """Return `value` with NaN and infinities as the strings that `float` reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _spell_out(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell_out(item) for item in value]
    return value

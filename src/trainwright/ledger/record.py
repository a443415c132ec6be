"""The record: one fact by one writer, encoded as a line of a journal with a checksum."""

import json
import math
import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple
from zlib import crc32

from trainwright.errors import LedgerError, LedgerTooNew, StudyError
from trainwright.ledger.kinds import misfits

__all__ = ["FORMAT", "LONGEST", "Record", "check_format", "new_identity", "read_identity"]

FORMAT = 1
"""The newest format of records that this version reads, and the one that it writes."""

LONGEST = 16 * 2**20
"""Bytes of the longest line that is written, and that is looked for in a journal."""

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
        kind, body, trial, lease, _, _, _, version = self
        return _made((kind, body, trial, lease, writer, seq, round(at, 6), version))

    def line(self) -> bytes:
        """Return the record's journal line: crc32 in 8 hex digits, a space, canonical JSON, a newline.

        Raises `LedgerError` for one that is longer than anybody reads.
        """
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
        except ValueError:
            # A NaN or infinity somewhere: rare, so only now are they looked for.
            text = json.dumps(_spell_out(content), separators=(",", ":"), allow_nan=False)
        data = text.encode()
        if len(data) > LONGEST - 10:
            raise LedgerError(
                f"a record {self.kind!r} of {len(data):,} bytes is too long; allowed: {LONGEST:,}; keep large values "
                "in files"
            )
        return b"%08x %b\n" % (crc32(data), data)

    @classmethod
    def of_lines(cls, lines: Sequence[bytes]) -> "list[Record | str]":
        """Return the record of each journal line (without its newline); where it is damaged, why.

        Raises `LedgerTooNew` if a record is of a newer format. The lines are parsed as one JSON array: half the time.
        """
        texts = [line[9:] for line in lines]
        sums = [line[:8] for line in lines]
        # All at once: a fifth of the time.
        try:
            whole = struct.unpack(f">{len(lines)}I", bytes.fromhex(b"".join(sums).decode())) == (*map(crc32, texts),)
        except (ValueError, struct.error):
            # Something that is no number in the place of a checksum.
            whole = False
        if whole:
            return _parsed(texts)
        sound = [*map(_checksum_matches, sums, texts)]
        found = iter(_parsed([text for text, ok in zip(texts, sound, strict=True) if ok]))
        return [next(found) if ok else "its checksum does not hold" for ok in sound]


def new_identity() -> str:
    """Return the text by which a ledger says which study it holds."""
    return json.dumps({"format": FORMAT, "study": secrets.token_hex(8), "created": time.time()})


def read_identity(text: str | bytes, where: object) -> str:
    """Return the study's identity; raises `StudyError` for a text that is none, `LedgerTooNew` for a newer one."""
    try:
        content = json.loads(text)
        version, study = int(content["format"]), str(content["study"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise StudyError(f"{where} is damaged: expected a JSON object with 'format' and 'study'") from None
    check_format(version, f"{where}:")
    return study


def check_format(version: int, what: str = "the ledger holds records of") -> None:
    """Raise `LedgerTooNew` if what was found is of a format that this version does not read."""
    if version > FORMAT:
        raise LedgerTooNew(f"{what} format {version}; this version reads up to {FORMAT}; upgrade trainwright")


def _parsed(texts: Sequence[bytes]) -> "list[Record | str]":
    """Return the records of JSON texts whose checksums hold; for a text that is none, why not."""
    try:
        contents = json.loads(b"[" + b",".join(texts) + b"]")
    except (ValueError, RecursionError):
        contents = []
    # Nothing that we wrote.
    if len(contents) != len(texts):
        return [one for text in texts for one in (_parsed([text]) if len(texts) > 1 else ["it is no JSON"])]
    return _records(contents)


_fields = itemgetter(*Record._fields)
# As `Record._make`, without its call of a Python function.
_made = partial(tuple.__new__, Record)


def _records(contents: Sequence[Any]) -> "list[Record | str]":
    """Return the records that JSON values stand for; for a value that stands for none, why not."""
    try:
        records: list[Record] = [*map(_made, map(_fields, contents))]
    except (KeyError, TypeError):
        # Sound JSON, but no record: nothing that we wrote.
        return [one for content in contents for one in (_records([content]) if len(contents) > 1 else [_lack(content)])]
    check_format(max([record.v for record in records if type(record.v) is int], default=FORMAT))
    wrong = misfits(records)
    return [wrong.get(place, record) for place, record in enumerate(records)] if wrong else [*records]


def _lack(content: Any) -> str:
    missing = [name for name in Record._fields if name not in content] if isinstance(content, dict) else []
    return f"it is no record{f': {missing[0]} is missing' if missing else ''}"


def _checksum_matches(checksum: bytes, text: bytes) -> bool:
    try:
        return int(checksum, 16) == crc32(text)
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

"""The kinds of records: one table, by which records are checked when made and when read, and documented.

A record that does not fit the table is left out as a whole by whoever reads it, and named. What lies beside the fields
of the table is kept and ignored, and so are kinds that are not in it: a later version may have written them.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trainwright.errors import InputError
from trainwright.ledger import fields as types
from trainwright.ledger.fields import Field, Shape, Type, optional, seconds, whole

__all__ = ["KINDS", "NOTES", "RecordKind", "check_body", "misfits"]


_A_TRIAL, _A_LEASE = whole(0, 2**31), whole(1, 2**31)


@dataclass(frozen=True, slots=True)
class RecordKind:
    """One kind of record: what it says, its body, and the number of its trial and of its lease."""

    says: str
    body: Shape
    trial: Type = _A_TRIAL
    lease: Type = _A_LEASE


def _kind(says: str, *fields: Field, trial: Type = _A_TRIAL, lease: Type = _A_LEASE) -> RecordKind:
    return RecordKind(says, Shape(*fields), trial, lease)


_EPOCH = Field("epoch", whole(), "from 1")
_WALL = Field("wall_seconds", seconds(), "since the run's start")
_VALUES = Field("values", types.NUMBERS, "final metrics")
_PATH = Field("path", types.TEXT, "relative to the study's folder")

_RAISED = Shape(
    Field("error", types.TEXT, "its type"),
    Field("file", types.TEXT, "path of the file"),
    Field("line", whole(), "from 1"),
    Field("source", types.TEXT, "the line's text"),
)

_STARTED = (
    Field("slot", types.TEXT, "where it runs"),
    Field("devices", types.TEXTS, "what it has there"),
    Field("resumed_epoch", whole(), "the epoch that it resumes from; 0: none"),
)
_PROPOSED = (
    Field("params", types.PARAMS, "its configuration"),
    Field("key", types.TEXT, "the configuration's digest"),
    Field("origin", types.JSON_OBJECT, "searcher and how it came to it"),
    Field(
        "exploits",
        Shape(
            Field("parent", whole(), "a trial"),
            Field("epoch", whole(), "of its checkpoint"),
            Field("replaces", whole(), "a trial that has ended"),
        ),
        "whose checkpoint a clone begins from, and in the place of which trial",
        required=False,
    ),
    Field("seen", whole(), "how many ends its searcher knew"),
    Field("seen_hash", types.TEXT, "a hash of those, whatever their order"),
)

KINDS: Mapping[str, RecordKind] = MappingProxyType(
    {
        "created": _kind(
            "this is a study",
            Field("space", types.SPACE, "the search space"),
            Field("objectives", types.OBJECTIVES, "what it searches for"),
            Field("constraints", types.CONSTRAINTS, "what its results must keep", required=False),
            Field("seed", whole(-(2**63), 2**128), "of every draw"),
            Field("versions", types.TEXT_MAP, "of the packages that made it", required=False),
            trial=types.NOTHING,
            lease=types.NOTHING,
        ),
        "joined": _kind(
            "a writer comes",
            Field("host", types.TEXT, "its machine"),
            Field("boot", types.TEXT, "the boot id of that"),
            Field("pid", whole(), "its process"),
            Field("process_start", types.TEXT, "when that started"),
            Field("namespace", types.TEXT, "where the process id counts", required=False),
            Field("session", whole(), "one more than the greatest known", required=False),
            trial=types.NOTHING,
            lease=types.NOTHING,
        ),
        "left": _kind(
            "a writer goes",
            Field("also", types.TEXTS, "who else it was, before failed writes", required=False),
            trial=types.NOTHING,
            lease=types.NOTHING,
        ),
        "proposed": _kind(
            "a new trial; with a lease it says what `started` says, too: it is started at once",
            *_PROPOSED,
            lease=optional(_A_LEASE),
        ),
        "started": _kind("a run of it begins", *_STARTED),
        "reported": _kind(
            "an epoch's metrics",
            _EPOCH,
            Field("step", optional(whole()), "optimizer steps done"),
            Field("metrics", types.NUMBERS, "by name"),
            _WALL,
            Field("setup_seconds", seconds(), "of these, before its first epoch", required=False),
        ),
        "checkpointed": _kind(
            "a checkpoint is there",
            _EPOCH,
            Field("step", whole(), "optimizer steps done"),
            _PATH,
            Field("bytes", whole(), "its size"),
            Field("digest", types.TEXT, "of its manifest"),
            Field("blocking_seconds", seconds(), "that training stood still"),
            Field("persist_seconds", seconds(), "until it was there"),
            Field("within_epochs", types.FLAG, "its run can save at any step", required=False),
        ),
        "offered": _kind(
            "predictions are there",
            _EPOCH,
            _PATH,
            Field("digests", types.TEXT_MAP, "of its files"),
        ),
        "decided": _kind(
            "a rule compared",
            _EPOCH,
            Field("rule", types.TEXT, "its name"),
            Field("verdict", types.TEXT, "`continue`, `pause`, `stop`"),
            Field("value", optional(types.NUMBER), "what it compared"),
            Field("threshold", optional(types.NUMBER), "with what"),
            lease=types.NOTHING,
        ),
        "paused": _kind(
            "devices were given back",
            Field(
                "reason",
                types.TEXT,
                "`rung`: a rule waits with it; `resized`: its driver starts it on other devices; `preempted`: the "
                "run was interrupted",
            ),
            _EPOCH,
            _VALUES,
            _WALL,
            Field("why", types.TEXT, "what interrupted it, such as SIGTERM", required=False),
        ),
        "promoted": _kind(
            "a rule lets a paused trial go on, under the lease that its writer has claimed",
            Field("until_epoch", whole(0, 2**63), "until which epoch"),
        ),
        "finished": _kind(
            "the trial is done",
            Field("reason", types.TEXT, "`completed`, `stopped`, `cancelled`"),
            _VALUES,
            _WALL,
        ),
        "failed": _kind(
            "it has no result",
            Field("failure", types.TEXT, "what kind of failure"),
            Field("message", types.TEXT, "a sentence"),
            Field("traceback", types.TEXT, "where it was raised"),
            Field("raised", _RAISED, "the line of the user's code that raised it", required=False),
            _WALL,
        ),
        "lost": _kind(
            "its holder is gone",
            Field("why", types.TEXT, "a sentence"),
            Field("blame", types.FLAG, "whether the trial may be to blame"),
        ),
        "note": _kind(
            "an annotation, such as `rolled back`: a trial did not start on more devices and went on with those that "
            "it had",
            Field("name", types.TEXT, "what it is about"),
            Field("value", types.JSON, "what it says"),
            trial=optional(_A_TRIAL),
            lease=types.NOTHING,
        ),
    }
)
"""Every kind of record that this version knows."""

_JOB = Shape(
    Field("session", whole()),
    *(
        Field(name, optional(types.TEXT), required=False)
        for name in ("module", "name", "script", "folder", "digest", "optuna")
    ),
    Field("trials", optional(whole(1)), required=False),
    *(Field(name, optional(types.JSON_OBJECT), required=False) for name in ("searcher", "rule", "policy")),
)

NOTES: Mapping[str, Field] = MappingProxyType(
    {
        "job": Field("value", _JOB, "what the study runs"),
        "reference": Field("value", types.NUMBERS, "the hypervolume's reference point"),
    }
)
"""The notes that this package's own readers act on, and what their values are."""

_STARTED_SHAPE = Shape(*_STARTED)
_UNKNOWN = RecordKind("", Shape(), optional(_A_TRIAL), optional(_A_LEASE))
_SEQ, _VERSION = whole(), whole(1)
# The end of the year 9999, up to which there are dates.
_AT = seconds(253_402_300_799.0)


def check_body(kind: str, body: Mapping[str, Any]) -> None:
    """Check the body of a new record of a kind of the table; raises `InputError` for one that nobody would read."""
    if not (KINDS[kind].body.fits(body) and (kind != "note" or _note_fits(body))):
        raise InputError(f"record {kind!r}: {_why_body(kind, body)}; it would not be read")


def misfits(records: Sequence[tuple[Any, ...]]) -> dict[int, str]:
    """Return which records, as tuples in the order of `Record`, do not fit the table: their places, and why."""
    if all(map(_fits, records)):
        return {}
    return {place: _why(record) for place, record in enumerate(records) if not _fits(record)}


def _fits(record: tuple[Any, ...]) -> bool:
    kind, body, trial, lease, writer, seq, at, version = record
    if type(kind) is not str or type(writer) is not str:
        return False
    if not (_SEQ.fits(seq) and _AT.fits(at) and _VERSION.fits(version)):
        return False
    known = KINDS.get(kind, _UNKNOWN)
    if not (known.trial.fits(trial) and known.lease.fits(lease) and known.body.fits(body)):
        return False
    if kind == "note":
        return _note_fits(body)
    # A proposal under a lease starts its trial at once, so it has the fields of a start, too.
    return kind != "proposed" or not lease or _STARTED_SHAPE.fits(body)


def _note_fits(body: Mapping[str, Any]) -> bool:
    known = NOTES.get(body["name"])
    return known is None or known.type.fits(body["value"])


def _why(record: tuple[Any, ...]) -> str:
    """Return why a record does not fit, in a few words."""
    kind, body, trial, lease, *stamps = record
    if type(kind) is not str:
        return "it is no record: kind is no text"
    known = KINDS.get(kind, _UNKNOWN)
    stamp = {"writer": types.TEXT, "seq": _SEQ, "at": _AT, "v": _VERSION}
    expected = {"trial": known.trial, "lease": known.lease, **stamp}
    for (name, of), value in zip(expected.items(), (trial, lease, *stamps), strict=True):
        if not of.fits(value):
            return f"it is no record {reprlib.repr(kind)}: {name} is no {of.text}"
    return f"it is no record {reprlib.repr(kind)}: {_why_body(kind, body, begun=lease is not None)}"


def _why_body(kind: str, body: Any, *, begun: bool = False) -> str:
    if kind not in KINDS:
        return "its body is no object"
    shapes = [KINDS[kind].body, *([_STARTED_SHAPE] if begun and kind == "proposed" else [])]
    if kind == "note" and shapes[0].fits(body):
        shapes = [Shape(NOTES[body["name"]])]
    return next((shape.why(body) for shape in shapes if not shape.fits(body)), "")

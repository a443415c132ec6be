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
from trainwright.ledger.fields import (
    CONSTRAINTS,
    FLAG,
    JSON,
    JSON_OBJECT,
    NOTHING,
    NUMBER,
    NUMBERS,
    OBJECTIVES,
    PARAMS,
    SPACE,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Field,
    Optional,
    Seconds,
    Shape,
    Type,
    Whole,
)

__all__ = ["KINDS", "NOTES", "RecordKind", "check_body", "misfits"]


_A_TRIAL, _A_LEASE = Whole(0, 2**31), Whole(1, 2**31)


@dataclass(frozen=True, slots=True)
class RecordKind:
    """One kind of record: what it says, its body, and the number of its trial and of its lease."""

    says: str
    body: Shape
    trial: Type = _A_TRIAL
    lease: Type = _A_LEASE


def _shape(*fields: Field) -> Shape:
    return Shape(fields)


def _kind(says: str, *fields: Field, trial: Type = _A_TRIAL, lease: Type = _A_LEASE) -> RecordKind:
    return RecordKind(says, Shape(fields), trial, lease)


_EPOCH = Field("epoch", Whole(), "from 1")
_WALL = Field("wall_seconds", Seconds(), "since the run's start")
_VALUES = Field("values", NUMBERS, "final metrics")
_PATH = Field("path", TEXT, "relative to the study's folder")

_RAISED = _shape(
    Field("error", TEXT, "its type"),
    Field("file", TEXT, "path of the file"),
    Field("line", Whole(), "from 1"),
    Field("source", TEXT, "the line's text"),
)

_STARTED = (
    Field("slot", TEXT, "where it runs"),
    Field("devices", TEXTS, "what it has there"),
    Field("resumed_epoch", Whole(), "the epoch that it resumes from; 0: none"),
)
_PROPOSED = (
    Field("params", PARAMS, "its configuration"),
    Field("key", TEXT, "the configuration's digest"),
    Field("origin", JSON_OBJECT, "searcher and how it came to it"),
    Field(
        "exploits",
        _shape(
            Field("parent", Whole(), "a trial"),
            Field("epoch", Whole(), "of its checkpoint"),
            Field("replaces", Whole(), "a trial that has ended"),
        ),
        "whose checkpoint a clone begins from, and in the place of which trial",
        required=False,
    ),
    Field("seen", Whole(), "how many ends its searcher knew"),
    Field("seen_hash", TEXT, "a hash of those, whatever their order"),
)

KINDS: Mapping[str, RecordKind] = MappingProxyType(
    {
        "created": _kind(
            "this is a study",
            Field("space", SPACE, "the search space"),
            Field("objectives", OBJECTIVES, "what it searches for"),
            Field("constraints", CONSTRAINTS, "what its results must keep", required=False),
            Field("seed", Whole(-(2**63), 2**128), "of every draw"),
            Field("versions", TEXT_MAP, "of the packages that made it", required=False),
            trial=NOTHING,
            lease=NOTHING,
        ),
        "joined": _kind(
            "a writer comes",
            Field("host", TEXT, "its machine"),
            Field("boot", TEXT, "the boot id of that"),
            Field("pid", Whole(), "its process"),
            Field("process_start", TEXT, "when that started"),
            Field("namespace", TEXT, "where the process id counts", required=False),
            Field("session", Whole(), "one more than the greatest known", required=False),
            trial=NOTHING,
            lease=NOTHING,
        ),
        "left": _kind(
            "a writer goes",
            Field("also", TEXTS, "who else it was, before failed writes", required=False),
            trial=NOTHING,
            lease=NOTHING,
        ),
        "proposed": _kind(
            "a new trial; with a lease it says what `started` says, too: it is started at once",
            *_PROPOSED,
            lease=Optional(_A_LEASE),
        ),
        "started": _kind("a run of it begins", *_STARTED),
        "reported": _kind(
            "an epoch's metrics",
            _EPOCH,
            Field("step", Optional(Whole()), "optimizer steps done"),
            Field("metrics", NUMBERS, "by name"),
            _WALL,
        ),
        "checkpointed": _kind(
            "a checkpoint is there",
            _EPOCH,
            Field("step", Whole(), "optimizer steps done"),
            _PATH,
            Field("bytes", Whole(), "its size"),
            Field("digest", TEXT, "of its manifest"),
            Field("blocking_seconds", Seconds(), "that training stood still"),
            Field("persist_seconds", Seconds(), "until it was there"),
            Field("within_epochs", FLAG, "its run can save at any step", required=False),
        ),
        "offered": _kind(
            "predictions are there",
            _EPOCH,
            _PATH,
            Field("digests", TEXT_MAP, "of its files"),
        ),
        "decided": _kind(
            "a rule compared",
            _EPOCH,
            Field("rule", TEXT, "its name"),
            Field("verdict", TEXT, "`continue`, `pause`, `stop`"),
            Field("value", Optional(NUMBER), "what it compared"),
            Field("threshold", Optional(NUMBER), "with what"),
            lease=NOTHING,
        ),
        "paused": _kind(
            "devices were given back",
            Field(
                "reason",
                TEXT,
                "`rung`: a rule waits with it; `resized`: its driver starts it on other devices; `preempted`: the "
                "run was interrupted",
            ),
            _EPOCH,
            _VALUES,
            _WALL,
            Field("why", TEXT, "what interrupted it, such as SIGTERM", required=False),
        ),
        "promoted": _kind(
            "a rule lets a paused trial go on, under the lease that its writer has claimed",
            Field("until_epoch", Whole(0, 2**63), "until which epoch"),
        ),
        "finished": _kind(
            "the trial is done",
            Field("reason", TEXT, "`completed`, `stopped`, `cancelled`"),
            _VALUES,
            _WALL,
        ),
        "failed": _kind(
            "it has no result",
            Field("failure", TEXT, "what kind of failure"),
            Field("message", TEXT, "a sentence"),
            Field("traceback", TEXT, "where it was raised"),
            Field("raised", _RAISED, "the line of the user's code that raised it", required=False),
            _WALL,
        ),
        "lost": _kind(
            "its holder is gone",
            Field("why", TEXT, "a sentence"),
            Field("blame", FLAG, "whether the trial may be to blame"),
        ),
        "note": _kind(
            "an annotation, such as `rolled back`: a trial did not start on more devices and went on with those that "
            "it had",
            Field("name", TEXT, "what it is about"),
            Field("value", JSON, "what it says"),
            trial=Optional(_A_TRIAL),
            lease=NOTHING,
        ),
    }
)
"""Every kind of record that this version knows."""

_JOB = _shape(
    Field("session", Whole()),
    *(
        Field(name, Optional(TEXT), required=False)
        for name in ("module", "name", "script", "folder", "digest", "optuna")
    ),
    Field("trials", Optional(Whole(1)), required=False),
    *(Field(name, Optional(JSON_OBJECT), required=False) for name in ("searcher", "rule", "policy", "stop")),
)

NOTES: Mapping[str, Field] = MappingProxyType(
    {
        "job": Field("value", _JOB, "what the study runs"),
        "reference": Field("value", NUMBERS, "the hypervolume's reference point"),
    }
)
"""The notes that this package's own readers act on, and what their values are."""

_STARTED_SHAPE = _shape(*_STARTED)
_UNKNOWN = RecordKind("", Shape(()), Optional(_A_TRIAL), Optional(_A_LEASE))
# In the order of `Record`.
_STAMP: Mapping[str, Type] = MappingProxyType(
    {
        "writer": TEXT,
        "seq": Whole(),
        # The end of the year 9999, up to which there are dates.
        "at": Seconds(253_402_300_799.0),
        "v": Whole(1),
    }
)
_SEQ_FITS, _AT_FITS, _VERSION_FITS = (_STAMP[name].fits for name in ("seq", "at", "v"))
_CHECKS = MappingProxyType(
    {name: (kind.trial.fits, kind.lease.fits, kind.body.fits) for name, kind in KINDS.items()}
)  # looked up for every record that others wrote
_UNKNOWN_CHECKS = (_UNKNOWN.trial.fits, _UNKNOWN.lease.fits, _UNKNOWN.body.fits)


def check_body(kind: str, body: Mapping[str, Any]) -> None:
    """Check the body of a new record of a kind of the table; raises `InputError` for one that nobody would read."""
    if not (_CHECKS[kind][2](body) and (kind != "note" or _note_fits(body))):
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
    if not (_SEQ_FITS(seq) and _AT_FITS(at) and _VERSION_FITS(version)):
        return False
    trial_fits, lease_fits, body_fits = _CHECKS.get(kind, _UNKNOWN_CHECKS)
    if not (trial_fits(trial) and lease_fits(lease) and body_fits(body)):
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
    types = {"trial": known.trial, "lease": known.lease, **_STAMP}
    for (name, of), value in zip(types.items(), (trial, lease, *stamps), strict=True):
        if not of.fits(value):
            return f"it is no record {reprlib.repr(kind)}: {name} is no {of.text}"
    return f"it is no record {reprlib.repr(kind)}: {_why_body(kind, body, begun=lease is not None)}"


def _why_body(kind: str, body: Any, *, begun: bool = False) -> str:
    if kind not in KINDS:
        return "its body is no object"
    shapes = [KINDS[kind].body, *([_STARTED_SHAPE] if begun and kind == "proposed" else [])]
    if kind == "note" and shapes[0].fits(body):
        shapes = [Shape((NOTES[body["name"]],))]
    return next((shape.why(body) for shape in shapes if not shape.fits(body)), "")

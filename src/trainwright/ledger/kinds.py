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
    Field,
    Flag,
    Goals,
    Json,
    Nothing,
    Number,
    Numbers,
    Optional,
    Params,
    Seconds,
    Shape,
    SpaceTable,
    Text,
    TextMap,
    Texts,
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


_EPOCH = Field(name="epoch", type=Whole(), says="from 1")
_WALL = Field(name="wall_seconds", type=Seconds(), says="since the run's start")
_VALUES = Field(name="values", type=Numbers(), says="final metrics")
_PATH = Field(name="path", type=Text(), says="relative to the study's folder")

_RAISED = _shape(
    Field(name="error", type=Text(), says="its type"),
    Field(name="file", type=Text(), says="path of the file"),
    Field(name="line", type=Whole(), says="from 1"),
    Field(name="source", type=Text(), says="the line's text"),
)

_STARTED = (
    Field(name="slot", type=Text(), says="where it runs"),
    Field(name="devices", type=Texts(), says="what it has there"),
    Field(name="resumed_epoch", type=Whole(), says="the epoch that it resumes from; 0: none"),
)
_PROPOSED = (
    Field(name="params", type=Params(), says="its configuration"),
    Field(name="key", type=Text(), says="the configuration's digest"),
    Field(name="origin", type=Json(dict, "object of JSON"), says="searcher and how it came to it"),
    Field(name="seen", type=Whole(), says="how many ends its searcher knew"),
    Field(name="seen_hash", type=Text(), says="a hash of those, whatever their order"),
)

KINDS: Mapping[str, RecordKind] = MappingProxyType(
    {
        "created": RecordKind(
            "this is a study",
            _shape(
                Field(name="space", type=SpaceTable(), says="the search space"),
                Field(name="objectives", type=Goals.objectives(), says="what it searches for"),
                Field(name="constraints", type=Goals.constraints(), says="what its results must keep", required=False),
                Field(name="seed", type=Whole(-(2**63), 2**128), says="of every draw"),
                Field(name="versions", type=TextMap(), says="of the packages that made it", required=False),
            ),
            trial=Nothing(),
            lease=Nothing(),
        ),
        "joined": RecordKind(
            "a writer comes",
            _shape(
                Field(name="host", type=Text(), says="its machine"),
                Field(name="boot", type=Text(), says="the boot id of that"),
                Field(name="pid", type=Whole(), says="its process"),
                Field(name="process_start", type=Text(), says="when that started"),
                Field(name="namespace", type=Text(), says="where the process id counts", required=False),
                Field(name="session", type=Whole(), says="one more than the greatest known", required=False),
            ),
            trial=Nothing(),
            lease=Nothing(),
        ),
        "left": RecordKind(
            "a writer goes",
            _shape(
                Field(name="also", type=Texts(), says="who else it was, before failed writes", required=False),
            ),
            trial=Nothing(),
            lease=Nothing(),
        ),
        "proposed": RecordKind(
            "a new trial; with a lease it says what `started` says, too: it is started at once",
            _shape(*_PROPOSED),
            lease=Optional(_A_LEASE),
        ),
        "started": RecordKind("a run of it begins", _shape(*_STARTED)),
        "reported": RecordKind(
            "an epoch's metrics",
            _shape(
                _EPOCH,
                Field(name="step", type=Optional(Whole()), says="optimizer steps done"),
                Field(name="metrics", type=Numbers(), says="by name"),
                _WALL,
            ),
        ),
        "checkpointed": RecordKind(
            "a checkpoint is there",
            _shape(
                _EPOCH,
                Field(name="step", type=Whole(), says="optimizer steps done"),
                _PATH,
                Field(name="bytes", type=Whole(), says="its size"),
                Field(name="digest", type=Text(), says="of its manifest"),
                Field(name="blocking_seconds", type=Seconds(), says="that training stood still"),
                Field(name="persist_seconds", type=Seconds(), says="until it was there"),
            ),
        ),
        "offered": RecordKind(
            "predictions are there",
            _shape(_EPOCH, _PATH, Field(name="digests", type=TextMap(), says="of its files")),
        ),
        "decided": RecordKind(
            "a rule compared",
            _shape(
                _EPOCH,
                Field(name="rule", type=Text(), says="its name"),
                Field(name="verdict", type=Text(), says="`continue`, `pause`, `stop`"),
                Field(name="value", type=Optional(Number()), says="what it compared"),
                Field(name="threshold", type=Optional(Number()), says="with what"),
            ),
            lease=Nothing(),
        ),
        "paused": RecordKind(
            "devices were given back",
            _shape(
                Field(
                    name="reason",
                    type=Text(),
                    says="`rung`: a rule waits with it; `resized`: its driver starts it on other devices; "
                    "`preempted`: the run was interrupted",
                ),
                _EPOCH,
                _VALUES,
                _WALL,
                Field(name="why", type=Text(), says="what interrupted it, such as SIGTERM", required=False),
            ),
        ),
        "promoted": RecordKind(
            "a rule lets a paused trial go on, under the lease that its writer has claimed",
            _shape(Field(name="until_epoch", type=Whole(0, 2**63), says="until which epoch")),
        ),
        "finished": RecordKind(
            "the trial is done",
            _shape(Field(name="reason", type=Text(), says="`completed`, `stopped`, `cancelled`"), _VALUES, _WALL),
        ),
        "failed": RecordKind(
            "it has no result",
            _shape(
                Field(name="failure", type=Text(), says="what kind of failure"),
                Field(name="message", type=Text(), says="a sentence"),
                Field(name="traceback", type=Text(), says="where it was raised"),
                Field(name="raised", type=_RAISED, says="the line of the user's code that raised it", required=False),
                _WALL,
            ),
        ),
        "lost": RecordKind(
            "its holder is gone",
            _shape(
                Field(name="why", type=Text(), says="a sentence"),
                Field(name="blame", type=Flag(), says="whether the trial may be to blame"),
            ),
        ),
        "note": RecordKind(
            "an annotation, such as `rolled back`: a trial did not start on more devices and went on with those that "
            "it had",
            _shape(
                Field(name="name", type=Text(), says="what it is about"),
                Field(name="value", type=Json(), says="what it says"),
            ),
            trial=Optional(_A_TRIAL),
            lease=Nothing(),
        ),
    }
)
"""Every kind of record that this version knows."""

NOTES: Mapping[str, Field] = MappingProxyType(
    {
        "job": Field(
            name="value",
            type=Shape(
                (
                    Field(name="session", type=Whole()),
                    *(
                        Field(name=name, type=Optional(Text()), required=False)
                        for name in ("module", "name", "script", "folder", "digest", "optuna")
                    ),
                    Field(name="trials", type=Optional(Whole(1)), required=False),
                    *(
                        Field(name=name, type=Optional(Json(dict)), required=False)
                        for name in ("searcher", "rule", "policy", "stop")
                    ),
                )
            ),
            says="what the study runs",
        ),
        "reference": Field(name="value", type=Numbers(), says="the hypervolume's reference point"),
    }
)
"""The notes that this package's own readers act on, and what their values are."""

_STARTED_SHAPE = _shape(*_STARTED)
_UNKNOWN = RecordKind("", Shape(()), Optional(_A_TRIAL), Optional(_A_LEASE))
# In the order of `Record`.
_STAMP: Mapping[str, Type] = MappingProxyType(
    {
        "writer": Text(),
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

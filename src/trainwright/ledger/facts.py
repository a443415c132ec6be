"""New records: one maker for each kind of the table in `kinds`; no other module makes a body.

`reported(trial, lease, epoch=3, ...)` takes the fields of its kind by name. Each raises `InputError` for what the table
does not allow, since nobody would read it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from trainwright.errors import InputError
from trainwright.ledger.kinds import KINDS, check_body
from trainwright.ledger.record import Record
from trainwright.ledger.writers import Writer

__all__ = ["begun", "joined", "left", "make_record", "note"]

# Of what a failing trial said: far less than the longest line of a journal. Of a traceback the end is kept.
_MOST_CHARACTERS = 2**18
_KEPT = {
    "message": slice(_MOST_CHARACTERS),
    "traceback": slice(-_MOST_CHARACTERS, None),
    "why": slice(_MOST_CHARACTERS),
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "checkpointed": {"step": 0, "blocking_seconds": 0.0, "persist_seconds": 0.0},
    "failed": {"traceback": "", "wall_seconds": 0.0},
}


def make_record(kind: str, trial: int | None = None, lease: int | None = None, **given: Any) -> Record:
    """Return a new record of a kind, with its fields as plain JSON values; what need not be there is left out if empty.

    Raises `InputError` for fields that the table does not have, or does not allow.
    """
    given = {**_DEFAULTS.get(kind, {}), **given}
    fields = KINDS[kind].body.fields
    if unknown := given.keys() - {field.name for field in fields}:
        raise InputError(f"record {kind!r}: got {', '.join(sorted(unknown))}; allowed: the fields of its kind")
    body = {}
    for field in fields:
        if field.name in given and (given[field.name] or field.required):
            value, plain = given[field.name], field.type.plain
            body[field.name] = value if plain is None else plain(value)
    for name in _KEPT.keys() & body.keys():
        body[name] = body[name][_KEPT[name]]
    check_body(kind, body)
    return Record(kind, body, trial, lease)


created = partial(make_record, "created")
proposed = partial(make_record, "proposed")
started = partial(make_record, "started")
reported = partial(make_record, "reported")
checkpointed = partial(make_record, "checkpointed")
offered = partial(make_record, "offered")
decided = partial(make_record, "decided")
paused = partial(make_record, "paused")
promoted = partial(make_record, "promoted")
finished = partial(make_record, "finished")
failed = partial(make_record, "failed")
lost = partial(make_record, "lost")


def joined(writer: Writer, *, session: int) -> Record:
    """Return the record that ties this writer's identity to a process.

    `session` is one more than the greatest known when it joined: it puts writers that never met into their order
    without comparing clocks.
    """
    return make_record("joined", **writer.body(), session=session)


def left(also: Sequence[str] = ()) -> Record:
    """Return the record by which a writer says that it appends no more, nor as any of those that it was before."""
    return make_record("left", also=also)


def begun(proposal: Record, start: Record) -> Record:
    """Return one record of a trial that its proposer starts at once: it tells both, and is read in half the time."""
    return Record("proposed", {**proposal.body, **start.body}, proposal.trial, start.lease)


def note(name: str, value: Any, trial: int | None = None) -> Record:
    """Return an annotation of the study or of one trial."""
    return make_record("note", trial, name=name, value=value)

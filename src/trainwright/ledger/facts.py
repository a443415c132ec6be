"""New records: one function for each kind of the table in `kinds`; no other module makes a body.

Each raises `InputError` for what the table does not allow, since nobody would read it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from trainwright.ledger.kinds import check_body
from trainwright.ledger.record import Record
from trainwright.ledger.trials import Exploit
from trainwright.ledger.writers import Writer

__all__ = [
    "begun",
    "checkpointed",
    "created",
    "decided",
    "failed",
    "finished",
    "joined",
    "left",
    "lost",
    "note",
    "offered",
    "paused",
    "promoted",
    "proposed",
    "reported",
    "started",
]


# Of what a failing trial said: far less than the longest line of a journal.
_MOST_CHARACTERS = 2**18


def created(
    *,
    space: Mapping[str, Any],
    objectives: Sequence[str],
    seed: int,
    versions: Mapping[str, str],
    constraints: Sequence[str] = (),
) -> Record:
    """Return the first record of a study: what it searches and for what."""
    body = {
        "space": space,
        "objectives": list(objectives),
        "constraints": list(constraints),
        "seed": seed,
        "versions": dict(versions),
    }
    return _record("created", body)


def joined(writer: Writer, *, session: int) -> Record:
    """Return the record that ties this writer's identity to a process.

    `session` is one more than the greatest known when it joined: it puts writers that never met into their order
    without comparing clocks.
    """
    return _record("joined", {**writer.body(), "session": session})


def left(also: Sequence[str] = ()) -> Record:
    """Return the record by which a writer says that it appends no more, nor as any of those that it was before."""
    return _record("left", {"also": list(also)} if also else {})


def proposed(
    trial: int,
    *,
    params: Mapping[str, Any],
    key: str,
    origin: Mapping[str, Any],
    seen: int,
    seen_hash: str,
    exploits: Exploit | None = None,
) -> Record:
    """Return the record of a new trial; `seen` results, with that order-free hash, were known to its searcher."""
    body = {"params": params, "key": key, "origin": dict(origin), "seen": seen, "seen_hash": seen_hash}
    if exploits is not None:
        body["exploits"] = exploits._asdict()
    return _record("proposed", body, trial)


def started(trial: int, lease: int, *, slot: str, devices: Sequence[str], resumed_epoch: int) -> Record:
    """Return the record of a trial's start on `devices` from the checkpoint of `resumed_epoch` (0: from nothing)."""
    return _record("started", {"slot": slot, "devices": list(devices), "resumed_epoch": resumed_epoch}, trial, lease)


def begun(proposal: Record, start: Record) -> Record:
    """Return one record of a trial that its proposer starts at once: it tells both, and is read in half the time."""
    return Record("proposed", {**proposal.body, **start.body}, proposal.trial, start.lease)


def reported(
    trial: int, lease: int, *, epoch: int, step: int | None, metrics: Mapping[str, float], wall_seconds: float
) -> Record:
    """Return the record of an epoch's metrics; `wall_seconds` counts from the start of the lease."""
    body = {"epoch": epoch, "step": step, "metrics": dict(metrics), "wall_seconds": _rounded(wall_seconds)}
    return _record("reported", body, trial, lease)


def checkpointed(
    trial: int,
    lease: int,
    *,
    epoch: int,
    path: str,
    size: int,
    digest: str,
    step: int = 0,
    blocking_seconds: float = 0.0,
    persist_seconds: float = 0.0,
    within_epochs: bool = False,
) -> Record:
    """Return the record of a checkpoint of `size` bytes at `path`, relative to the study's folder.

    Training stood still for `blocking_seconds` (as far as known at the commit); the checkpoint was there after
    `persist_seconds`. `within_epochs` says that its run can save at any step.
    """
    body = {
        "epoch": epoch,
        "step": step,
        "path": path,
        "bytes": size,
        "digest": digest,
        "blocking_seconds": _rounded(blocking_seconds),
        "persist_seconds": _rounded(persist_seconds),
        "within_epochs": within_epochs,
    }
    return _record("checkpointed", body, trial, lease)


def offered(trial: int, lease: int, *, epoch: int, path: str, digests: Mapping[str, str]) -> Record:
    """Return the record of a library entry at `path`, relative to the study's folder."""
    return _record("offered", {"epoch": epoch, "path": path, "digests": dict(digests)}, trial, lease)


def decided(trial: int, *, epoch: int, rule: str, verdict: str, value: float | None, threshold: float | None) -> Record:
    """Return the record of a promotion rule's verdict and of the numbers it rests on."""
    body = {"epoch": epoch, "rule": rule, "verdict": verdict, "value": value, "threshold": threshold}
    return _record("decided", body, trial)


def paused(
    trial: int,
    lease: int,
    *,
    reason: str,
    epoch: int,
    values: Mapping[str, float],
    wall_seconds: float,
    why: str = "",
) -> Record:
    """Return the record of a trial that gave its devices back and can go on from its checkpoint of `epoch`.

    `reason` is "rung" (a promotion rule waits with it), "resized" (its driver starts it on other devices) or
    "preempted" (whoever has room goes on with it); `why` says what interrupted it, such as "SIGUSR1".
    """
    body = {"reason": reason, "epoch": epoch, "values": dict(values), "wall_seconds": _rounded(wall_seconds)}
    if why:
        body["why"] = why
    return _record("paused", body, trial, lease)


def promoted(trial: int, lease: int, *, until_epoch: int) -> Record:
    """Return the record of a paused trial that is to go on until `until_epoch`, under `lease`, which its writer has.

    Whoever has that lease starts it; if it dies before, the lease is lost like any other.
    """
    return _record("promoted", {"until_epoch": until_epoch}, trial, lease)


def finished(trial: int, lease: int, *, reason: str, values: Mapping[str, float], wall_seconds: float) -> Record:
    """Return the record of a trial's end; `reason` is "completed", "stopped" or "cancelled"."""
    body = {"reason": reason, "values": dict(values), "wall_seconds": _rounded(wall_seconds)}
    return _record("finished", body, trial, lease)


def failed(
    trial: int,
    lease: int,
    *,
    failure: str,
    message: str,
    traceback: str = "",
    raised: Mapping[str, Any] | None = None,
    wall_seconds: float = 0.0,
) -> Record:
    """Return the record of a failure: exception, out_of_memory, timeout, killed, bad_objective, misuse or rejected.

    `raised` has the fields of `RaisedAt`, if a line of the user's code is known. Of a very long message the beginning
    is kept, of a traceback the end.
    """
    body = {
        "failure": failure,
        "message": message[:_MOST_CHARACTERS],
        "traceback": traceback[-_MOST_CHARACTERS:],
        "wall_seconds": _rounded(wall_seconds),
    }
    if raised is not None:
        body["raised"] = dict(raised)
    return _record("failed", body, trial, lease)


def lost(trial: int, lease: int, *, why: str, blame: bool) -> Record:
    """Return the record of a lease whose holder is gone, written by whoever saw it.

    `blame` tells whether the trial itself may be the cause: its process died while its driver was well and not leaving.
    """
    return _record("lost", {"why": why[:_MOST_CHARACTERS], "blame": blame}, trial, lease)


def note(name: str, value: Any, trial: int | None = None) -> Record:
    """Return an annotation of the study or of one trial."""
    return _record("note", {"name": name, "value": value}, trial)


def _rounded(seconds: float) -> float:
    """Return a time to the microsecond, as a float of Python whatever kind of number it was."""
    return round(float(seconds), 6)


def _record(kind: str, body: dict[str, Any], trial: int | None = None, lease: int | None = None) -> Record:
    check_body(kind, body)
    return Record(kind, body, trial, lease)

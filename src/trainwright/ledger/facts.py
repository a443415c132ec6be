"""The kinds of records and their bodies: one function per kind, and nowhere else is a body put together."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainwright.ledger.record import Record
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
    return Record(kind="created", body=body)


def joined(writer: Writer, *, session: int) -> Record:
    """Return the record that ties this writer's identity to a process.

    `session` is one more than the greatest known when it joined: it puts writers that never met into their order
    without comparing clocks.
    """
    return Record(kind="joined", body={**writer.body(), "session": session})


def left(also: Sequence[str] = ()) -> Record:
    """Return the record by which a writer says that it appends no more, nor as any of those that it was before."""
    return Record(kind="left", body={"also": list(also)} if also else {})


def proposed(
    trial: int, *, params: Mapping[str, Any], key: str, origin: Mapping[str, Any], seen: int, seen_hash: str
) -> Record:
    """Return the record of a new trial; `seen` results, with that order-free hash, were known to its searcher."""
    body = {"params": params, "key": key, "origin": dict(origin), "seen": seen, "seen_hash": seen_hash}
    return Record(kind="proposed", trial=trial, body=body)


def started(trial: int, lease: int, *, slot: str, devices: Sequence[str], resumed_epoch: int) -> Record:
    """Return the record of a trial's start on `devices` from the checkpoint of `resumed_epoch` (0: from nothing)."""
    body = {"slot": slot, "devices": list(devices), "resumed_epoch": resumed_epoch}
    return Record(kind="started", trial=trial, lease=lease, body=body)


def begun(proposal: Record, start: Record) -> Record:
    """Return one record of a trial that its proposer starts at once: it tells both, and is read in half the time."""
    return Record(kind="proposed", trial=proposal.trial, lease=start.lease, body={**proposal.body, **start.body})


def reported(
    trial: int, lease: int, *, epoch: int, step: int | None, metrics: Mapping[str, float], wall_seconds: float
) -> Record:
    """Return the record of an epoch's metrics; `wall_seconds` counts from the start of the lease."""
    body = {"epoch": epoch, "step": step, "metrics": dict(metrics), "wall_seconds": round(wall_seconds, 6)}
    return Record(kind="reported", trial=trial, lease=lease, body=body)


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
) -> Record:
    """Return the record of a checkpoint of `size` bytes at `path`, relative to the study's folder.

    Training stood still for `blocking_seconds` (as far as known at the commit); the checkpoint was there after
    `persist_seconds`.
    """
    body = {
        "epoch": epoch,
        "step": step,
        "path": path,
        "bytes": size,
        "digest": digest,
        "blocking_seconds": round(blocking_seconds, 6),
        "persist_seconds": round(persist_seconds, 6),
    }
    return Record(kind="checkpointed", trial=trial, lease=lease, body=body)


def offered(trial: int, lease: int, *, epoch: int, path: str, digests: Mapping[str, str]) -> Record:
    """Return the record of a library entry at `path`, relative to the study's folder."""
    body = {"epoch": epoch, "path": path, "digests": dict(digests)}
    return Record(kind="offered", trial=trial, lease=lease, body=body)


def decided(trial: int, *, epoch: int, rule: str, verdict: str, value: float | None, threshold: float | None) -> Record:
    """Return the record of a promotion rule's verdict and of the numbers it rests on."""
    body = {"epoch": epoch, "rule": rule, "verdict": verdict, "value": value, "threshold": threshold}
    return Record(kind="decided", trial=trial, body=body)


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
    body = {"reason": reason, "epoch": epoch, "values": dict(values), "wall_seconds": round(wall_seconds, 6)}
    return Record(kind="paused", trial=trial, lease=lease, body={**body, "why": why} if why else body)


def promoted(trial: int, lease: int, *, until_epoch: int) -> Record:
    """Return the record of a paused trial that is to go on until `until_epoch`, under `lease`, which its writer has.

    Whoever has that lease starts it; if it dies before, the lease is lost like any other.
    """
    return Record(kind="promoted", trial=trial, lease=lease, body={"until_epoch": until_epoch})


def finished(trial: int, lease: int, *, reason: str, values: Mapping[str, float], wall_seconds: float) -> Record:
    """Return the record of a trial's end; `reason` is "completed", "stopped" or "cancelled"."""
    body = {"reason": reason, "values": dict(values), "wall_seconds": round(wall_seconds, 6)}
    return Record(kind="finished", trial=trial, lease=lease, body=body)


def failed(
    trial: int, lease: int, *, failure: str, message: str, traceback: str = "", wall_seconds: float = 0.0
) -> Record:
    """Return the record of a failure: exception, out_of_memory, timeout, killed, bad_objective or rejected."""
    body = {"failure": failure, "message": message, "traceback": traceback, "wall_seconds": round(wall_seconds, 6)}
    return Record(kind="failed", trial=trial, lease=lease, body=body)


def lost(trial: int, lease: int, *, why: str, blame: bool) -> Record:
    """Return the record of a lease whose holder is gone, written by whoever saw it.

    `blame` tells whether the trial itself may be the cause: its process died while its driver was well and not leaving.
    """
    return Record(kind="lost", trial=trial, lease=lease, body={"why": why, "blame": blame})


def note(name: str, value: Any, trial: int | None = None) -> Record:
    """Return an annotation of the study or of one trial."""
    return Record(kind="note", trial=trial, body={"name": name, "value": value})

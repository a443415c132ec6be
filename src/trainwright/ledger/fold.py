"""The fold: replays records and computes the state of a study from them.

The result does not depend on how the writers' streams interleave, nor on records that come twice: per trial the order
is that of leases, a higher lease overrides a lower one, any result beats any failure, and ties within one lease go to
the least (writer, seq).
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from sys import intern
from typing import Any

from trainwright.ledger.objectives import Constraint, Objective, Outcome
from trainwright.ledger.protocol import Cursor, Ledger
from trainwright.ledger.record import Record, check_format
from trainwright.ledger.trials import (
    ENDED,
    Checkpoint,
    End,
    Exploit,
    Failure,
    Lease,
    Offer,
    RaisedAt,
    Report,
    Status,
    TrialState,
)
from trainwright.ledger.writers import Writer

__all__ = ["Decision", "State", "blocks", "fold", "state_of"]

# Records that are in memory beside the state while a ledger is read.
_BLOCK = 1000


@dataclass(frozen=True, slots=True)
class Decision:
    """A promotion rule's verdict on a trial at an epoch, with the value and threshold that it rests on."""

    trial: int
    epoch: int
    rule: str
    verdict: str
    value: float | None
    threshold: float | None
    at: float
    writer: str


@dataclass(slots=True)
class State:
    """A study's state by its records; `State.apply` adds one record in O(1)."""

    space: dict[str, Any] | None = None
    objectives: tuple[Objective, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    seed: int = 0
    created_at: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    creator: str = ""
    trials: dict[int, TrialState] = field(default_factory=dict)
    writers: dict[str, Writer] = field(default_factory=dict)
    # Who has said goodbye, though it may not be among those yet.
    left: set[str] = field(default_factory=set)
    decisions: dict[tuple[int, int], Decision] = field(default_factory=dict)
    notes: dict[tuple[str, int], tuple[int | None, str, Any]] = field(default_factory=dict)
    # Of the hypervolume: a value per objective, noted once.
    reference: dict[str, float] | None = None
    # Who noted it.
    referee: str = ""
    # By status.
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, Status), 0))
    # Numbers of the trials that have not ended.
    open: set[int] = field(default_factory=set)
    ended_hash: int = 0
    sessions: int = 0
    unknown_kinds: dict[str, int] = field(default_factory=dict)
    _next_seq: dict[str, int] = field(default_factory=dict, init=False)
    # By writer: numbers that were left out.
    _gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict, init=False)
    # Paused without a result.
    _preempted: set[int] = field(default_factory=set, init=False)

    def apply(self, record: Record) -> bool:
        """Fold one record in; return False if it was there already."""
        kind, _, number, _, writer, seq, _, version = record
        check_format(version)
        if seq == self._next_seq.get(writer, 0):
            self._next_seq[writer] = seq + 1
        elif not self._is_duplicate(writer, seq):
            return False
        if number is not None and kind in _TRIAL_KINDS:
            trial = self.trials.get(number)
            if trial is None:
                trial = self.trials[number] = TrialState(number)
                self.counts[Status.PROPOSED] += 1
                self.open.add(number)
            leases = len(trial.leases)
            _TRIAL_KINDS[kind](trial, record)
            # Of a lease that was lost, though nobody had read it then.
            late = trial.status in _LATE
            if kind in _MOVING_KINDS or late or len(trial.leases) != leases:
                self._move(trial)
        elif kind in _STUDY_KINDS:
            _STUDY_KINDS[kind](self, record)
        else:
            self.unknown_kinds[kind] = self.unknown_kinds.get(kind, 0) + 1
        return True

    def knows(self, record: Record) -> bool:
        """Whether a record was folded in."""
        writer, seq = record.writer, record.seq
        if seq >= self._next_seq.get(writer, 0):
            return False
        return writer not in self._gaps or not any(first <= seq < after for first, after in self._gaps[writer])

    def _is_duplicate(self, writer: str, seq: int) -> bool:
        """Take note of a number that is not the writer's next; return False if it was there already.

        A number may be left out because its line is damaged, or because a wrong line has jumped ahead. Those that it
        jumped over are no repetitions when they come.
        """
        following = self._next_seq.get(writer, 0)
        gaps = self._gaps.setdefault(writer, []) if seq > following else self._gaps.get(writer, [])
        if seq > following:
            gaps.append((following, seq))
            self._next_seq[writer] = seq + 1
            return True
        for place, (first, after) in enumerate(gaps):
            if first <= seq < after:
                gaps[place : place + 1] = [gap for gap in ((first, seq), (seq + 1, after)) if gap[0] < gap[1]]
                if not gaps:
                    del self._gaps[writer]
                return True
        return False

    def _move(self, trial: TrialState) -> None:
        before, after = trial.status, trial.settled()
        if before is not after:
            self.counts[before] -= 1
            self.counts[after] += 1
            if before in ENDED:
                self.ended_hash ^= _hash(trial.number, before)
                self.open.add(trial.number)
            if after in ENDED:
                self.ended_hash ^= _hash(trial.number, after)
                self.open.discard(trial.number)
            trial.status = after
        if before is Status.PAUSED or after is Status.PAUSED:
            (self._preempted.add if trial.preempted else self._preempted.discard)(trial.number)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What a result is judged by: the objectives, then the constraints."""
        return (*self.objectives, *self.constraints)

    @property
    def limits(self) -> list[float]:
        """The greatest loss of each outcome that a feasible result has; inf where there is no bound."""
        return [outcome.limit for outcome in self.outcomes]

    @property
    def results(self) -> int:
        """How many trials have a result and count towards the budget."""
        counts = self.counts
        return counts[Status.COMPLETE] + counts[Status.STOPPED] + counts[Status.PAUSED] - len(self._preempted)

    def allowed(self, trials: int) -> int:
        """Return how many numbers may be claimed for a budget of `trials` results: failures do not use it up."""
        return trials + self.counts[Status.FAILED] + self.counts[Status.ABANDONED]

    @property
    def device_seconds(self) -> float:
        """Wall seconds times devices, over all trials."""
        return sum(trial.device_seconds for trial in self.trials.values())


def fold(records: Iterable[Record], into: State | None = None) -> State:
    """Return the state after `records`; `into` is a state to continue from, which is used up."""
    state = State() if into is None else into
    for record in records:
        state.apply(record)
    return state


def blocks(ledger: Ledger, cursor: Cursor | None = None) -> Iterator[tuple[list[Record], Cursor]]:
    """Yield the records since `cursor` in blocks, each with the cursor behind it, so that few are held at a time.

    From the first full block on the garbage collector rests: what a replay makes stays, and to go through it again and
    again takes longer than to make it.
    """
    collects = gc.isenabled()
    try:
        while True:
            records, after = ledger.read(cursor, most=_BLOCK)
            if records or after is not cursor:
                yield records, after
            if len(records) < _BLOCK:
                return
            cursor = after
            gc.disable()
    finally:
        if collects:
            gc.enable()


def state_of(ledger: Ledger) -> State:
    """Return the state that all records of a ledger make."""
    state = State()
    for records, _ in blocks(ledger):
        fold(records, into=state)
    return state


def _hash(number: int, status: Status) -> int:
    return int.from_bytes(blake2b(b"%d/%b" % (number, status.encode()), digest_size=8).digest(), "little")


def _created(state: State, record: Record) -> None:
    if state.creator and state.creator <= record.writer:
        # Two made the study at once: the least writer's record counts, whichever is read first.
        return
    body = record.body
    state.creator = record.writer
    state.space = body["space"]
    state.objectives = tuple(Objective.parse(text) for text in body["objectives"])
    state.constraints = tuple(Constraint.parse(text) for text in body.get("constraints", ()))
    state.seed = body["seed"]
    state.created_at = record.at
    state.versions = body.get("versions", {})


def _joined(state: State, record: Record) -> None:
    state.writers[record.writer] = replace(Writer.of(record.body), left=record.writer in state.left)
    state.sessions = max(state.sessions, record.body.get("session", 0))


def _left(state: State, record: Record) -> None:
    for name in (record.writer, *record.body.get("also", ())):
        state.left.add(name)
        if name in state.writers:
            state.writers[name] = replace(state.writers[name], left=True)


def _decided(state: State, record: Record) -> None:
    body = record.body
    if record.trial is not None:
        place = (record.trial, body["epoch"])
        before = state.decisions.get(place)
        if before is None or record.writer < before.writer:
            value, threshold = (None if body[name] is None else float(body[name]) for name in ("value", "threshold"))
            state.decisions[place] = Decision(
                *place, body["rule"], body["verdict"], value, threshold, record.at, record.writer
            )


def _note(state: State, record: Record) -> None:
    name, value = record.body["name"], record.body["value"]
    state.notes[(record.writer, record.seq)] = (record.trial, name, value)
    # One claims the note: a second would be an accident.
    first = not state.referee or record.writer < state.referee
    if name == "reference" and record.trial is None and isinstance(value, dict) and first:
        state.referee, state.reference = record.writer, _metrics(value)


def _lease(trial: TrialState, record: Record) -> Lease:
    number = record.lease or 1
    lease = trial.leases.get(number)
    if lease is None:
        lease = trial.leases[number] = Lease(number)
    return lease


def _metrics(values: dict[str, Any]) -> dict[str, float]:
    return {intern(name): float(value) for name, value in values.items()}


def _proposed(trial: TrialState, record: Record) -> None:
    # It tells of the start, too.
    if record.lease is not None:
        _started(trial, record)
    if trial.key and trial.writer <= record.writer:
        # Two proposals of one number: the least writer's counts, whichever is read first.
        return
    body = record.body
    params = dict(body["params"])
    # JSON knows no tuples, and a space knows no lists.
    if list in map(type, params.values()):
        params = {name: tuple(value) if isinstance(value, list) else value for name, value in params.items()}
    trial.params, trial.key, trial.origin, trial.writer = params, body["key"], body["origin"], record.writer
    found = body.get("exploits")
    trial.exploits = None if found is None else Exploit(found["parent"], found["epoch"], found["replaces"])


def _started(trial: TrialState, record: Record) -> None:
    lease, body = _lease(trial, record), record.body
    if lease.started_at is not None and lease.writer <= record.writer:
        # Two hold one number, one of whom was held dead: the least writer counts, whichever is read first.
        return
    lease.writer, lease.started_at = record.writer, record.at
    lease.slot, lease.devices, lease.resumed_epoch = body["slot"], tuple(body["devices"]), body["resumed_epoch"]


def _promoted(trial: TrialState, record: Record) -> None:
    lease = _lease(trial, record)
    if lease.started_at is None and (not lease.writer or record.writer < lease.writer):
        # It runs from now on, though nobody knows on what.
        lease.writer = record.writer


def _reported(trial: TrialState, record: Record) -> None:
    _, body, _, lease, writer, _, at, _ = record
    lease, epoch, seconds = lease or 1, body["epoch"], body["wall_seconds"]
    before = trial.reports.get(epoch)
    if before is None or lease > before.lease:
        trial.reports[epoch] = _report(
            (epoch, body["step"], _metrics(body["metrics"]), seconds, lease, at, body.get("setup_seconds", 0.0))
        )
        trial.epoch = max(trial.epoch, epoch)
    held = trial.leases.get(lease) or _lease(trial, record)
    # Its `started` may be damaged.
    if not held.writer:
        held.writer = writer
    held.seconds = max(held.seconds, seconds)
    held.epoch = max(held.epoch, epoch)


def _checkpointed(trial: TrialState, record: Record) -> None:
    body, lease = record.body, record.lease or 1
    held = _lease(trial, record)
    # Its `started` may be damaged.
    if not held.writer:
        held.writer = record.writer
    held.step = max(held.step, body.get("step", 0))
    trial.saves_within |= body.get("within_epochs", False)
    before = trial.checkpoints.get(body["epoch"])
    # The same epoch again replaced the file.
    if before is None or lease >= before.lease:
        trial.checkpoints[body["epoch"]] = Checkpoint(body["epoch"], body["path"], body["bytes"], body["digest"], lease)


def _offered(trial: TrialState, record: Record) -> None:
    body, lease = record.body, record.lease or 1
    before = trial.offered.get(body["epoch"])
    if before is None or lease >= before.lease:
        trial.offered[body["epoch"]] = Offer(body["epoch"], body["path"], body["digests"], lease)


def _ended(trial: TrialState, record: Record) -> None:
    kind, body, _, _, writer, seq, at, _ = record
    lease, seconds = _lease(trial, record), body["wall_seconds"]
    failure, reason, values = None, "failed", {}
    if kind == "failed":
        line = body.get("raised")
        raised = None if line is None else RaisedAt(line["error"], line["file"], line["line"], line["source"])
        failure = Failure(body["failure"], body["message"], body["traceback"], raised)
    else:
        reason, values = body["reason"], _metrics(body["values"])
    order = (_RANKS.get(reason, 0), writer, seq)
    if lease.end is None or order < lease.end.order:
        lease.end = _end((kind, reason, values, failure, seconds, at, order))
    lease.seconds = max(lease.seconds, seconds)
    lease.why = max(lease.why, body.get("why", ""))


def _lost(trial: TrialState, record: Record) -> None:
    lease = _lease(trial, record)
    lease.lost, lease.lost_by = True, (record.writer, record.seq)
    lease.blamed = lease.blamed or record.body["blame"]
    # Of two that saw it, whichever was read first.
    lease.why = max(lease.why, record.body["why"])


# As `_make` of both, without its call of a Python function.
_report, _end = partial(tuple.__new__, Report), partial(tuple.__new__, End)
_TRIAL_KINDS: dict[str, Callable[[TrialState, Record], None]] = {
    "proposed": _proposed,
    "started": _started,
    "reported": _reported,
    "checkpointed": _checkpointed,
    "offered": _offered,
    "promoted": _promoted,
    "paused": _ended,
    "finished": _ended,
    "failed": _ended,
    "lost": _lost,
}
# Of ends of one lease; results come first.
_RANKS = {"failed": 1, "cancelled": 2, "rung": 3, "preempted": 4, "resized": 4}
_MOVING_KINDS = frozenset({"started", "paused", "finished", "failed", "lost"})
_LATE = frozenset({Status.LOST, Status.ABANDONED})
"""The statuses that depend on how far a lost lease had come."""
_STUDY_KINDS: dict[str, Callable[[State, Record], None]] = {
    "created": _created,
    "joined": _joined,
    "left": _left,
    "decided": _decided,
    "note": _note,
}

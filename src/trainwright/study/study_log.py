"""The study log: appends records to the ledger, retries on a full disk, folds records into state and projections."""

import gc
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from trainwright.errors import LedgerError, LedgerFull, StudyError, TrainwrightError
from trainwright.ledger import (
    Constraint,
    Ledger,
    MemoryLedger,
    Objective,
    Record,
    State,
    Status,
    TrialState,
    Writer,
    blocks,
    facts,
    open_ledger,
)
from trainwright.ledger.reader import first_pause, pause_after
from trainwright.ledger.trials import Exploit
from trainwright.space import Space
from trainwright.space.configuration import Configuration
from trainwright.study.claims import Claims
from trainwright.study.results import first_reference

__all__ = ["ENQUEUED", "Projection", "RetryOnFullDisk", "StudyLog", "check_study", "gc_frozen", "open_study_ledger"]

_T = TypeVar("_T")

ENQUEUED = "enqueued"
"""The origin of a trial that a person has put in front of all others, and that anybody may take."""

_REFEREE_SECONDS = 5.0  # between looks whether whoever fixes the reference point has died over it
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_ENDED = tuple(status for status in Status if status.ended)


class RetryOnFullDisk:
    """Retries what a full disk refused, for `give_up_seconds` from the first failure to the next success; then no more.

    Whoever waits stands still, and so do the trials that wait for their reports to be taken: nothing that they did is
    lost, and nothing is done in vain. Ctrl-C ends the waiting, and so does `interrupted`.
    """

    def __init__(self, give_up_seconds: float = 0.0, say: Callable[[str], None] = print) -> None:
        self._give_up_seconds = give_up_seconds
        self._say = say
        self.interrupted: Callable[[], bool] = lambda: False
        """Whether the process was told to leave."""
        self._since: float | None = None
        self._pause = _FIRST_PAUSE_SECONDS

    def __call__(self, write: Callable[[], _T]) -> _T:
        """Return what `write` returns; raises `LedgerFull` when the time is up."""
        while True:
            try:
                done = write()
            except LedgerFull as error:
                self.wait(error)
                continue
            self.found_room()
            return done

    def found_room(self) -> None:
        """Take note of a success."""
        if self._since is not None:
            self._since, self._pause = None, _FIRST_PAUSE_SECONDS
            self._say("there is room again: going on")

    def wait(self, error: TrainwrightError) -> None:
        """Wait a while after a failure, longer after each; raise it when the time is up."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if self._give_up_seconds:
                self._say(f"waiting {self._give_up_seconds:g} s for room, then giving up: {error}")
        # Counted from the first failure of the series, not from each.
        left = self._since + self._give_up_seconds - now
        if left <= 0:
            raise error
        until = now + min(self._pause, left)
        try:
            while (rest := until - time.monotonic()) > 0:
                if self.interrupted():
                    raise KeyboardInterrupt
                time.sleep(min(_LOOK_SECONDS, rest))
        except KeyboardInterrupt:
            self._give_up_seconds = 0.0
            raise
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)


class Projection(Protocol):
    """Whoever keeps something beside the state, and is told of each record after it was folded."""

    def fold(self, record: Record, trial: TrialState | None) -> None:
        """Take one record."""

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of records that it is told of."""


class StudyLog:
    """Appends records, folds them and what others appended, and hands each to the projections."""

    def __init__(self, ledger: Ledger, directory: Path | None) -> None:
        self.ledger = ledger
        self.directory = directory
        self.state = State()
        self._projections: list[Projection] = []
        self._cursor: object = None
        self.mine: set[str] = set()  # the writer that this object is, and those it was before a failed write
        self.asked: set[int] = set()  # trials whose configurations `ask` gave to whoever holds this object
        self.retry = RetryOnFullDisk()
        self.claims = Claims(self)
        self._next_read: float | None = None
        self._refereed = False  # whether the reference point is fixed
        self._next_referee = 0.0
        self.refresh()

    def add_projection(self, projection: Projection) -> None:
        """Have a projection see each record of its kinds from now on."""
        self._projections.append(projection)

    @contextmanager
    def running(self, *projections: Projection, retry: RetryOnFullDisk | None = None) -> Iterator[None]:
        """Have projections see the records of one run, with its way to retry; those added meanwhile end with it."""
        before = list(self._projections)
        self._projections += projections
        if retry is not None:
            self.retry = retry
        try:
            yield
        finally:
            self._projections, self.retry = before, RetryOnFullDisk()

    def replay(self, kinds: Collection[str]) -> list[Record]:
        """Return the records of some kinds that are in the state, as they came: by time, each writer's in order.

        Clocks that differ put what several wrote at once into another order, no more. What came since the state was
        brought up to date will pass by the projections.
        """
        if not kinds:
            return []
        # Of each writer: its clock may have been set back.
        latest: dict[str, float] = {}
        found: list[tuple[float, int, Record]] = []
        for records, _ in blocks(self.ledger):
            for record in records:
                writer = record.writer
                if record.kind in kinds and self.state.knows(record):
                    # Within one writer the order of its records is certain, whatever its clock says.
                    latest[writer] = max(record.at, latest.get(writer, 0.0))
                    found.append((latest[writer], record.seq, record))
        return [record for _, _, record in sorted(found, key=lambda entry: (entry[0], entry[2].writer, entry[1]))]

    def append(self, *records: Record) -> None:
        """Make the records durable and fold them."""
        self._fold_records(self.retry(lambda: self._append_joined(records)))
        if not self._refereed and self.state.results:
            self._fix_reference()

    def _fix_reference(self) -> None:
        """Fix the reference point of the hypervolume once its results are there; of many writers one does."""
        self._refereed = len(self.objectives) == 1 or self.state.reference is not None
        now = time.monotonic()
        if self._refereed or now < self._next_referee or (values := first_reference(self.state)) is None:
            return
        self._next_referee = now + _REFEREE_SECONDS
        if self.claims.take("reference"):
            self._refereed = True
            self.append(facts.note("reference", values))

    def claim(self, key: str) -> str:
        """Return the writer that owns `key`: we, unless it was claimed before."""
        return self.retry(lambda: self.ledger.claim(key, self.ledger.writer))

    def join(self) -> None:
        """Say who writes, once for each writer that the ledger makes of us, before its first record or claim."""
        self.retry(self._join)

    def _join(self) -> None:
        if self.ledger.writer not in self.mine:
            (record,) = self.ledger.append([facts.joined(Writer.here(), session=self.state.sessions + 1)])
            self.mine.add(record.writer)
            self._fold_records([record])

    def _append_joined(self, records: Sequence[Record]) -> list[Record]:
        # A failed write makes another writer of us.
        self._join()
        return self.ledger.append(records)

    def refresh(self) -> None:
        """Read and fold what other writers appended."""
        for records, cursor in blocks(self.ledger, self._cursor):
            self._cursor = cursor
            self._fold_records(records)

    def keep_up(self) -> None:
        """Read what other writers appended, if it is time for that."""
        began = time.monotonic()
        if self._next_read is None:
            self._next_read = began + first_pause(self.claims.jitter(), self.claims.here, os.cpu_count() or 1)
        if began >= self._next_read:
            self.refresh()
            self._next_read = now = time.monotonic()
            self.spend(now - began)

    def spend(self, seconds: float) -> None:
        """Count the time of reading, or of learning from what was read: the more, the later is the next read."""
        self._next_read = (self._next_read or time.monotonic()) + self.pause(seconds)

    def pause(self, seconds: float) -> float:
        """Return how long to read nothing after so many seconds of it."""
        return pause_after(seconds, self.claims.here, os.cpu_count() or 1)

    def _fold_records(self, records: Sequence[Record]) -> None:
        # The projections of each kind of record.
        by_kind: dict[str, list[Callable[[Record, TrialState | None], None]]] = {}
        for projection in self._projections:
            for kind in projection.kinds:
                by_kind.setdefault(kind, []).append(projection.fold)
        apply, trials = self.state.apply, self.state.trials
        for record in records:
            if apply(record) and record.kind in by_kind:
                trial = trials.get(record.trial) if record.trial is not None else None
                for fold in by_kind[record.kind]:
                    fold(record, trial)

    def close(self) -> None:
        """Say goodbye and let go of the ledger's files."""
        # Writers that this process was before a failed write have left as well.
        former = sorted(self.mine - {self.ledger.writer})
        if self.ledger.writer in self.mine:
            self._fold_records(self.retry(lambda: self.ledger.append([facts.left(former)])))
        elif former:
            # What failed may work again; if not, our process tells it by its end.
            with suppress(LedgerError):
                self._fold_records(self._append_joined([facts.left(former)]))
        self.mine.clear()
        self.ledger.close()

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The study's objectives."""
        return self.state.objectives

    def space(self) -> Space:
        """Return the space that the study was created with."""
        if self.state.space is None:
            raise StudyError(
                f"no study in {self.directory}: its ledger holds no `created` record, its creation was cut short; make "
                "it again with tw.Study(space, objectives, directory=...)"
            )
        return Space.from_json(self.state.space)

    def proposal(self, number: int, configuration: Configuration, exploits: Exploit | None = None) -> Record:
        """Return the record of a proposal that the caller will append: with how much its searcher has seen."""
        self.claims.proposed(number)
        return self._proposal(number, configuration, exploits)

    def repeat_proposal(self, trial: TrialState) -> Record:
        """Return the proposal of another's trial again: it may be lost with that writer, as others read it unsynced."""
        return self._proposal(trial.number, trial, trial.exploits)

    def _proposal(self, number: int, proposed: Configuration | TrialState, exploits: Exploit | None) -> Record:
        return facts.proposed(
            number,
            params=proposed.params,
            key=proposed.key,
            origin=proposed.origin,
            seen=sum(map(self.state.counts.__getitem__, _ENDED)),
            seen_hash=f"{self.state.ended_hash:016x}",
            exploits=None if exploits is None else exploits._asdict(),
        )

    def offered(self, trial: TrialState) -> bool:
        """Whether a trial was enqueued and nobody has started it."""
        return trial.status is Status.PROPOSED and trial.origin.get("searcher") == ENQUEUED

    def take_orphans(self) -> Iterator[Configuration]:
        """Yield the proposals of dead writers that wait for a result, each now ours and yielded once."""
        waiting = (self.state.trials.get(number) for number in self.asked)
        ours = sum(trial is not None and trial.status is Status.PROPOSED for trial in waiting)
        if self.state.counts[Status.PROPOSED] == ours:
            return
        for number in sorted(self.state.open):
            trial = self.state.trials[number]
            abandoned = trial.status is Status.PROPOSED and trial.key and self.orphaned(trial)
            if abandoned and self.claims.lease(number) and trial.status is Status.PROPOSED:
                # The lease took a while: the trial waits still.
                self.asked.add(number)
                yield Configuration(params=trial.params, key=trial.key, number=number, origin=trial.origin)

    def orphaned(self, trial: TrialState) -> bool:
        """Whether nobody is left who would go on with a trial that nothing in this process works on.

        When its holder is found dead all is read that was written by then, and that may tell otherwise.
        """
        if trial.status is Status.PROPOSED and trial.number in self.asked:
            return False
        if self.offered(trial):
            return True
        holder, status = trial.holder, trial.status
        dead = holder in self.mine or self.claims.is_dead(holder) is True
        dead = dead or (status is Status.RUNNING and self.claims.is_silent(holder))
        return dead and (trial.holder, trial.status) == (holder, status)


_frozen = False


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Freeze the objects that exist now until the end of the outermost such block.

    Replaying other workers' records creates many long-lived objects, and each full collection would scan every
    imported module again. In a large team that took a fifth of each worker's time.
    """
    global _frozen  # noqa: PLW0603 -- the collector is one for the whole process, and to count what is frozen is slow
    if _frozen:
        yield
        return
    gc.freeze()
    _frozen = True
    try:
        yield
    finally:
        _frozen = False
        gc.unfreeze()


_OURS = frozenset({"ledger", "checkpoints", "library", "logs", "report.html", "summary.json", "stages"})


def open_study_ledger(where: str | Path | None, ledger: Ledger | str | None, *, create: bool) -> Ledger:
    """Return the ledger of the study in a directory or at a URL; without a place one in memory.

    With `create` it is made in a new or empty directory; else `StudyError` names what is near.
    """
    if ledger is not None and not isinstance(ledger, str):
        return ledger
    if where is None:
        return MemoryLedger() if ledger is None else open_ledger(ledger, create=True)
    directory = Path(where)
    if create and directory.is_file():
        raise StudyError(f"{directory} is a file; give a directory for the study")
    if create and directory.is_dir() and not (directory / "ledger").is_dir():
        # A study writes many files: never among somebody's own.
        foreign = sorted({path.name for path in directory.iterdir()} - _OURS)
        if foreign:
            raise StudyError(
                f"{directory} is no study and holds other files ({foreign[0]}); give a new or empty directory"
            )
    return open_ledger(where, url=ledger, create=create)


def check_study(
    log: StudyLog, space: Space, objectives: tuple[Objective, ...], constraints: tuple[Constraint, ...], seed: int
) -> None:
    """Refuse a study that was made otherwise, naming the first difference."""
    place = log.directory or "the study"
    before = log.space()
    if before.fingerprint != space.fingerprint:
        differences = before.differences(space)
        what = differences[0] if differences else "another space"
        raise StudyError(f"{place} was made with {what}; use a new directory, or the space it was made with")
    for word, existing, wanted in (
        ("objectives", log.objectives, objectives),
        ("constraints", log.state.constraints, constraints),
    ):
        if existing != wanted:
            had, now = (", ".join(map(str, outcomes)) or "none" for outcomes in (existing, wanted))
            raise StudyError(f"{place} was made with {word} {had}, now {now}; use a new directory")
    if log.state.seed != seed:
        raise StudyError(
            f"{place} was made with seed {log.state.seed}, now {seed}; use a new directory, or seed={log.state.seed}"
        )

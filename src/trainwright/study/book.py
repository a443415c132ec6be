"""The book of one study: its ledger, the state folded from it, and the followers that every record passes by."""

import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from trainwright.errors import StudyError
from trainwright.ledger import Ledger, Liveness, Objective, Record, State, Status, TrialState, Writer, blocks, facts
from trainwright.space import Configuration, Space

__all__ = ["Book", "Follower"]

LEASE_SECONDS = 180.0


class Follower(Protocol):
    """Whoever keeps something beside the state, and is told of each record after it was folded."""

    def follow(self, record: Record, trial: TrialState | None) -> None:
        """Take one record."""


class Book:
    """Appends records, folds them and what others appended, and hands each to the followers."""

    def __init__(self, ledger: Ledger, directory: Path | None) -> None:
        self.ledger = ledger
        self.directory = directory
        self.state = State()
        self.followers: list[Follower] = []
        self._cursor: object = None
        self._mine: set[str] = set()  # the writer that this object is, and those it was before a failed write
        self.asked: set[int] = set()  # trials whose configurations `ask` gave to whoever holds this object
        self._next_number = 0
        self._new: set[int] = set()  # trials that we proposed and nobody has started: their first lease is ours
        self._taken: dict[int, str] = {}  # numbers below that others own, but have not proposed; and who
        self._liveness = Liveness(LEASE_SECONDS)
        self.refresh()

    def replay(self, kinds: Collection[str]) -> list[Record]:
        """Return all records of some kinds, session after session, each writer's in order: as they were first seen."""
        sessions: dict[str, int] = {}
        found: list[Record] = []
        for records, _ in blocks(self.ledger):
            sessions |= {r.writer: r.body.get("session", 0) for r in records if r.kind == "joined"}
            found += [record for record in records if record.kind in kinds]
        return sorted(found, key=lambda r: (sessions.get(r.writer, 0), r.writer, r.seq))

    def append(self, *records: Record) -> None:
        """Make the records durable and fold them."""
        self.join()
        self._fold(self.ledger.append(records))

    def join(self) -> None:
        """Say who writes, once for each writer that the ledger makes of us, before its first record or claim."""
        if self.ledger.writer not in self._mine:
            (record,) = self.ledger.append([facts.joined(Writer.here(), session=self.state.sessions + 1)])
            self._mine.add(record.writer)
            self._fold([record])

    def refresh(self) -> None:
        """Read and fold what other writers appended."""
        for records, cursor in blocks(self.ledger, self._cursor):
            self._cursor = cursor
            self._fold(records)

    def _fold(self, records: Sequence[Record]) -> None:
        for record in records:
            if self.state.apply(record):
                trial = self.state.trials.get(record.trial) if record.trial is not None else None
                for follower in self.followers:
                    follower.follow(record, trial)

    def close(self) -> None:
        """Say goodbye and let go of the ledger's files."""
        if self.ledger.writer in self._mine:
            self._fold(self.ledger.append([facts.left()]))
        self._mine.clear()
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

    def create(self, space: Space, objectives: Sequence[Objective], seed: int, versions: dict[str, str]) -> None:
        """Write the record that makes this a study."""
        texts = [str(objective) for objective in objectives]
        self.append(facts.created(space=space.to_json(), objectives=texts, seed=seed, versions=versions))

    def claim_number(self, limit: int | None = None) -> int | None:
        """Return the least free trial number, now ours, or None if `limit` numbers are taken."""
        self._taken = {n: owner for n, owner in self._taken.items() if n not in self.state.trials}
        for number in itertools.chain(self._taken.copy(), itertools.count(self._next_number)):
            if limit is not None and number >= limit:
                return None
            self._next_number = max(self._next_number, number + 1)
            if number not in self.state.trials:
                turn, owner = self._take_over(f"number/{number}")
                if turn is not None:
                    self._taken.pop(number, None)
                    return number
                self._taken[number] = owner
        return None

    def release(self, numbers: Sequence[int]) -> None:
        """Let claimed numbers for which there was no proposal be claimed again."""
        self._taken = dict(sorted({**self._taken, **dict.fromkeys(numbers, self.ledger.writer)}.items()))

    def claim_lease(self, number: int) -> int | None:
        """Return the next lease of a trial, now ours, or None if somebody alive has it.

        The first lease goes with the number: whoever claimed that and made the proposal need not claim again.
        """
        if number in self._new:
            self._new.remove(number)
            return 1
        trial = self.state.trials.get(number)
        lease = max(1, trial.lease if trial is not None else 1) + 1
        return self._take_over(f"lease/{number}", lease)[0]

    def _take_over(self, key: str, turn: int = 0) -> tuple[int | None, str]:
        """Claim `key` at `turn`, or at the turn after each dead owner: one who died before it wrote what it did.

        Returns the turn, or None if somebody else has it, and the owner.
        """
        self.join()
        while (owner := self.ledger.claim(f"{key}/{turn}", self.ledger.writer)) not in self._mine:
            if not self.holder_is_dead(owner):
                return None, owner
            turn += 1
        return turn, owner

    def undecided(self, limit: int | None) -> bool:
        """Whether it is not known yet if some holder, on another host, of a trial or number below `limit` lives."""
        held = (Status.PROPOSED, Status.RUNNING)
        holders = {trial.holder for trial in self.state.trials.values() if trial.status in held}
        holders |= {owner for number, owner in self._taken.items() if limit is None or number < limit}
        return any(self.holder_is_dead(holder) is None for holder in holders)

    def propose(self, number: int, configuration: Configuration) -> None:
        """Write a proposal, with how much its searcher had seen."""
        seen = sum(self.state.counts[status] for status in Status if status.ended)
        self.append(
            facts.proposed(
                number,
                params=configuration.params,
                key=configuration.key,
                origin=configuration.origin,
                seen=seen,
                seen_hash=f"{self.state.ended_hash:016x}",
            )
        )
        self._new.add(number)

    def orphaned(self, trial: TrialState) -> bool:
        """Whether nobody is left who would go on with a trial that nothing in this process works on."""
        if trial.status is Status.PROPOSED and trial.number in self.asked:
            return False
        return trial.holder in self._mine or self.holder_is_dead(trial.holder) is True

    def holder_is_dead(self, writer: str) -> bool | None:
        """Return whether a writer is known to be gone (we never are); None while that cannot be known yet."""
        if writer in self._mine:
            return False
        beats = self.ledger.beats([writer])[writer]
        return self._liveness.dead(writer, self.state.writers.get(writer), beats)

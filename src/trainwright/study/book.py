"""The book of one study: its ledger, the state folded from it, and the followers that every record passes by."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from trainwright.errors import StudyError
from trainwright.ledger import Ledger, Liveness, Objective, Record, State, Status, TrialState, Writer, facts
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
        self._joined = False
        self._next_number = 0
        self._liveness = Liveness(LEASE_SECONDS)
        self._fold(self.replay())

    def replay(self) -> list[Record]:
        """Return all records as the live study saw them: session after session, each writer's in their order."""
        records, self._cursor = self.ledger.read(None)
        sessions = {r.writer: (r.body.get("session", 0), r.writer) for r in records if r.kind == "joined"}
        records.sort(key=lambda r: (*sessions.get(r.writer, (0, r.writer)), r.seq))
        return records

    def append(self, *records: Record) -> None:
        """Make the records durable and fold them."""
        self.join()
        self._fold(self.ledger.append(records))

    def join(self) -> None:
        """Say who writes, once, before the first record or claim."""
        if not self._joined:
            self._joined = True
            self._fold(self.ledger.append([facts.joined(Writer.here(), session=self.state.sessions + 1)]))

    def refresh(self) -> None:
        """Read and fold what other writers appended."""
        records, self._cursor = self.ledger.read(self._cursor)
        self._fold(records)

    def _fold(self, records: Sequence[Record]) -> None:
        for record in records:
            if self.state.apply(record):
                trial = self.state.trials.get(record.trial) if record.trial is not None else None
                for follower in self.followers:
                    follower.follow(record, trial)

    def close(self) -> None:
        """Say goodbye and let go of the ledger's files."""
        if self._joined:
            self.append(facts.left())
        self.ledger.close()
        self._joined = False

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The study's objectives."""
        return self.state.objectives

    def space(self) -> Space:
        """Return the space that the study was created with."""
        if self.state.space is None:
            raise StudyError(f"{self.directory}: the ledger holds no `created` record; it is no complete study")
        return Space.from_json(self.state.space)

    def create(self, space: Space, objectives: Sequence[Objective], seed: int, versions: dict[str, str]) -> None:
        """Write the record that makes this a study."""
        texts = [str(objective) for objective in objectives]
        self.append(facts.created(space=space.to_json(), objectives=texts, seed=seed, versions=versions))

    def claim_number(self, limit: int | None = None) -> int | None:
        """Return the least free trial number, now ours, or None if `limit` numbers are taken."""
        number = self._next_number
        while limit is None or number < limit:
            if number not in self.state.trials and self._take_over(f"number/{number}") is not None:
                self._next_number = number + 1
                return number
            number += 1
        return None

    def claim_lease(self, number: int) -> int | None:
        """Return the next lease of a trial, now ours, or None if somebody alive has it."""
        trial = self.state.trials.get(number)
        lease = (trial.lease if trial is not None else 0) + 1
        return self._take_over(f"lease/{number}", lease)

    def _take_over(self, key: str, turn: int = 0) -> int | None:
        """Claim `key` at `turn`, or at the turn after each dead owner: one who died before it wrote what it did."""
        self.join()
        while (owner := self.ledger.claim(f"{key}/{turn}", self.ledger.writer)) != self.ledger.writer:
            if not self.holder_is_dead(owner):
                return None
            turn += 1
        return turn

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

    def holder_is_dead(self, writer: str) -> bool:
        """Return whether the writer that holds a trial is known to be gone. Our own are never."""
        if writer == self.ledger.writer:
            return False
        beats = self.ledger.beats([writer])[writer]
        return self._liveness.dead(writer, self.state.writers.get(writer), beats)

"""Claims trials: atomic claims on trial numbers, leases and worker slots of one study, and whether their holders live.

Nothing here is locked. A claim is won once and for ever, so what a dead holder had is claimed at the next turn of the
same key. Clocks of different hosts are never compared (see `Liveness`).
"""

import itertools
import math
import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainwright.ledger import Record, Status, facts
from trainwright.ledger.writers import Liveness
from trainwright.randomness import rng

if TYPE_CHECKING:
    from trainwright.study.study_log import StudyLog

__all__ = ["Claims"]

_LOOKS = 12  # at the beats of one writer within the time of a lease, once it is known to live
_SOON_SECONDS = 2.0  # between looks before that
_GLANCE_SECONDS = 0.1  # between looks at a process of this host
_NEIGHBOURS = 2  # live writers that each writer watches
_MANY = 64  # workers without ranks do not all try the first slots then
_STRANGERS = 64  # of whom nothing is known yet: so many are looked at beside those


class Claims:
    """What this process has claimed in a study, and what it knows of the other claimers."""

    def __init__(self, log: "StudyLog") -> None:
        self._log = log
        self._ledger = log.ledger
        self._state = log.state
        self.slot = 0  # where the draws of numbers start from
        self._draws = 0
        self._new: set[int] = set()  # trials that we proposed and nobody has started: their first lease is ours
        self._next_number = 0  # all below are taken
        self._held: set[int] = set()  # numbers that we have claimed, but not proposed
        self._taken: dict[int, str] = {}  # numbers that others have claimed, but not proposed; and who
        self._rivals: dict[int, tuple[int, str]] = {}  # who was quicker to claim a trial, and which lease
        self._dead: set[str] = set()
        self._silent: set[str] = set()  # those of them of whom only their silence tells it: they may come back
        self._told: set[str] = set()  # those of the dead that `find_newly_dead` has told
        self._liveness = Liveness(log.ledger.lease_seconds)
        self._looked: dict[str, tuple[float, bool | None]] = {}  # when at a writer's beats, and what they told
        self._heard: dict[str, tuple[float, bool]] = {}  # likewise, of processes that live

    def number(self, limit: int | None = None, *, team: bool = False) -> int | None:
        """Return a free trial number, now ours, or None if `limit` numbers are taken.

        The first of the free ones; or in a `team` the first that goes with our slot, as the numbers are dealt out to
        the slots in turn: so claimers seldom want the same, however late they hear of each other. Those that are left
        in the end go to whoever comes.
        """
        # What has been proposed since is a trial of the state; only its number's claim was known before.
        self._taken = {n: owner for n, owner in self._taken.items() if n not in self._state.trials}
        for number, owner in sorted(self._taken.items()):
            # A number whose claimer died before its proposal would be missing from the study for ever.
            left_over = owner in self._log.mine or self.is_dead(owner)
            if left_over and (limit is None or number < limit) and self._win_number(number):
                return number
        if not team:
            return next((number for number in self._free_numbers(limit) if self._win_number(number)), None)
        # A power of two: a team that grows deals out otherwise only seldom.
        turns = 1 << self.others.bit_length()
        ours = next((n for n in self._free_numbers(limit, self.slot % turns, turns) if self._win_number(n)), None)
        if ours is not None:
            return ours
        self._log.refresh()
        while free := list(itertools.islice(self._free_numbers(limit), 2 * turns)):
            while free:
                # Drawn at random, lest all that come late try the same number first.
                number = free.pop(int(self.jitter() * len(free)))
                if self._win_number(number):
                    return number
        return None

    def jitter(self) -> float:
        """Return a draw from [0, 1), the workers' own, by which they do not do the same at once."""
        self._draws += 1
        return float(rng(self._state.seed, "jitter", self.slot, self._draws).random())

    def _free_numbers(self, limit: int | None, first: int = 0, step: int = 1) -> Iterator[int]:
        """Yield the numbers first, first + step, ... that are free as far as is known."""
        while not self._is_free(self._next_number):
            self._next_number += 1
        for number in itertools.count(first + -(-max(0, self._next_number - first) // step) * step, step):
            if limit is not None and number >= limit:
                return
            if self._is_free(number):
                yield number

    def _is_free(self, number: int) -> bool:
        return number not in self._state.trials and number not in self._taken and number not in self._held

    def _win_number(self, number: int) -> bool:
        turn, owner = self._take_over(f"number/{number}")
        if turn is not None and owner != self._ledger.writer:
            # We had it before a failed write, and perhaps that was written.
            self._log.refresh()
        if number in self._state.trials:
            # Its owner, dead by now, had proposed it, which we had not read yet.
            return False
        if turn is None:
            self._taken[number] = owner
        else:
            self._taken.pop(number, None)
            self._held.add(number)
        return turn is not None

    def release(self, numbers: Sequence[int]) -> None:
        """Let claimed numbers for which there was no proposal be claimed again, by us or by whoever comes after us."""
        self._held.difference_update(numbers)
        self._taken |= dict.fromkeys(numbers, self._ledger.writer)

    def proposed(self, number: int) -> None:
        """Note that we have proposed a trial."""
        self._held.discard(number)
        self._new.add(number)

    def offer(self, number: int) -> None:
        """Let anybody start a trial that we have proposed: its first lease is no longer ours by that alone."""
        self._new.discard(number)

    def lease(self, number: int) -> int | None:
        """Return the next lease of a trial, now ours, or None if somebody alive has it.

        The first lease goes with the number: whoever claimed that and made the proposal need not claim again.
        """
        if number in self._new:
            self._new.remove(number)
            return 1
        trial = self._state.trials.get(number)
        # Each lease is claimed once, so two drivers can never run the same one.
        lease = max(1, trial.lease if trial is not None else 1) + 1
        turn, owner = self._take_over(f"lease/{number}", lease)
        if turn is None:
            self._rivals[number] = lease, owner
        else:
            self._rivals.pop(number, None)
        return turn

    def settle(self, end: Record) -> Record:
        """Return the record of the end of a run of ours: of a failure, only if nobody else runs the trial again.

        For a failure frees a number for another trial. The next lease is claimed, so that nobody else can take it; the
        heartbeat comes first: whoever holds this process dead and then meets its claim finds that it lives.
        """
        trial = self._state.trials.get(end.trial) if end.trial is not None else None
        if end.kind != "failed" or trial is None or trial.lease != end.lease or trial.status.ended:
            return end
        self._ledger.heartbeat()
        if self._take_over(f"lease/{trial.number}", trial.lease + 1)[0] is not None:
            return end
        return facts.lost(trial.number, trial.lease, why="it was taken over by another worker", blame=False)

    def claim_slot(self, hint: int | None) -> int:
        """Return a worker slot, now ours: that of `hint`, or else the first free one from about where they are free."""
        first = hint if hint is not None else self.others if self.others > _MANY else 0
        self.slot = next(slot for slot in itertools.count(first) if self._take_over(f"slot/{slot}")[0] is not None)
        return self.slot

    def _take_over(self, key: str, turn: int = 0) -> tuple[int | None, str]:
        """Claim `key` at `turn`, or at the turn after each dead owner: one who died before it wrote what it did.

        Returns the turn, or None if somebody else has it, and the owner.
        """
        self._log.join()
        # Claims are never given back: the turn after a dead owner's is another key.
        while (owner := self._log.claim(f"{key}/{turn}")) not in self._log.mine:
            if not self.is_dead(owner) or not self.is_dead(owner, afresh=True):
                return None, owner
            turn += 1
        return turn, owner

    # Who lives.

    @property
    def others(self) -> int:
        """About how many other writers are at work."""
        gone = self._dead.union(self._log.mine)
        return sum(not writer.left and name not in gone for name, writer in self._state.writers.items())

    @property
    def here(self) -> int:
        """About how many writers are at work on this host, we among them."""
        writers = self._state.writers.items()
        return sum(not writer.left and name not in self._dead and writer.is_here for name, writer in writers)

    def is_dead(self, writer: str, *, afresh: bool = False) -> bool | None:
        """Return whether a writer is known to be gone (we never are); None while that cannot be known yet.

        Of one that is only silent this is what the last look told, unless it is to be looked at `afresh`.
        """
        if writer in self._log.mine:
            return False
        if writer in self._dead and writer not in self._silent:
            return True
        known = self._state.writers.get(writer)
        now = time.monotonic()
        looked, verdict = self._looked.get(writer, (-math.inf, None))
        if now - looked < _GLANCE_SECONDS and not afresh and not (known is not None and known.left):
            return verdict
        # A process of this host can be looked at, which is faster than waiting for its silence.
        gone = known.gone() if known is not None else None
        if gone is not None:
            verdict = gone
            self._looked[writer] = now, verdict
        else:
            pause = self._ledger.lease_seconds / _LOOKS
            if afresh or now - looked >= (pause if verdict is not None else min(pause, _SOON_SECONDS)):
                verdict = self._liveness.is_dead(writer, known, self._ledger.heartbeats([writer])[writer])
                self._looked[writer] = now, verdict
        if verdict is False and writer in self._silent:
            # It was cut off, or stood still, and goes on.
            for names in (self._dead, self._told, self._silent):
                names.discard(writer)
        if verdict and known is not None and writer not in self._dead:
            self._dead.add(writer)
            if gone is None:
                self._silent.add(writer)
            if not known.left:
                # It may have written more before it died than we have read.
                self._log.refresh()
        return verdict

    def is_silent(self, writer: str) -> bool:
        """Whether a holder of running trials has not beaten for the time of a lease, though its process may live.

        Whoever runs trials beats: so it has ended by an error and could not write that, or it was stopped.
        """
        if writer in self._log.mine:
            return False
        now = time.monotonic()
        looked, verdict = self._heard.get(writer, (-math.inf, False))
        if now - looked >= self._ledger.lease_seconds / _LOOKS:
            verdict = self._liveness.is_silent(writer, self._ledger.heartbeats([writer])[writer]) is True
            self._heard[writer] = now, verdict
            if verdict:
                self._log.refresh()
        return verdict

    def take(self, key: str) -> bool:
        """Claim what one writer does for all; whether it is ours, as it is after the death of whoever had it."""
        return self._take_over(key)[0] is not None

    def find_newly_dead(self) -> set[str]:
        """Return writers found dead since the last call.

        Watching is a ring: each looks at those after it, in the order of their names, up to the second live one. So
        every death is seen by somebody, at a cost that does not grow with the number of writers.
        """
        names = sorted(self._state.writers.keys() - self._dead - set(self._log.mine))
        start = bisect(names, self._ledger.writer)
        live = strangers = 0
        for name in names[start:] + names[:start]:
            verdict = self.is_dead(name)
            # Two live neighbours suffice: each of them watches those after it in turn.
            live += verdict is False
            strangers += verdict is None
            if live == _NEIGHBOURS or strangers == _STRANGERS:
                break
        new = self._dead - self._told
        self._told |= new
        return new

    def undecided(self, limit: int | None) -> bool:
        """Whether it is not known yet if some holder, on another host, of a trial or number below `limit` lives.

        Or if it is known, but was not told yet: so somebody has to take over what it left.
        """
        held = (Status.PROPOSED, Status.RUNNING)
        trials = map(self._state.trials.__getitem__, self._state.open)
        # Whoever holds what may yet be missing decides whether the study is over.
        holders = {trial.holder for trial in trials if trial.status in held or trial.resizing}
        holders |= self.waited_for(limit)
        holders |= {owner for n, (lease, owner) in self._rivals.items() if self._state.trials[n].lease < lease}
        return any(self.is_dead(holder) is None for holder in holders) or not self._dead <= self._told

    def waited_for(self, limit: int | None) -> set[str]:
        """Return who has claimed numbers below `limit`, but not proposed."""
        trials = self._state.trials
        return {o for n, o in self._taken.items() if n not in trials and (limit is None or n < limit)}

"""ASHA: asynchronous successive halving (Li et al., arXiv 1810.05934), in the form that stops trials at rungs."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from trainwright.errors import ScheduleError
from trainwright.schedule._halves import Entry, Halves
from trainwright.schedule._rule import (
    CONTINUE,
    Continue,
    Event,
    Reason,
    Reported,
    Rule,
    Stop,
    TrialView,
    Verdict,
    View,
    check_epochs,
)
from trainwright.schedule.ladder import as_fraction, ladder

__all__ = ["ASHA"]


@dataclass(slots=True)
class _Judged:
    """The highest rung that a trial reached, by its report of which epoch, and the verdict there."""

    rung: int = 0
    epoch: int = 0
    verdict: Verdict = CONTINUE


@dataclass(slots=True)
class _Index:
    rungs: dict[int, Halves]
    judged: dict[int, _Judged] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ASHA(Rule):
    """At each rung go on only with the best 1/eta of the trials that have reached it so far. O(log n) per report.

    Rungs are ceil(min_epochs * eta^k) < `max_epochs`, in epochs. A report reaches every rung up to its epoch that the
    trial has not reached yet; all are recorded with its loss and the highest is judged. `cutoff="rank"` goes on iff the
    trial's rank is at most max(1, floor(n/eta)), itself counted in n; "quantile" iff its loss is at most the linearly
    interpolated 1/eta quantile of those recorded before it (the first always goes on).
    """

    max_epochs: int
    min_epochs: int = 1
    eta: float | Fraction = 3
    cutoff: Literal["rank", "quantile"] = "rank"

    def __post_init__(self) -> None:
        check_epochs("ASHA", [("max_epochs", self.max_epochs), ("min_epochs", self.min_epochs)])
        as_fraction(self.eta, "ASHA")
        if self.min_epochs > self.max_epochs:
            raise ScheduleError(
                f"ASHA.min_epochs: got {self.min_epochs}, above max_epochs {self.max_epochs}; allowed: 1 to max_epochs"
            )
        if self.cutoff not in {"rank", "quantile"}:
            raise ScheduleError(f"ASHA.cutoff: got {self.cutoff!r}; allowed: 'rank', 'quantile'")

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are compared."""
        return ladder(self.min_epochs, self.max_epochs, as_fraction(self.eta, "ASHA"))

    def empty(self) -> _Index:
        """Return empty rungs."""
        return _Index({rung: Halves() for rung in self.rungs})

    def fold(self, index: _Index, event: Event) -> _Index:
        """Record the report at every rung newly reached, and the verdict at the highest."""
        if not isinstance(event, Reported):
            return index
        judged = index.judged.setdefault(event.trial, _Judged())
        for rung, halves in index.rungs.items():
            if judged.rung < rung <= event.epoch:
                judged.verdict = self._judge(halves, rung, Entry(event.losses[0], event.trial))
                judged.rung, judged.epoch = rung, event.epoch
        return index

    def _judge(self, halves: Halves, rung: int, entry: Entry) -> Verdict:
        eta = as_fraction(self.eta, "ASHA")
        if self.cutoff == "rank":
            halves.push(entry)
            halves.cut(max(1, len(halves) * eta.denominator // eta.numerator))
            last = halves.greatest_kept()
            goes_on, threshold = entry <= last, last.loss
        else:
            before = len(halves)
            threshold = halves.quantile(float((before - 1) / eta)) if before else entry.loss
            goes_on = entry.loss <= threshold
            halves.push(entry)
        reason = Reason(rule="ASHA", epoch=rung, value=entry.loss, threshold=threshold)
        return Continue(reason) if goes_on else Stop(reason)

    def on_report(self, index: _Index, view: View, trial: TrialView) -> Verdict:  # noqa: ARG002 -- the protocol's
        """Return the verdict of the rung that this report reached; between rungs the trial goes on."""
        judged = index.judged.get(trial.number, _Judged())
        news = judged.epoch == trial.epoch or isinstance(judged.verdict, Stop)
        return judged.verdict if news else CONTINUE

    def next_epoch(self, index: _Index, trial: TrialView) -> int:
        """Return the next rung."""
        return next((rung for rung in index.rungs if rung > trial.epoch), self.max_epochs)

    def survival(self, index: _Index, view: View, trial: TrialView) -> tuple[float, ...]:  # noqa: ARG002 -- likewise
        """Return eta^-k for the k-th later rung."""
        later = sum(rung > trial.epoch for rung in index.rungs)
        return tuple(float(as_fraction(self.eta, "ASHA")) ** -k for k in range(1, later + 1))

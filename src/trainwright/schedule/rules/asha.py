"""ASHA: asynchronous successive halving (Li et al., arXiv 1810.05934), which stops trials at rungs or pauses them."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.rung_rule import RungRule
from trainwright.schedule.rungs.ladder import check_ladder
from trainwright.schedule.rungs.rungs import QuantileRung, RankRung, Rungs, RungTable

__all__ = ["ASHA", "check_kind"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ASHA(RungRule):
    """At each rung go on only with the best 1/eta of the trials that have reached it so far. O(log n) per event.

    Rungs are ceil(min_epochs * eta^k) < `max_epochs`, in epochs. A report reaches every rung up to its epoch that the
    trial has not reached yet; all are recorded with its loss and the highest is judged.

    `kind="stopping"`: with `cutoff="rank"` a trial goes on iff its rank is at most max(1, floor(n/eta)), itself counted
    in n; with "quantile" iff its loss is at most the linearly interpolated 1/eta quantile of those recorded before it
    (the first always goes on). The others stop; nobody pauses.

    `kind="promotion"`: a trial goes on iff its rank is at most floor(n/eta); the others pause. Free devices go to the
    best paused trial that has come to be among the best floor(n/eta), from the highest rung down, else to a new trial.
    """

    max_epochs: int
    min_epochs: int = 1
    eta: float | Fraction = 3
    kind: Literal["stopping", "promotion"] = "stopping"
    cutoff: Literal["rank", "quantile"] = "rank"

    def __post_init__(self) -> None:
        check_ladder("ASHA", self.min_epochs, self.max_epochs, self.eta)
        check_kind("ASHA", self.kind)
        if self.cutoff not in {"rank", "quantile"}:
            raise ScheduleError(f"ASHA.cutoff: got {self.cutoff!r}; allowed: 'rank', 'quantile'")
        if self.cutoff == "quantile" and self.kind == "promotion":
            raise ScheduleError(
                "ASHA.cutoff: got 'quantile' with kind='promotion'; allowed: 'rank', or kind='stopping'"
            )

    @property
    def promotes(self) -> bool:
        """Of kind "promotion" it pauses."""
        return self.kind == "promotion"

    def empty(self) -> Rungs:
        """Return empty rungs."""
        eta, pausing = self._factor, self.kind == "promotion"
        tables: dict[int, RungTable] = {
            rung: QuantileRung(eta) if self.cutoff == "quantile" else RankRung(eta, least=0 if pausing else 1)
            for rung in self.rungs
        }
        return Rungs("ASHA", tables, self.max_epochs, pausing)


def check_kind(rule: str, kind: str) -> None:
    """Refuse anything but the two kinds."""
    if kind not in {"stopping", "promotion"}:
        raise ScheduleError(f"{rule}.kind: got {kind!r}; allowed: 'stopping', 'promotion'")

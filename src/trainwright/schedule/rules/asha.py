"""ASHA: asynchronous successive halving (Li et al., arXiv 1810.05934), which stops trials at rungs or pauses them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.rung_rule import AsynchronousRule
from trainwright.schedule.rungs.rungs import QuantileRung, RankRung, Rungs, RungTable
from trainwright.validators import one_of

__all__ = ["ASHA"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ASHA(AsynchronousRule):
    """At each rung go on only with the best 1/eta of the trials that have reached it so far. O(log n) per event.

    Rungs are ceil(min_epochs * eta^k) < `max_epochs`, in epochs. A report reaches every rung up to its epoch that the
    trial has not reached yet; all are recorded with its loss and the highest is judged.

    `kind="stopping"`: with `cutoff="rank"` a trial goes on iff its rank is at most max(1, floor(n/eta)), itself counted
    in n; with "quantile" iff its loss is at most the linearly interpolated 1/eta quantile of those recorded before it
    (the first always goes on). The others stop; nobody pauses.

    `kind="promotion"`: a trial goes on iff its rank is at most floor(n/eta); the others pause. Free devices go to the
    best paused trial that has come to be among the best floor(n/eta), from the highest rung down, else to a new trial.
    """

    cutoff: Annotated[Literal["rank", "quantile"], one_of("rank", "quantile")] = "rank"

    def check_together(self) -> None:
        """Refuse a ladder without a first rung, and a quantile by which trials would be paused."""
        AsynchronousRule.check_together(self)
        if self.cutoff == "quantile" and self.kind == "promotion":
            raise ScheduleError(
                "ASHA.cutoff: got 'quantile' with kind='promotion'; allowed: 'rank', or kind='stopping'"
            )

    def empty(self) -> Rungs:
        """Return empty rungs."""
        eta, pausing = self._factor, self.promotes
        tables: dict[int, RungTable] = {
            rung: QuantileRung(eta) if self.cutoff == "quantile" else RankRung(eta, least=0 if pausing else 1)
            for rung in self.rungs
        }
        return Rungs("ASHA", tables, self.max_epochs, pausing)

"""FixedEpochs: every trial runs its whole length; with random search, plain random search."""

from dataclasses import dataclass
from typing import Annotated

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.promotion_rule import (
    CONTINUE,
    BaseRule,
    Event,
    Index,
    RuleView,
    TrialView,
    Verdict,
)
from trainwright.settings import Settings
from trainwright.validators import integer, optional

__all__ = ["FixedEpochs"]


@dataclass(frozen=True, slots=True)
class FixedEpochs(BaseRule, Settings, error=ScheduleError):
    """Run every trial for `max_epochs` epochs, or as long as the training function likes if None. O(1) per report."""

    max_epochs: Annotated[int | None, optional(integer(minimum=1, of="epochs"))] = None

    def check(self, objectives: int, trials: int | None = None) -> None:
        """Any number will do: nothing is compared."""

    def empty(self) -> Index:
        """Nothing to remember."""
        return None

    def fold(self, index: Index, event: Event) -> Index:  # noqa: ARG002 -- the protocol's arguments
        """Nothing to remember."""
        return index

    def on_report(self, index: Index, view: RuleView, trial: TrialView) -> Verdict:  # noqa: ARG002 -- likewise
        """Go on."""
        return CONTINUE

    def next_epoch(self, index: Index, trial: TrialView) -> int:  # noqa: ARG002 -- likewise
        """Return the last epoch: no verdict changes before."""
        return self.max_epochs or trial.epoch + 1

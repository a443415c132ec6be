"""SuccessiveHalving: of a bracket the best 1/eta go on, rung by rung (Jamieson and Talwalkar, AISTATS 2016)."""

from dataclasses import dataclass
from fractions import Fraction

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.rung_rule import RungRule
from trainwright.schedule.rungs.brackets import Brackets
from trainwright.schedule.rungs.ladder import check_ladder

__all__ = ["SuccessiveHalving", "check_straggler"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SuccessiveHalving(RungRule):
    """Brackets of `n` trials, by number. Each pauses at its rung until all have come or failed for good.

    Then the best floor(members/eta), at least one, go on. A bracket that the budget does not fill closes with those
    that it has. With `straggler_seconds` a rung in which so long nothing happened closes without those that are
    missing; they stop at their next report. O(log n) per event and O(n log n) where a rung closes.
    """

    n: int
    max_epochs: int
    min_epochs: int = 1
    eta: float | Fraction = 3
    straggler_seconds: float | None = None

    def __post_init__(self) -> None:
        check_ladder("SuccessiveHalving", self.min_epochs, self.max_epochs, self.eta)
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise ScheduleError(f"SuccessiveHalving.n: got {self.n!r}; allowed: a whole number of trials >= 1")
        check_straggler("SuccessiveHalving", self.straggler_seconds)

    @property
    def promotes(self) -> bool:
        """Trials pause at each rung."""
        return True

    def empty(self) -> Brackets:
        """Return an index without trials."""
        return Brackets(
            "SuccessiveHalving", (self.rungs,), (self.n,), self._factor, self.max_epochs, self.straggler_seconds
        )


def check_straggler(rule: str, seconds: float | None) -> None:
    """Refuse anything but None and numbers > 0."""
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
        raise ScheduleError(
            f"{rule}.straggler_seconds: got {seconds!r}; allowed: a number > 0, or None to wait for all"
        )

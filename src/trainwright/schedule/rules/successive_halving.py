"""SuccessiveHalving: of a bracket the best 1/eta go on, rung by rung (Jamieson and Talwalkar, AISTATS 2016)."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from trainwright.schedule.rules.rung_rule import RungRule
from trainwright.schedule.rungs.brackets import Brackets
from trainwright.schedule.rungs.ladder import eta_factor
from trainwright.validators import integer, number, optional

__all__ = ["SuccessiveHalving"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SuccessiveHalving(RungRule):
    """Brackets of `n` trials, by number. Each pauses at its rung until all have come or failed for good.

    Then the best floor(members/eta), at least one, go on. A bracket that the budget does not fill closes with those
    that it has. With `straggler_seconds` a rung in which so long nothing happened closes without those that are
    missing; they stop at their next report. O(log n) per event and O(n log n) where a rung closes.
    """

    n: Annotated[int, integer(minimum=1, of="trials")]
    max_epochs: Annotated[int, integer(minimum=1, of="epochs")]
    min_epochs: Annotated[int, integer(minimum=1, of="epochs")] = 1
    eta: Annotated[float | Fraction, eta_factor()] = 3
    straggler_seconds: Annotated[float | None, optional(number(above=0), words="None to wait for all")] = None

    @property
    def promotes(self) -> bool:
        """Trials pause at each rung."""
        return True

    def empty(self) -> Brackets:
        """Return an index without trials."""
        return Brackets(
            "SuccessiveHalving", (self.rungs,), (self.n,), self._factor, self.max_epochs, self.straggler_seconds
        )

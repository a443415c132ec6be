"""The rung ladder: at which epochs trials are compared, in exact integers."""

import math
from fractions import Fraction

from trainwright.errors import ScheduleError
from trainwright.schedule.rules.promotion_rule import check_epochs

__all__ = ["as_fraction", "check_ladder", "ladder"]


def as_fraction(eta: float | Fraction, rule: str) -> Fraction:
    """Return the reduction factor as an exact fraction > 1 (2.5 is 5/2)."""
    try:
        exact = Fraction(eta).limit_denominator(1000)
    except (TypeError, ValueError, OverflowError):
        raise ScheduleError(f"{rule}.eta: got {eta!r}; allowed: a number > 1, usually 2, 3 or 4") from None
    if exact <= 1:
        raise ScheduleError(f"{rule}.eta: got {eta!r}; allowed: a number > 1, usually 2, 3 or 4")
    return exact


def ladder(min_epochs: int, max_epochs: int, eta: Fraction) -> tuple[int, ...]:
    """Return the rungs ceil(min_epochs * eta^k) below `max_epochs`, strictly increasing.

    Never by logarithms: floor(log(243/3)/log(3)) is 3 in floating point, one rung short.
    """
    rungs: list[int] = []
    exact = Fraction(min_epochs)
    while (rung := math.ceil(exact)) < max_epochs:
        if not rungs or rung > rungs[-1]:
            rungs.append(rung)
        exact *= eta
    return tuple(rungs)


def check_ladder(rule: str, min_epochs: int, max_epochs: int, eta: float | Fraction) -> None:
    """Refuse what makes no ladder: lengths that are no whole numbers >= 1, a first rung above the last epoch."""
    check_epochs(rule, [("max_epochs", max_epochs), ("min_epochs", min_epochs)])
    as_fraction(eta, rule)
    if min_epochs > max_epochs:
        raise ScheduleError(
            f"{rule}.min_epochs: got {min_epochs}, above max_epochs {max_epochs}; allowed: 1 to max_epochs"
        )

"""The rung ladder: at which epochs trials are compared, in exact integers."""

import math
from fractions import Fraction

from trainwright.errors import ScheduleError
from trainwright.validators import Validator, number

__all__ = ["as_fraction", "check_ladder", "eta_factor", "ladder"]


def as_fraction(eta: float | Fraction) -> Fraction:
    """Return the reduction factor as an exact fraction (2.5 is 5/2)."""
    return Fraction(eta).limit_denominator(1000)


def eta_factor() -> Validator:
    """Return the validator of reduction factors: numbers that are above 1 as a fraction of a small denominator."""
    above_1 = number(above=1)
    return Validator(lambda value: above_1.accepts(value) and as_fraction(value) > 1, "a number > 1, usually 2, 3 or 4")


def ladder(min_epochs: int, max_epochs: int, eta: Fraction) -> tuple[int, ...]:
    """Return the rungs ceil(min_epochs * eta^k) below `max_epochs`, strictly increasing.

    Never by logarithms: floor(log(243/3)/log(3)) is 3 in floating point, one rung short.
    """
    rungs: list[int] = []
    exact = Fraction(min_epochs)
    # Rungs are rounded up from the exact power, and equal ones are left out.
    while (rung := math.ceil(exact)) < max_epochs:
        if not rungs or rung > rungs[-1]:
            rungs.append(rung)
        exact *= eta
    return tuple(rungs)


def check_ladder(rule: str, min_epochs: int, max_epochs: int) -> None:
    """Refuse a first rung above the last epoch."""
    if min_epochs > max_epochs:
        raise ScheduleError(
            f"{rule}.min_epochs: got {min_epochs}, above max_epochs {max_epochs}; allowed: 1 to max_epochs"
        )

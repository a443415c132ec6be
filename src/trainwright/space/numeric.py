"""Numeric parameters, Float and Int (uniform or log-uniform), and priors: laws of their unit column, truncated to it.

A prior's unit u in [0, 1] is the one after the log if the parameter has one: `Normal(0.5, 0.125)` on
`Float(1e-5, 1e-1, log=True)` is centred on 1e-3 with a standard deviation of half a decade.
"""

import math
from abc import abstractmethod
from dataclasses import KW_ONLY, asdict, dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.errors import SpaceError, TrialError
from trainwright.space.axes import Axis, Grid, Linear, Log, RoundedLog
from trainwright.space.conditions import Condition
from trainwright.space.configuration import format_number, is_number, to_python
from trainwright.space.expressions import Kind
from trainwright.space.parameters import Varying
from trainwright.validators import Validator, check, flag, integer, number

__all__ = ["Beta", "Float", "Int", "Normal", "NumericParameter", "Prior", "prior_from_json"]

_UNIT = Validator(number(minimum=0, maximum=1).accepts, "a number from 0 (the parameter's low) to 1 (its high)")
_EDGE = 1e-6  # from a bound, where a density of Beta may be endless


@dataclass(frozen=True)
class Normal:
    """The normal law with `mean` in [0, 1] and standard deviation `sd` > 0 on the unit column, truncated to [0, 1]."""

    mean: float
    sd: float

    def check_arguments(self, name: str) -> None:
        """Raise SpaceError if the settings make no law."""
        check(self.mean, _UNIT, f"{name}: Normal.mean", SpaceError)
        check(self.sd, number(above=0), f"{name}: Normal.sd", SpaceError)

    def quantile(self, p: Array) -> Array:
        """Return the units below which a share p of the draws lies."""
        from scipy.special import ndtr, ndtri

        # The shares of the untruncated law below 0 and below 1; draws lie between them.
        below, above = ndtr(-self.mean / self.sd), ndtr((1 - self.mean) / self.sd)
        units: Array = self.mean + self.sd * ndtri(below + p * (above - below))
        return np.minimum(np.maximum(units, 0.0), 1.0)

    def log_density(self, units: Array) -> Array:
        """Return the logarithm of the density, up to a constant."""
        density: Array = -0.5 * ((units - self.mean) / self.sd) ** 2
        return density

    def to_json(self) -> dict[str, Any]:
        """Return the prior as data."""
        return {"normal": [float(self.mean), float(self.sd)]}


@dataclass(frozen=True)
class Beta:
    """The beta law with shapes `a` > 0 and `b` > 0 on the unit column."""

    a: float
    b: float

    def check_arguments(self, name: str) -> None:
        """Raise SpaceError if the settings make no law."""
        for shape, value in asdict(self).items():
            check(value, number(above=0), f"{name}: Beta.{shape}", SpaceError)

    def quantile(self, p: Array) -> Array:
        """Return the units below which a share p of the draws lies."""
        from scipy.special import betaincinv

        units: Array = betaincinv(self.a, self.b, p)
        return units

    def log_density(self, units: Array) -> Array:
        """Return the logarithm of the density, up to a constant; finite at the bounds too."""
        inner = np.clip(units, _EDGE, 1.0 - _EDGE)
        density: Array = (self.a - 1.0) * np.log(inner) + (self.b - 1.0) * np.log1p(-inner)
        return density

    def to_json(self) -> dict[str, Any]:
        """Return the prior as data."""
        return {"beta": [float(self.a), float(self.b)]}


Prior = Normal | Beta


def prior_from_json(document: Any) -> Prior:
    """Return the prior that `to_json` wrote."""
    laws: dict[str, type[Normal | Beta]] = {"normal": Normal, "beta": Beta}
    if isinstance(document, dict) and len(document) == 1:
        [(law, numbers)] = document.items()
        if law in laws and isinstance(numbers, list | tuple) and len(numbers) == 2:
            return laws[law](*numbers)
    raise SpaceError(f'prior {document!r} cannot be read; write {{"normal": [mean, sd]}} or {{"beta": [a, b]}}')


MOST_POINTS = 2**50  # above, a float's 53 bits do not tell neighbouring cells of the unit interval apart
MOST_LOG = 2**40  # likewise for whole numbers on a log scale


class NumericParameter(Varying):
    """What Float and Int share: bounds, log, step, default, prior."""

    low: Any
    high: Any
    log: bool
    step: Any
    prior: Prior | None
    _number: ClassVar[Validator] = number()

    def __post_init__(self) -> None:
        # numpy scalars become Python's: JSON and equality need them.
        for name in ("low", "high", "step", "default"):
            object.__setattr__(self, name, to_python(getattr(self, name)))

    @property
    def even(self) -> bool:
        """Whether no prior bends the draws."""
        return self.prior is None

    def quantile(self, p: Array) -> Array:
        """Return the latent units of uniform draws, through the prior."""
        return p if self.prior is None else self.prior.quantile(p)

    def log_density(self, units: Array) -> Array:
        """Return the logarithm of the prior at units, up to a constant."""
        return np.zeros(len(units)) if self.prior is None else self.prior.log_density(units)

    def rank(self, name: str, value: Any) -> float:
        """Return the number itself, which need not be on the grid, or raise TrialError."""
        if not is_number(value) or not self.low <= value <= self.high:
            raise self._outside_error(name, value)
        return float(value)

    def check_arguments(self, name: str) -> None:
        """Raise SpaceError if the arguments contradict each other."""
        for word in ("low", "high", "step"):
            if word != "step" or self.step is not None:
                check(getattr(self, word), self._number, f"{name}: {word}", SpaceError)
        low, high = self.low, self.high
        if not low < high:
            mend = f"{type(self).__name__}({high!r}, {low!r})" if high < low else f"Constant({low!r})"
            raise SpaceError(f"{name}: low {low!r} is not below high {high!r}; give {mend}")
        check(self.log, flag(), f"{name}: log", SpaceError)
        if self.log and self.step is not None:
            raise SpaceError(
                f"{name}: step and log cannot be combined; list the values: Choice({low!r}, ..., ordered=True)"
            )
        # A step may exceed the range by rounding alone.
        if self.step is not None and not 0 < self.step <= (high - low) * (1 + 1e-9):  # 32.05 - 29.75 < 2.3 in floats
            raise SpaceError(f"{name}: step must be above 0 and at most high - low = {high - low!r}, got {self.step!r}")
        if self.prior is not None:
            if not isinstance(self.prior, Normal | Beta):
                raise SpaceError(f"{name}: {self.prior!r} is no prior; give Normal(mean, sd) or Beta(a, b)")
            self.prior.check_arguments(name)
        self._check_scale(name)
        super().check_arguments(name)

    @abstractmethod
    def _check_scale(self, name: str) -> None: ...

    def _make_grid(self, step: float) -> Grid:
        low, high = float(self.low), float(self.high)
        # Digits after the point of low and step, as the user wrote them.
        digits = max(-int(Decimal(repr(number)).normalize().as_tuple().exponent) for number in (low, step))
        decimals = 10.0 ** max(digits, 0)
        # Beyond 2^53 the scaled numbers are no longer exact integers.
        exact = digits <= 15 and max(abs(low), abs(high)) * decimals < 2**53
        # A billionth of slack: 0.3 / 0.1 is a little below 3 in floats.
        points = float(math.floor((high - low) / step + 1e-9) + 1)
        return Grid.of(low=low, step=step, points=points, high=high, decimals=decimals if exact else 0.0)

    def _outside_error(self, name: str, value: Any) -> TrialError:
        return TrialError(f"{name}={value!r} is outside [{self.low!r}, {self.high!r}]")

    def _snap_to_grid(self, name: str, value: Any) -> float:
        axis = self.axis
        found = axis.to_numbers(axis.to_units(np.array([float(value)])))[0]
        if abs(found - value) > 1e-9 * self.step:
            raise TrialError(
                f"{name}={value!r} is not on the grid {self.low!r}, {self.low + self.step!r}, ...; "
                f"the nearest point is {format_number(float(found))}"
            )
        return float(found)


@dataclass(frozen=True, repr=False)
class Float(NumericParameter):
    """A real number in [low, high]; `log` spreads it evenly over its logarithm, `step` counts grid points from low."""

    low: float
    high: float
    _: KW_ONLY
    log: bool = False
    step: float | None = None
    default: float | None = None
    prior: Prior | None = None
    when: Condition | None = None
    kind: ClassVar[str] = "float"

    @cached_property
    def axis(self) -> Axis:
        """The map between units and numbers."""
        if self.step is not None:
            return self._make_grid(float(self.step))
        return (Log if self.log else Linear).of(low=self.low, high=self.high)

    def to_json(self) -> dict[str, Any]:
        """Return the parameter as data, with 1 and 1.0 written alike."""
        document = super().to_json()
        return document | {key: float(document[key]) for key in ("low", "high", "step", "default") if key in document}

    @property
    def values_kind(self) -> Kind:
        """What expressions may do with the values."""
        return "float"

    def clean(self, name: str, value: Any) -> float:
        """Return the value as a float, or raise TrialError that says what is allowed."""
        value = to_python(value)
        if not is_number(value):
            raise TrialError(f"{name}={value!r} is not a number; allowed: a number in [{self.low!r}, {self.high!r}]")
        if not self.low <= value <= self.high:
            raise self._outside_error(name, value)
        # Adding 0.0 turns -0.0 into 0.0, so that equal values are written alike.
        return float(value) + 0.0 if self.step is None else self._snap_to_grid(name, value)

    def _check_scale(self, name: str) -> None:
        if self.log and not self.low > 0:
            raise SpaceError(
                f"{name}: log=True needs low > 0, got {self.low!r}; use a small bound such as 1e-6, or log=False"
            )
        if not math.isfinite(float(self.high) - float(self.low)):
            raise SpaceError(f"{name}: the range from {self.low!r} to {self.high!r} is too wide for a float; narrow it")
        if self.step is not None and (self.high - self.low) / self.step > MOST_POINTS:
            raise SpaceError(f"{name}: step {self.step!r} makes more than 2**50 points; give a larger step, or none")


@dataclass(frozen=True, repr=False)
class Int(NumericParameter):
    """A whole number from low to high, both included; `log` and `step` as for Float."""

    low: int
    high: int
    _: KW_ONLY
    log: bool = False
    step: int | None = None
    default: int | None = None
    prior: Prior | None = None
    when: Condition | None = None
    kind: ClassVar[str] = "int"
    _number: ClassVar[Validator] = integer(minimum=-(2**53), maximum=2**53)

    @cached_property
    def axis(self) -> Axis:
        """The map between units and numbers."""
        if self.log:
            return RoundedLog.of(low=self.low, high=self.high)
        return self._make_grid(float(1 if self.step is None else self.step))

    @property
    def values_kind(self) -> Kind:
        """What expressions may do with the values."""
        return "int"

    def clean(self, name: str, value: Any) -> int:
        """Return the value as an int, or raise TrialError that says what is allowed."""
        value = to_python(value)
        if not is_number(value) or not (isinstance(value, int) or value.is_integer()):
            raise TrialError(
                f"{name}={value!r} is not a whole number; allowed: a whole number in [{self.low!r}, {self.high!r}]"
            )
        if not self.low <= value <= self.high:
            raise self._outside_error(name, value)
        return int(value) if self.step is None else int(self._snap_to_grid(name, int(value)))

    def natural(self, numbers: Array) -> NDArray[Any]:
        """Return the values as int64."""
        return numbers.astype(np.int64)

    def _check_scale(self, name: str) -> None:
        if self.log and self.low < 1:
            raise SpaceError(f"{name}: log=True needs low >= 1, got {self.low!r}; use Int(1, ...), or log=False")
        if self.log and self.high > MOST_LOG:
            raise SpaceError(f"{name}: log=True needs high <= 2**40, got {self.high!r}; use Float and round")
        if (self.high - self.low) // (self.step or 1) >= MOST_POINTS:
            raise SpaceError(f"{name}: [{self.low!r}, {self.high!r}] holds more than 2**50 points; narrow it")

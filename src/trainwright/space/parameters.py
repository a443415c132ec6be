"""What may vary, and what is fixed or follows from it: Float, Int, Choice, Constant, Derived.

Parameters are plain data and do not know their name; the space that names them asks each to `refuse` what
contradicts itself, so that every message starts with the name.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np

from trainwright.errors import SpaceError, TrialError, closest
from trainwright.space.axes import Array, Axis, Code, Grid, Linear, Log, RoundedLog
from trainwright.space.canonical import canonical, is_number, plain, short
from trainwright.space.conditions import Combination, Comparison, Condition, condition_from_json
from trainwright.space.priors import Beta, Normal, Prior, prior_from_json

__all__ = ["Choice", "Constant", "Derived", "Float", "Int", "Parameter", "Varying", "parameter_from_json"]

MOST_POINTS = 2**50  # above, a float's 53 bits do not tell neighbouring cells of the unit interval apart
MOST_LOG = 2**40  # likewise for whole numbers on a log scale


class Unset:
    """Stands for a default that is not given, where None is a value like any other."""

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"  # unpickles as the one instance, so that `is UNSET` holds in other processes


UNSET = Unset()


class Parameter:
    """What all kinds share: data in, data out."""

    kind: ClassVar[str]

    def __repr__(self) -> str:
        words = [
            repr(value) if name in ("low", "high", "value", "text") else f"{name}={value!r}"
            for name, value in self.arguments().items()
        ]
        return f"{type(self).__name__}({', '.join(words)})"

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, without those at their defaults."""
        given = {}
        for field in fields(self):  # type: ignore[arg-type]  # every kind is a dataclass
            value = getattr(self, field.name)
            if value is not field.default or field.default is MISSING:
                given[field.name] = value
        return given

    def to_json(self) -> dict[str, Any]:
        """Return the parameter as data: its kind and its arguments."""
        document: dict[str, Any] = {"kind": self.kind}
        for name, value in self.arguments().items():
            document[name] = value.to_json() if isinstance(value, Comparison | Combination | Normal | Beta) else value
        return document

    def refuse(self, name: str) -> None:
        """Raise SpaceError if the arguments contradict each other."""
        when = getattr(self, "when", None)
        if when is not None and not isinstance(when, Comparison | Combination):
            raise SpaceError(
                f"{name}: when={when!r} is no condition; write for example when=equals('optimizer', 'sgd')"
            )


class Varying(Parameter):
    """A parameter with a column in the matrix: Float, Int or Choice."""

    when: Condition | None

    @property
    def axis(self) -> Axis:
        """The map between units and numbers."""
        raise NotImplementedError

    @property
    def has_default(self) -> bool:
        """Whether a default is given."""
        raise NotImplementedError

    @property
    def default_value(self) -> Any:
        """The default, whatever the field that holds it is like."""
        return self.default  # type: ignore[attr-defined]  # each kind has the field

    @property
    def even(self) -> bool:
        """Whether uniform draws need no map of their own."""
        raise NotImplementedError

    def quantile(self, p: Array) -> Array:
        """Return the latent column of uniform draws, where not `even`."""
        raise NotImplementedError

    def clean(self, name: str, value: Any) -> Any:
        """Return the value as the space would give it, or raise TrialError that says what is allowed."""
        raise NotImplementedError

    def number(self, value: Any) -> float:
        """Return the number of a clean value."""
        raise NotImplementedError

    def restore(self, numbers: Sequence[float]) -> list[Any]:
        """Return the values of numbers."""
        raise NotImplementedError

    def natural(self, numbers: Array) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the values of numbers as an array of the fitting dtype."""
        raise NotImplementedError

    def refuse(self, name: str) -> None:
        """Raise SpaceError if the arguments contradict each other."""
        super().refuse(name)
        if self.has_default:
            try:
                self.clean(name, self.default_value)
            except TrialError as error:
                raise SpaceError(f"{name}: default {str(error).removeprefix(f'{name}=')}") from None


class _Number(Varying):
    """What Float and Int share: bounds, log, step, prior."""

    low: Any
    high: Any
    log: bool
    step: Any
    default: Any
    prior: Prior | None

    def __post_init__(self) -> None:
        for name in ("low", "high", "step", "default"):
            object.__setattr__(self, name, plain(getattr(self, name)))

    @property
    def has_default(self) -> bool:
        return self.default is not None

    @property
    def even(self) -> bool:
        return self.prior is None

    def quantile(self, p: Array) -> Array:
        return p if self.prior is None else self.prior.quantile(p)

    def refuse(self, name: str) -> None:
        for word in ("low", "high", "step"):
            value = getattr(self, word)
            if not (word == "step" and value is None):
                self._refuse_number(f"{name}: {word}", value)
        low, high = self.low, self.high
        if not low < high:
            mend = f"{type(self).__name__}({high!r}, {low!r})" if high < low else f"Constant({low!r})"
            raise SpaceError(f"{name}: low {low!r} is not below high {high!r}; give {mend}")
        if not isinstance(self.log, bool):
            raise SpaceError(f"{name}: log must be True or False, got {self.log!r}")
        if self.log and self.step is not None:
            raise SpaceError(
                f"{name}: step and log cannot be combined; list the values: Choice({low!r}, ..., ordered=True)"
            )
        if self.step is not None and not 0 < self.step <= high - low:
            raise SpaceError(f"{name}: step must be above 0 and at most high - low = {high - low!r}, got {self.step!r}")
        if self.prior is not None:
            if not isinstance(self.prior, Normal | Beta):
                raise SpaceError(f"{name}: {self.prior!r} is no prior; give Normal(mean, sd) or Beta(a, b)")
            self.prior.refuse(name)
        self._refuse_scale(name)
        super().refuse(name)

    def _refuse_number(self, what: str, value: Any) -> None:
        if not is_number(value):
            raise SpaceError(f"{what} must be a number, got {value!r}")
        if not math.isfinite(value):
            raise SpaceError(f"{what} must be finite, got {value!r}; give the least and greatest value worth a trial")

    def _refuse_scale(self, name: str) -> None:
        raise NotImplementedError

    def _grid(self, step: float) -> Grid:
        low, high = float(self.low), float(self.high)
        digits = max(-int(Decimal(repr(number)).normalize().as_tuple().exponent) for number in (low, step))
        decimals = 10.0 ** max(digits, 0)
        exact = digits <= 15 and max(abs(low), abs(high)) * decimals < 2**53
        points = float(math.floor((high - low) / step + 1e-9) + 1)
        return Grid(low=low, step=step, points=points, high=high, decimals=decimals if exact else 0.0)

    def _outside(self, name: str, value: Any) -> TrialError:
        return TrialError(f"{name}={value!r} is outside [{self.low!r}, {self.high!r}]")

    def _on_grid(self, name: str, value: Any) -> float:
        axis = self.axis
        number = axis.numbers(axis.units(np.array([float(value)])))[0]
        if abs(number - value) > 1e-9 * self.step:
            raise TrialError(
                f"{name}={value!r} is not on the grid {self.low!r}, {self.low + self.step!r}, ...; "
                f"the nearest point is {short(float(number))}"
            )
        return float(number)


@dataclass(frozen=True, repr=False)
class Float(_Number):
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

    @property
    def axis(self) -> Axis:
        if self.step is not None:
            return self._grid(float(self.step))
        return (Log if self.log else Linear)(low=float(self.low), high=float(self.high))

    def to_json(self) -> dict[str, Any]:
        """Return the parameter as data, with 1 and 1.0 written alike."""
        document = super().to_json()
        return document | {key: float(document[key]) for key in ("low", "high", "step", "default") if key in document}

    def clean(self, name: str, value: Any) -> float:
        value = plain(value)
        if not is_number(value):
            raise TrialError(f"{name}={value!r} is not a number; allowed: a number in [{self.low!r}, {self.high!r}]")
        if not self.low <= value <= self.high:
            raise self._outside(name, value)
        return float(value) + 0.0 if self.step is None else self._on_grid(name, value)

    def number(self, value: Any) -> float:
        return float(value)

    def restore(self, numbers: Sequence[float]) -> list[Any]:
        return list(numbers)

    def natural(self, numbers: Array) -> np.ndarray[Any, np.dtype[Any]]:
        return numbers

    def _refuse_scale(self, name: str) -> None:
        if self.log and not self.low > 0:
            raise SpaceError(
                f"{name}: log=True needs low > 0, got {self.low!r}; use a small bound such as 1e-6, or log=False"
            )
        if not math.isfinite(float(self.high) - float(self.low)):
            raise SpaceError(f"{name}: the range from {self.low!r} to {self.high!r} is too wide for a float; narrow it")
        if self.step is not None and (self.high - self.low) / self.step > MOST_POINTS:
            raise SpaceError(f"{name}: step {self.step!r} makes more than 2**50 points; give a larger step, or none")


@dataclass(frozen=True, repr=False)
class Int(_Number):
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

    @property
    def axis(self) -> Axis:
        if self.log:
            return RoundedLog(low=float(self.low), high=float(self.high))
        return self._grid(float(1 if self.step is None else self.step))

    def clean(self, name: str, value: Any) -> int:
        value = plain(value)
        if not is_number(value) or not math.isfinite(value) or value != int(value):
            raise TrialError(
                f"{name}={value!r} is not a whole number; allowed: a whole number in [{self.low!r}, {self.high!r}]"
            )
        if not self.low <= value <= self.high:
            raise self._outside(name, value)
        return int(value) if self.step is None else int(self._on_grid(name, int(value)))

    def number(self, value: Any) -> float:
        return float(value)

    def restore(self, numbers: Sequence[float]) -> list[Any]:
        return [int(number) for number in numbers]

    def natural(self, numbers: Array) -> np.ndarray[Any, np.dtype[Any]]:
        return numbers.astype(np.int64)

    def _refuse_number(self, what: str, value: Any) -> None:
        super()._refuse_number(what, value)
        if not isinstance(value, int):
            raise SpaceError(f"{what} must be a whole number, got {value!r}; for real numbers use Float")
        if abs(value) > 2**53:
            raise SpaceError(f"{what} must lie within -2**53 and 2**53, got {value!r}")

    def _refuse_scale(self, name: str) -> None:
        if self.log and self.low < 1:
            raise SpaceError(f"{name}: log=True needs low >= 1, got {self.low!r}; use Int(1, ...), or log=False")
        if self.log and self.high > MOST_LOG:
            raise SpaceError(f"{name}: log=True needs high <= 2**40, got {self.high!r}; use Float and round")
        if (self.high - self.low) // (self.step or 1) >= MOST_POINTS:
            raise SpaceError(f"{name}: [{self.low!r}, {self.high!r}] holds more than 2**50 points; narrow it")


@dataclass(frozen=True, repr=False, init=False)
class Choice(Varying):
    """One of some values: JSON scalars or tuples of them; with `ordered=True` they are levels from low to high.

    Values are told apart by their canonical JSON: 1, 1.0 and True are three values. `weights` make some values more
    frequent in draws.
    """

    values: tuple[Any, ...]
    ordered: bool = False
    weights: tuple[float, ...] | None = None
    default: Any = UNSET
    when: Condition | None = None
    kind: ClassVar[str] = "choice"

    def __init__(
        self,
        *values: Any,
        ordered: bool = False,
        weights: Sequence[float] | None = None,
        default: Any = UNSET,
        when: Condition | None = None,
    ) -> None:
        given = {
            "values": tuple(plain(value) for value in values),
            "ordered": ordered,
            "weights": None if weights is None else tuple(plain(weight) for weight in weights),
            "default": plain(default),
            "when": when,
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        rest = [f"{name}={value!r}" for name, value in self.arguments().items() if name != "values"]
        return f"Choice({', '.join([*map(repr, self.values), *rest])})"

    @property
    def axis(self) -> Axis:
        points = float(len(self.values))
        return Grid(low=0.0, step=1.0, points=points, high=points - 1, decimals=1.0) if self.ordered else Code(points)

    @property
    def has_default(self) -> bool:
        return self.default is not UNSET

    @property
    def even(self) -> bool:
        return self.weights is None and self.ordered

    def quantile(self, p: Array) -> Array:
        if self.weights is None:
            return self.axis.units(np.minimum(np.floor(p * len(self.values)), len(self.values) - 1.0))
        ends = np.cumsum(self.weights) / math.fsum(self.weights)
        last = max(index for index, weight in enumerate(self.weights) if weight > 0)
        return self.axis.units(np.minimum(np.searchsorted(ends, p, side="right"), last).astype(np.float64))

    def refuse(self, name: str) -> None:
        if not self.values:
            raise SpaceError(f"{name}: at least one value is needed")
        seen = set()
        for value in self.values:
            refuse_value(name, value)
            if canonical(value) in seen:
                raise SpaceError(
                    f"{name}: value {value!r} is listed twice; list each once, and use weights to favour it"
                )
            seen.add(canonical(value))
        if not isinstance(self.ordered, bool):
            raise SpaceError(f"{name}: ordered must be True or False, got {self.ordered!r}")
        if self.weights is not None:
            if len(self.weights) != len(self.values):
                raise SpaceError(
                    f"{name}: {len(self.weights)} weights for {len(self.values)} values; give one for each"
                )
            if not all(is_number(w) and 0 <= w < math.inf for w in self.weights) or not sum(self.weights) > 0:
                raise SpaceError(
                    f"{name}: weights must be finite numbers >= 0 with a sum above 0, got {list(self.weights)!r}"
                )
        super().refuse(name)

    def clean(self, name: str, value: Any) -> Any:
        value = tuple(value) if isinstance(value, list) else plain(value)
        try:
            return self.values[self._codes[canonical(value)]]
        except (KeyError, TypeError, ValueError):
            allowed = ", ".join(map(repr, self.values))
            raise TrialError(f"{name}={value!r} is not a value of {name}; allowed: {allowed}") from None

    def number(self, value: Any) -> float:
        return float(self._codes[canonical(value)])

    def restore(self, numbers: Sequence[float]) -> list[Any]:
        return [self.values[int(number)] for number in numbers]

    def natural(self, numbers: Array) -> np.ndarray[Any, np.dtype[Any]]:
        return self.table[numbers.astype(np.intp)]

    @property
    def table(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The values as an array: of numbers or text where all are, else of objects."""
        kinds = {type(value) for value in self.values}
        if kinds <= {bool} or kinds <= {str} or kinds <= {int, float}:
            table = np.array(self.values)
            if table.dtype != object and table.dtype != np.uint64:
                return table
        table = np.empty(len(self.values), dtype=object)
        table[:] = self.values
        return table

    @property
    def _codes(self) -> dict[str, int]:
        return {canonical(value): code for code, value in enumerate(self.values)}


@dataclass(frozen=True, repr=False)
class Constant(Parameter):
    """A value that every configuration holds; it reaches the training function, never the model of the search."""

    value: Any
    kind: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", plain(self.value))

    def refuse(self, name: str) -> None:
        """Raise SpaceError if the value is no JSON scalar and no tuple of them."""
        refuse_value(name, self.value)


@dataclass(frozen=True, repr=False)
class Derived(Parameter):
    """A number computed from other parameters after sampling, such as `Derived("batch * accumulation")`."""

    text: str
    _: KW_ONLY
    when: Condition | None = None
    kind: ClassVar[str] = "derived"


def refuse_value(name: str, value: Any) -> None:
    """Raise SpaceError unless the value is a JSON scalar or a tuple of JSON scalars."""
    scalars = value if isinstance(value, tuple) else (value,)
    for scalar in scalars:
        if isinstance(scalar, float) and not math.isfinite(scalar):
            raise SpaceError(f"{name}: value {value!r} is not finite; JSON has no word for it")
        if scalar is not None and not isinstance(scalar, str | int | float | bool):
            mend = "a number, text, True, False, None, or a tuple of these"
            if isinstance(value, list | set):
                mend = f"the tuple {tuple(value)!r}"
            raise SpaceError(f"{name}: value {value!r} is not a scalar; use {mend}")


def parameter_from_json(name: str, document: Any) -> Parameter:
    """Return the parameter that `to_json` wrote, or that a study file lists: its kind and its arguments."""
    kinds: dict[str, type[Parameter]] = {cls.kind: cls for cls in (Float, Int, Choice, Constant, Derived)}
    if not isinstance(document, dict) or "kind" not in document:
        raise SpaceError(f"{name}: {document!r} lacks a kind; allowed: {', '.join(kinds)}")
    arguments = {key: value for key, value in document.items() if key != "kind"}
    kind = kinds.get(document["kind"]) if isinstance(document["kind"], str) else None
    if kind is None:
        near = closest(str(document["kind"]), kinds)
        raise SpaceError(f"{name}: kind {document['kind']!r} is unknown; allowed: {', '.join(kinds)}{near}")
    known = {field.name: field for field in fields(kind) if field.name != "_"}  # type: ignore[arg-type]  # dataclasses
    for key in arguments:
        if key not in known:
            raise SpaceError(
                f"{name}: {key!r} is no argument of {kind.kind}; known: {', '.join(known)}{closest(key, known)}"
            )
    for key, field in known.items():
        if field.default is MISSING and key not in arguments:
            raise SpaceError(f"{name}: {kind.kind} needs {key!r}")
    if arguments.get("when") is not None:
        arguments["when"] = condition_from_json(arguments["when"])
    if arguments.get("prior") is not None:
        arguments["prior"] = prior_from_json(arguments["prior"])
    if kind is Choice:
        values = [_frozen(value) for value in arguments.pop("values")]
        return Choice(*values, **{key: _frozen(v) if key == "default" else v for key, v in arguments.items()})
    return kind(**{key: _frozen(value) for key, value in arguments.items()})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value

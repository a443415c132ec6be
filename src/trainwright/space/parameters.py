"""The interface of every kind of parameter, and the kinds without a column: Constant, and Derived from others.

Parameters are plain data and do not know their name; the space that names them asks each to `refuse` what
contradicts itself, so that every message starts with the name.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, MISSING, Field, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.errors import SpaceError, TrialError
from trainwright.space.axes import Axis
from trainwright.space.conditions import Combination, Comparison, Condition
from trainwright.space.configuration import to_python
from trainwright.space.expressions import Expression, Kind

__all__ = ["Constant", "Derived", "Parameter", "Varying", "check_value", "kind_of_table", "make_table"]

Table = NDArray[Any]


class Parameter:
    """Data in, data out: the part that all kinds share."""

    kind: ClassVar[str]
    when: Condition | None = None

    def __repr__(self) -> str:
        words = [
            repr(value) if name in ("low", "high", "value", "text") else f"{name}={value!r}"
            for name, value in self.arguments().items()
        ]
        return f"{type(self).__name__}({', '.join(words)})"

    @classmethod
    def known(cls) -> dict[str, Field[Any]]:
        """Return the arguments that the kind knows."""
        return {field.name: field for field in fields(cls)}  # type: ignore[arg-type]  # every kind is a dataclass

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor, without those at their defaults."""
        given = {name: (getattr(self, name), field.default) for name, field in self.known().items()}
        return {name: value for name, (value, default) in given.items() if value is not default or default is MISSING}

    def to_json(self) -> dict[str, Any]:
        """Return the parameter as data: its kind and its arguments."""
        return {"kind": self.kind} | {name: _to_data(value) for name, value in self.arguments().items()}

    def check_arguments(self, name: str) -> None:
        """Raise SpaceError if the arguments contradict each other."""
        if self.when is not None and not isinstance(self.when, Comparison | Combination):
            raise SpaceError(
                f"{name}: when={self.when!r} is no condition; write for example when=equals('optimizer', 'sgd')"
            )


class Varying(Parameter, ABC):
    """A parameter with a column in the matrix: Float, Int or Choice."""

    default: Any

    @property
    @abstractmethod
    def axis(self) -> Axis:
        """The map between units and numbers."""

    @property
    def has_default(self) -> bool:
        """Whether a default is given."""
        return self.default is not None

    @property
    @abstractmethod
    def even(self) -> bool:
        """Whether all values are equally likely, so that draws need no map of their own."""

    @property
    @abstractmethod
    def values_kind(self) -> Kind:
        """What expressions may do with the values."""

    @abstractmethod
    def quantile(self, p: Array) -> Array:
        """Return the latent units of uniform draws."""

    @abstractmethod
    def log_density(self, units: Array) -> Array:
        """Return the logarithm of the prior or of the weights at units, up to a constant."""

    @abstractmethod
    def clean(self, name: str, value: Any) -> Any:
        """Return a value as the space itself would give it, or raise TrialError that says what is allowed."""

    def number(self, value: Any) -> float:
        """Return the number of a clean value."""
        return float(value)

    @abstractmethod
    def rank(self, name: str, value: Any) -> float:
        """Return the number to compare with `less` and `greater`, or raise TrialError."""

    def natural(self, numbers: Array) -> NDArray[Any]:
        """Return the values of numbers as an array of the fitting dtype."""
        return numbers

    def restore(self, numbers: Array) -> list[Any]:
        """Return the values of numbers."""
        values: list[Any] = self.natural(numbers).tolist()
        return values

    def check_arguments(self, name: str) -> None:
        """Raise SpaceError if the arguments contradict each other."""
        super().check_arguments(name)
        if self.has_default:
            try:
                self.clean(name, self.default)
            except TrialError as error:
                raise SpaceError(f"{name}: default {str(error).removeprefix(f'{name}=')}") from None


def check_value(name: str, value: Any) -> None:
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


def make_table(values: tuple[Any, ...]) -> Table:
    """Return values as an array: of bool, int64, float64 or text where all are, else of objects."""
    # numpy would make 1.0 of 1 and "1" of both: mixed types stay objects.
    kinds = {type(value) for value in values}
    if kinds in ({bool}, {str}) or kinds <= {int, float}:
        table = np.array(values)
        if table.dtype.kind in "bfU" or table.dtype == np.int64:
            return table
    return np.fromiter(values, dtype=object, count=len(values))  # also whole numbers beyond 64 bits; tuples stay whole


def kind_of_table(table: Table) -> Kind:
    """Return what expressions may do with the values of a table."""
    kinds: dict[str, Kind] = {"b": "bool", "i": "int", "f": "float", "U": "text"}
    return kinds.get(table.dtype.kind, "any")


def _to_data(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    return [_to_data(item) for item in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, repr=False)
class Constant(Parameter):
    """A value that every configuration holds; it reaches the training function, never the model of the search."""

    value: Any
    kind: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", to_python(self.value))

    def check_arguments(self, name: str) -> None:
        """Raise SpaceError if the value is no JSON scalar and no tuple of them."""
        check_value(name, self.value)

    def column(self, count: int) -> NDArray[Any]:
        """Return the value as a column."""
        return np.repeat(make_table((self.value,)), count)

    @property
    def values_kind(self) -> Kind:
        """What expressions may do with the value."""
        return kind_of_table(make_table((self.value,)))


@dataclass(frozen=True, repr=False)
class Derived(Parameter):
    """A number computed from other parameters after sampling, such as `Derived("batch * accumulation")`."""

    text: str
    _: KW_ONLY
    when: Condition | None = None
    kind: ClassVar[str] = "derived"

    def check_arguments(self, name: str) -> None:
        """Raise SpaceError if the text is no text; its grammar is refused when it is bound."""
        super().check_arguments(name)
        if not isinstance(self.text, str):
            raise SpaceError(f"{name}: {self.text!r} is no text; write for example Derived('batch * accumulation')")

    def expression(self, name: str) -> Expression:
        """Return the parsed text, or raise SpaceError that says what is not allowed."""
        return Expression.parse(self.text, f"{name}: {self.text.strip()!r}")

"""Parameters without a column: Constant, and Derived from others."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import SpaceError
from trainwright.space.canonical import to_python
from trainwright.space.conditions import Condition
from trainwright.space.expressions import Expression, Kind
from trainwright.space.parameters import Parameter, check_value, kind_of_table, make_table

__all__ = ["Constant", "Derived"]


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

"""Rules that a configuration must meet: texts over its parameters, such as "batch * accumulation <= 4096".

A requirement applies only to rows in which all names that it uses are active.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.errors import SpaceError
from trainwright.space.axes import Mask
from trainwright.space.expressions import Environment, Expression, Kind

__all__ = ["Requirement", "Verdict", "require", "requirement_from_json"]

Verdict = Callable[[Environment, int], Mask]  # columns, and their length, to the rows that pass


@dataclass(frozen=True)
class Requirement:
    """An expression that must be true."""

    expression: Expression

    def __str__(self) -> str:
        return self.expression.text

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that the requirement uses."""
        return self.expression.names

    def bind(self, kinds: Mapping[str, Kind]) -> Verdict:
        """Return the evaluation over columns of these kinds."""
        term = self.expression.bind(kinds)
        if term.kind != "bool":
            raise SpaceError(f"{self.expression.owner}: gives a value, not true or false; compare it, as in ... <= 1")
        return lambda env, count: np.broadcast_to(np.asarray(term.evaluate(env), dtype=np.bool_), count)

    def to_json(self) -> dict[str, Any]:
        """Return the requirement as data."""
        return {"text": self.expression.text}


def require(rule: str) -> Requirement:
    """Return a rule that every configuration must meet: a text over parameter names."""
    if not isinstance(rule, str):
        raise SpaceError(f"require: got {rule!r}; allowed: a text over names of parameters, such as require('a <= b')")
    expression = Expression.parse(rule, f"requirement {rule.strip()!r}")
    if not expression.names:
        raise SpaceError(f"requirement {rule!r}: names no parameter; compare at least one, as in 'width <= 64'")
    return Requirement(expression)


def requirement_from_json(document: Any) -> Requirement:
    """Return the requirement that `to_json` wrote."""
    if not isinstance(document, Mapping) or "text" not in document:
        raise SpaceError(f'requirement {document!r} cannot be read; write {{"text": "a <= b"}}')
    return require(document["text"])

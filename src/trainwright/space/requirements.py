"""Rules that a configuration must meet: texts such as "batch * accumulation <= 4096", or functions over columns.

A requirement applies only to rows in which all names that it uses are active.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import SpaceError, closest
from trainwright.space.axes import Mask
from trainwright.space.expressions import Environment, Expression, Kind

__all__ = ["FunctionRequirement", "Requirement", "TextRequirement", "Verdict", "require", "requirement_from_json"]

Predicate = Callable[..., NDArray[np.bool_]]
Verdict = Callable[[Environment, int], Mask]  # columns, and their length, to the rows that pass


@dataclass(frozen=True)
class TextRequirement:
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


@dataclass(frozen=True)
class FunctionRequirement:
    """A function of columns, in the order of `names`, that gives one boolean a row."""

    function: Predicate
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.function.__module__}:{self.function.__qualname__}"

    def bind(self, kinds: Mapping[str, Kind]) -> Verdict:
        """Return the evaluation over columns."""
        for name in self.names:
            if name not in kinds:
                raise SpaceError(
                    f"requirement {str(self)!r}: names {name!r}; known: {', '.join(kinds)}{closest(name, kinds)}"
                )

        # A function that returns a number or one boolean would broadcast and pass unnoticed.
        def verdict(env: Environment, count: int) -> Mask:
            mask = np.asarray(self.function(*(env[name] for name in self.names)))
            if mask.dtype != np.bool_ or mask.shape != (count,):
                raise SpaceError(
                    f"requirement {str(self)!r}: gave {mask.dtype} of shape {mask.shape} for {count} rows; "
                    "return one boolean a row"
                )
            return mask

        return verdict

    def to_json(self) -> dict[str, Any]:
        """Return the requirement as data: the function's import path and its names."""
        return {"function": str(self), "names": list(self.names)}


Requirement = TextRequirement | FunctionRequirement


def require(rule: str | Predicate, names: Iterable[str] | None = None) -> Requirement:
    """Return a rule that every configuration must meet.

    `rule` is a text over parameter names, or an importable function that takes the columns `names` as numpy arrays
    and returns a boolean array; the function is stored by its import path.
    """
    if isinstance(rule, str):
        if names is not None:
            raise SpaceError(f"requirement {rule!r}: names belong to functions; a text names its parameters itself")
        expression = Expression.parse(rule, f"requirement {rule.strip()!r}")
        if not expression.names:
            raise SpaceError(f"requirement {rule!r}: names no parameter; compare at least one, as in 'width <= 64'")
        return TextRequirement(expression)
    if not callable(rule):
        raise SpaceError(f"require: {rule!r} is neither a text nor a function; write for example require('a <= b')")
    path = f"{getattr(rule, '__module__', None)}:{getattr(rule, '__qualname__', None)}"
    # Lambdas and nested functions cannot be imported by a worker.
    if "<" in path or "None" in path.split(":"):
        raise SpaceError(
            f"requirement {path!r}: has no import path; define the function at the top of a module, not inside another"
        )
    if names is None or isinstance(names, str) or not list(names):
        raise SpaceError(
            f"requirement {path!r}: names must list the function's columns, such as names=['batch', 'width']"
        )
    return FunctionRequirement(rule, tuple(names))


def requirement_from_json(document: Any) -> Requirement:
    """Return the requirement that `to_json` wrote; a function is imported."""
    if isinstance(document, dict) and isinstance(document.get("text"), str):
        return require(document["text"])
    if isinstance(document, dict) and {"function", "names"} <= document.keys():
        return require(_import_function(document["function"]), names=document["names"])
    raise SpaceError(f'requirement {document!r} cannot be read; write {{"text": "a <= b"}}')


def _import_function(path: str) -> Predicate:
    module, _, attributes = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpaceError(
            f"requirement {path!r}: cannot be imported ({error}); put its module on the Python path"
        ) from None
    function: Predicate = found
    return function

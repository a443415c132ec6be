"""Expressions over parameters: a small whitelisted language, compiled to numpy over whole columns.

Text is parsed by Python's own parser and then translated node by node; what is not listed in `ALLOWED` is refused,
and nothing is ever handed to `eval`. Numbers are computed as float64, so whole numbers are exact up to 2^53.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal, Protocol, Self

import numpy as np

from trainwright.errors import SpaceError, closest

__all__ = ["ALLOWED", "Environment", "Expression", "Kind", "Term"]

ALLOWED = "names, numbers, strings, + - * / // % **, comparisons, and or not in, min max abs log ceil floor"

Kind = Literal["bool", "int", "float", "text", "any"]
NUMERIC: tuple[Kind, ...] = ("bool", "int", "float")

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: np.power,
}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
_FUNCTIONS: dict[str, tuple[Callable[..., Any], Kind | None]] = {  # the kind of the result; None = of the arguments
    "min": (np.minimum, None),
    "max": (np.maximum, None),
    "abs": (np.abs, None),
    "log": (np.log, "float"),
    "ceil": (np.ceil, "int"),
    "floor": (np.floor, "int"),
}


class Environment(Protocol):
    """Columns by name."""

    def __getitem__(self, name: str, /) -> Any: ...


@dataclass(frozen=True)
class Term:
    """A compiled part: the kind of its values, and its evaluation over columns."""

    kind: Kind
    evaluate: Callable[[Environment], Any]


@dataclass(frozen=True)
class Expression:
    """A parsed text; `owner` starts its messages."""

    text: str
    owner: str
    names: tuple[str, ...]  # in the order of their first use
    _tree: ast.expr = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str, owner: str) -> Self:
        """Return the expression, or raise SpaceError that names what is not allowed."""
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            _check_language(tree, owner)
        # Deep nesting ends Python's parser with a MemoryError or RecursionError, null bytes with a ValueError.
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            why = error.msg if isinstance(error, SyntaxError) else str(error) or "it is nested too deeply"
            raise SpaceError(f"{owner}: cannot be read ({why}); allowed: {ALLOWED}") from None
        # Names of functions are not parameters.
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        found = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
        return cls(text.strip(), owner, tuple(dict.fromkeys(found)), tree)

    def bind(self, kinds: Mapping[str, Kind]) -> Term:
        """Return the compiled expression over columns of these kinds."""
        for name in self.names:
            if name not in kinds:
                raise SpaceError(f"{self.owner}: names {name!r}; known: {', '.join(kinds)}{closest(name, kinds)}")
        return _Compiler(self.owner, kinds).term(self._tree)


def _check_language(tree: ast.expr, owner: str) -> None:
    """Refuse what is not in the language, outermost first."""
    # A list of values may stand only on the right of `in`.
    listed = {
        id(node.comparators[index])
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for index, op in enumerate(node.ops)
        if isinstance(op, ast.In | ast.NotIn)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not _is_allowed(node, id(node) in listed):
            raise SpaceError(f"{owner}: {ast.unparse(node)!r} is not allowed; allowed: {ALLOWED}")


def _is_allowed(node: ast.expr, is_listed: bool) -> bool:
    match node:
        case ast.Name() | ast.BoolOp():
            return True
        case ast.Constant(value=value):
            return not isinstance(value, bytes | complex) and value is not Ellipsis
        case ast.UnaryOp(op=op):
            return not isinstance(op, ast.Invert)
        case ast.BinOp(op=op):
            return type(op) in _ARITHMETIC
        case ast.Compare(ops=ops):
            return not any(isinstance(op, ast.Is | ast.IsNot) for op in ops)
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return name in _FUNCTIONS
        case ast.Tuple() | ast.List() | ast.Set():
            return is_listed
    return False


class _Compiler:
    """Translates a checked tree, refusing operations on kinds that do not fit."""

    def __init__(self, owner: str, kinds: Mapping[str, Kind]) -> None:
        self.owner = owner
        self.kinds = kinds

    def term(self, node: ast.expr) -> Term:
        match node:
            case ast.Constant():
                return self._compile_constant(node.value)
            case ast.Name():
                kind = self.kinds[node.id]
                # int64 would overflow in products; float64 is exact up to 2^53.
                column = Term(kind, lambda env: env[node.id])
                return _apply(kind, _as_floats, column) if kind == "int" else column
            case ast.BoolOp():
                join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
                return _join("bool", join, [self._compile_condition(value) for value in node.values])
            case ast.UnaryOp(op=ast.Not()):
                return _apply("bool", np.logical_not, self._compile_condition(node.operand))
            case ast.UnaryOp():
                number = self._compile_number(node.operand)
                function = np.negative if isinstance(node.op, ast.USub) else np.positive
                return _apply(_widest_kind([number]), function, number)
            case ast.BinOp():
                return self._compile_arithmetic(node)
            case ast.Compare():
                # A chain such as a < b < c holds where all pairs of neighbours do.
                pairs = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
                return _join("bool", np.logical_and, [self._compile_comparison(*pair) for pair in pairs])
            case ast.Call(func=ast.Name(id=name)):
                return self._compile_call(name, node.args)
        raise SpaceError(f"{self.owner}: {ast.unparse(node)!r} is not allowed; allowed: {ALLOWED}")

    def _compile_constant(self, value: Any) -> Term:
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                raise SpaceError(f"{self.owner}: {str(value)[:10]}... is too large a number") from None
            return Term("int" if isinstance(value, int) else "float", lambda _: number)
        kinds: dict[type, Kind] = {bool: "bool", str: "text"}
        return Term(kinds.get(type(value), "any"), lambda _: value)

    def _compile_number(self, node: ast.expr) -> Term:
        term = self.term(node)
        if term.kind not in NUMERIC:
            raise SpaceError(f"{self.owner}: {ast.unparse(node)} is no number, so it can only be compared by == != in")
        # True and False count as 1 and 0 in arithmetic, as in Python.
        return _apply("bool", _as_floats, term) if term.kind == "bool" else term

    def _compile_condition(self, node: ast.expr) -> Term:
        term = self.term(node)
        if term.kind != "bool":
            raise SpaceError(f"{self.owner}: {ast.unparse(node)} is neither true nor false; compare it with something")
        return term

    def _compile_arithmetic(self, node: ast.BinOp) -> Term:
        terms = [self._compile_number(node.left), self._compile_number(node.right)]
        kind = _widest_kind(terms)
        # 2 ** -1 is no whole number: the kind stays int only for a literal exponent.
        whole_power = isinstance(node.right, ast.Constant)  # a sign in front makes it no plain constant
        if isinstance(node.op, ast.Div) or (isinstance(node.op, ast.Pow) and not whole_power):
            kind = "float"
        return _apply(kind, _ARITHMETIC[type(node.op)], *terms)

    def _compile_comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Term:
        negated = isinstance(op, ast.NotIn | ast.NotEq)
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
                raise SpaceError(f"{self.owner}: 'in' needs a list of values on its right, such as in (1, 2)")
            found = _join("bool", np.logical_or, [self._compile_equality(left, element) for element in right.elts])
        elif isinstance(op, ast.Eq | ast.NotEq):
            found = self._compile_equality(left, right)
        else:
            return _apply("bool", _ORDER[type(op)], self._compile_number(left), self._compile_number(right))
        return _apply("bool", np.logical_not, found) if negated else found

    def _compile_equality(self, left: ast.expr, right: ast.expr) -> Term:
        terms = self.term(left), self.term(right)
        # Number and text are never equal: most likely a typing mistake, so it is refused.
        kinds = {"number" if term.kind in NUMERIC else term.kind for term in terms}
        if kinds == {"number", "text"}:
            raise SpaceError(
                f"{self.owner}: {ast.unparse(left)} and {ast.unparse(right)} are number and text, never equal"
            )
        # numpy cannot compare arrays of mixed objects element by element with tuples in them.
        return _apply("bool", _same_object if "any" in kinds else np.equal, *terms)

    def _compile_call(self, name: str, arguments: Sequence[ast.expr]) -> Term:
        least, most = (2, 100) if name in ("min", "max") else (1, 1)
        if not least <= len(arguments) <= most:
            raise SpaceError(f"{self.owner}: {name} takes {'two or more numbers' if least == 2 else 'one number'}")
        terms = [self._compile_number(argument) for argument in arguments]
        function, kind = _FUNCTIONS[name]
        if least == 2:
            return _join(_widest_kind(terms), function, terms)
        return _apply(kind or _widest_kind(terms), function, *terms)


def _apply(kind: Kind, function: Callable[..., Any], *terms: Term) -> Term:
    """Return the term of a function of the values of others."""
    parts = [term.evaluate for term in terms]
    return Term(kind, lambda env: function(*[part(env) for part in parts]))


def _join(kind: Kind, function: Callable[[Any, Any], Any], terms: Sequence[Term]) -> Term:
    """Return the term of a function of two that joins the values of several, one after the other."""
    parts = [term.evaluate for term in terms]
    return Term(kind, lambda env: reduce(function, [part(env) for part in parts]))


def _as_floats(values: Any) -> Any:
    return np.asarray(values, dtype=np.float64)


_compare_objects = np.frompyfunc(operator.eq, 2, 1)


def _same_object(left: Any, right: Any) -> Any:
    """Compare values of mixed kinds one by one, as Python does."""
    return np.asarray(_compare_objects(_box_value(left), _box_value(right)), dtype=np.bool_)


def _box_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    box = np.empty((), dtype=object)  # keeps a text or tuple whole
    box[()] = value
    return box


def _widest_kind(terms: Sequence[Term]) -> Kind:
    return "float" if any(term.kind == "float" for term in terms) else "int"

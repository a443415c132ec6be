"""Finite spaces: counted and listed like a filtered product."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings

from strategies import finite_spaces
from trainwright.errors import SpaceError
from trainwright.space import Choice, Float, Int, Space, equals, greater, require


def holds(document, params, levels, *, negated=False):
    """Evaluate a condition's data the slow way; a comparison on an absent parameter is false under not_ too."""
    [(operation, body)] = document.items()
    if operation == "not_":
        return holds(body, params, levels, negated=not negated)
    if operation in ("all_of", "any_of"):
        join = all if (operation == "all_of") != negated else any
        return join([holds(part, params, levels, negated=negated) for part in body])
    name, wanted = body
    if name not in params:
        return False
    value = place(levels[name], params[name])
    compared = [place(levels[name], other) for other in (wanted if operation == "one_of" else [wanted])]
    if operation in ("equals", "one_of"):
        return (value in compared) != negated
    return (value < compared[0] if operation == "less" else value > compared[0]) != negated


def place(levels, value):
    return levels.index(json.dumps(value)) if levels else value


def values_of(parameter):
    if isinstance(parameter, Choice):
        return list(parameter.values)
    if isinstance(parameter, Int):
        return list(range(parameter.low, parameter.high + 1, parameter.step or 1))
    points = int((parameter.high - parameter.low) / parameter.step + 1e-9) + 1
    return [parameter.low + index * parameter.step for index in range(points)]


def brute_force(space):
    """Return every legal configuration by trying all values of all parameters, and absence."""
    varying = {column.name: space.parameters[column.name] for column in space.columns}
    levels = {n: [json.dumps(v) for v in p.values] if isinstance(p, Choice) else [] for n, p in varying.items()}
    terms = space.parameters["total"].text.split(" + ") if "total" in space.parameters else []
    bounds = [float(str(requirement).split("<=")[1]) for requirement in space.requirements]
    absent = object()
    found = []
    for point in itertools.product(*([*values_of(p), absent] for p in varying.values())):
        params = {name: value for name, value in zip(varying, point, strict=True) if value is not absent}
        fits = all(
            (n in params) == (p.when is None or holds(p.when.to_json(), params, levels)) for n, p in varying.items()
        )
        applies = all(name in params for name in terms)
        if fits and not (applies and any(sum(params[name] for name in terms) > bound for bound in bounds)):
            found.append(params)
    return found


@settings(max_examples=40)
@given(finite_spaces())
def test_enumeration_is_the_filtered_product(space):
    """Exactly the legal configurations, each once, in an order that does not change."""
    U = space.enumerate()
    assert space.size == len(U)
    hidden = ("total", "fixed")
    listed = [{k: v for k, v in params.items() if k not in hidden} for params in space.decode(U)]
    expected = brute_force(space)

    def text(params):
        return json.dumps({k: round(v, 9) if isinstance(v, float) else v for k, v in params.items()}, sort_keys=True)

    assert sorted(map(text, listed)) == sorted(map(text, expected))
    assert len(set(space.row_keys(U))) == len(U)
    assert np.array_equal(U, space.enumerate(), equal_nan=True)
    assert np.array_equal(U, space.settle(U), equal_nan=True)


def test_size_of_a_plain_product():
    assert Space(a=Int(1, 10), b=Choice(1, 2, 3), c=Float(0, 1, step=0.25)).size == 10 * 3 * 5


def test_a_continuous_parameter_makes_the_size_none():
    space = Space(a=Int(1, 10), b=Float(0, 1))
    assert space.size is None
    with pytest.raises(SpaceError, match="infinitely many"):
        space.enumerate()


def test_inactive_parameters_do_not_multiply():
    space = Space(kind=Choice("x", "y"), depth=Int(1, 5, when=equals("kind", "x")))
    assert space.size == 6


def test_a_huge_product_with_few_legal_points_is_listed():
    """A requirement cuts as soon as its columns are there, not after the whole product."""
    pairs = {f"x{i}": Int(0, 99) for i in range(6)}
    rules = [require(f"x{i} == 2 * x{i + 1} and x{i} >= 98") for i in range(0, 6, 2)]
    space = Space(*rules, **pairs)
    assert space.size == 1
    assert space.decode(space.enumerate()) == [{"x0": 98, "x1": 49, "x2": 98, "x3": 49, "x4": 98, "x5": 49}]


def test_above_a_million_the_size_is_the_product_and_nothing_is_listed():
    space = Space(require("a != b"), a=Int(0, 9999), b=Int(0, 9999))
    assert space.size == 10**8
    with pytest.raises(SpaceError, match="at most 1000000"):
        space.enumerate()


def test_the_order_is_lexicographic():
    space = Space(a=Int(1, 3), b=Choice("x", "y", when=greater("a", 2)))
    assert space.decode(space.enumerate()) == [{"a": 1}, {"a": 2}, {"a": 3, "b": "x"}, {"a": 3, "b": "y"}]

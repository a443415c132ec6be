"""Conditions: what they compare, how absence counts, and what is refused."""

import pytest

from trainwright.errors import SpaceError
from trainwright.space import (
    Choice,
    Constant,
    Derived,
    Float,
    Int,
    Space,
    all_of,
    any_of,
    equals,
    greater,
    less,
    not_,
    one_of,
)


def active(condition, **values):
    """Tell whether a parameter under the condition is active for values of its possible parents."""
    space = Space(
        child=Float(0, 1, when=condition),
        kind=Choice("a", "b", "c"),
        level=Choice("low", "mid", "high", ordered=True),
        count=Int(1, 9),
        rate=Float(0.0, 1.0),
        sometimes=Int(1, 9, when=equals("kind", "a")),
        fixed=Constant(4),
    )
    params = {"kind": "b", "level": "mid", "count": 5, "rate": 0.3} | values
    problems = space.check(params | {"child": 0.5})
    assert all("'child' is inactive" in problem for problem in problems), problems
    return not problems


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (equals("kind", "b"), True),
        (equals("kind", "a"), False),
        (one_of("kind", "a", "b"), True),
        (one_of("kind", ["a", "c"]), False),
        (less("count", 6), True),
        (less("count", 5), False),
        (greater("count", 4), True),
        (greater("count", 4.5), True),
        (greater("count", 5), False),
        (less("rate", 0.3), False),
        (greater("rate", 0.3), False),
        (equals("rate", 0.3), True),
        (less("level", "high"), True),
        (greater("level", "mid"), False),
        (not_(equals("kind", "b")), False),
        (not_(less("count", 5)), True),
        (not_(greater("count", 4)), False),
        (not_(one_of("kind", "a", "c")), True),
        (all_of(equals("kind", "b"), less("count", 6)), True),
        (all_of(equals("kind", "b"), less("count", 2)), False),
        (any_of(equals("kind", "a"), less("count", 6)), True),
        (not_(any_of(equals("kind", "a"), less("count", 2))), True),
        (not_(all_of(equals("kind", "b"), less("count", 2))), True),
        (not_(not_(equals("kind", "b"))), True),
        (equals("fixed", 4), True),
        (not_(equals("fixed", 4)), False),
        (less("fixed", 4), False),
        (greater("fixed", 1), True),
        (one_of("fixed", 1, 4), True),
    ],
)
def test_comparisons(condition, expected):
    assert active(condition) is expected


@pytest.mark.parametrize("comparison", [equals, less, greater])
def test_a_comparison_on_an_inactive_parameter_is_false_under_not_too(comparison):
    assert not active(comparison("sometimes", 5))
    assert not active(not_(comparison("sometimes", 5)))
    assert not active(not_(one_of("sometimes", 5, 6)))
    assert active(not_(all_of(comparison("sometimes", 5), equals("kind", "c"))))


def test_activity_passes_down_a_chain():
    """A child of an inactive parameter is inactive, in whatever order they are declared."""
    space = Space(c=Float(0, 1, when=greater("b", 0.5)), b=Float(0, 1, when=equals("a", "x")), a=Choice("x", "y"))
    assert space.check({"a": "y"}) == []
    assert space.check({"a": "x", "b": 0.2}) == []
    assert space.check({"a": "x", "b": 0.7, "c": 0.1}) == []
    assert [v.split("'")[1] for v in space.check({"a": "x", "b": 0.7})] == ["c"]


REFUSED = {
    "momentum: condition names 'optimiser'; known: lr, width, optimizer (did you mean 'optimizer'?)": equals(
        "optimiser", "sgd"
    ),
    "momentum: 'adam' is not a value of optimizer; allowed: 'sgd', 'adamw'": equals("optimizer", "adam"),
    "momentum: 'adam' is not a value of optimizer": not_(one_of("optimizer", "sgd", "adam")),
    "momentum: width=7 is outside [16, 256]": equals("width", 7),
    "momentum: width=16.5 is not a whole number": equals("width", 16.5),
    "momentum: lr=7 is outside [1e-05, 0.1]": less("lr", 7),
    "momentum: lr='x' is outside [1e-05, 0.1]": greater("lr", "x"),
    "momentum: optimizer has no order; use one_of, or make it Choice(..., ordered=True)": less("optimizer", "sgd"),
    "conditions form a cycle: momentum -> momentum": equals("momentum", 0.5),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_conditions_that_cannot_hold_are_refused(sentence):
    with pytest.raises(SpaceError) as caught:
        Space(
            lr=Float(1e-5, 1e-1, log=True),
            width=Int(16, 256),
            optimizer=Choice("sgd", "adamw"),
            momentum=Float(0.0, 0.99, when=REFUSED[sentence]),
        )
    assert str(caught.value).startswith(sentence)


def test_cycles_are_shown():
    with pytest.raises(SpaceError, match=r"^conditions form a cycle: a -> b -> a$"):
        Space(a=Float(0, 1, when=less("b", 0.5)), b=Float(0, 1, when=less("a", 0.5)), c=Int(1, 2))
    with pytest.raises(SpaceError, match=r"^conditions form a cycle: a -> c -> b -> a$"):
        Space(
            a=Float(0, 1, when=less("c", 0.5)),
            b=Float(0, 1, when=less("a", 0.5)),
            c=Float(0, 1, when=less("b", 0.5)),
            d=Float(0, 1, when=less("a", 0.5)),
        )


def test_derived_values_carry_no_conditions():
    with pytest.raises(SpaceError, match="a: condition names 'total', which is derived; name what it is computed from"):
        Space(a=Float(0, 1, when=greater("total", 2)), b=Int(1, 3), total=Derived("b * 2"))


def test_constants_compare_numbers_with_numbers():
    with pytest.raises(SpaceError, match="a: mode < 3 compares 'x' with 3; both must be numbers"):
        Space(a=Float(0, 1, when=less("mode", 3)), mode=Constant("x"))


def test_empty_and_foreign_parts_are_refused():
    with pytest.raises(SpaceError, match="all_of: at least one condition is needed"):
        all_of()
    with pytest.raises(SpaceError, match=r"one_of\('a'\): at least one value is needed"):
        one_of("a")
    with pytest.raises(SpaceError, match="not_: 3 is no condition"):
        not_(3)

"""Hypothesis strategies of the whole test suite: parameters, conditions and spaces."""

import numpy as np
from hypothesis import strategies as st

from trainwright.space import (
    Beta,
    Choice,
    Constant,
    Derived,
    Float,
    Int,
    Normal,
    Space,
    all_of,
    any_of,
    equals,
    greater,
    less,
    not_,
    one_of,
    require,
)

__all__ = ["conditions", "finite_spaces", "generators", "parameters", "spaces"]

NAMES = "abcdefg"

generators = st.integers(0, 2**32 - 1).map(np.random.default_rng)
scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text("xyz'é", max_size=3)
values = scalars | st.tuples(scalars, scalars)
priors = st.builds(Normal, st.floats(0, 1), st.floats(0.01, 10)) | st.builds(Beta, st.floats(0.5, 9), st.floats(0.5, 9))


@st.composite
def floats(draw, *, finite=False, when=None):
    log = not finite and draw(st.booleans())
    low = draw(st.floats(1e-9, 1e3)) if log else draw(st.integers(-1000, 1000)) / 8
    if log:
        return Float(low, low * draw(st.floats(1.5, 1e9)), log=True, prior=draw(st.none() | priors), when=when)
    width = draw(st.sampled_from([0.5, 1.0, 2.3, 10.0]))
    step = width / draw(st.sampled_from([1, 2, 2.5, 5])) if finite or draw(st.booleans()) else None
    return Float(low, low + width, step=step, prior=draw(st.none() | priors), when=when)


@st.composite
def ints(draw, *, finite=False, when=None):
    log = draw(st.booleans())
    low = draw(st.integers(1, 30)) if log else draw(st.integers(-50, 50))
    width = draw(st.integers(1, 4 if finite else 10_000))
    step = draw(st.none() | st.integers(1, width)) if not log else None
    return Int(low, low + width, log=log, step=step, prior=draw(st.none() | priors), when=when)


@st.composite
def choices(draw, *, finite=False, when=None):
    listed = draw(st.lists(values, min_size=1, max_size=4 if finite else 8, unique_by=repr))
    weights = draw(st.none() | st.just([1 + i % 3 for i in range(len(listed))]))
    return Choice(*listed, ordered=draw(st.booleans()), weights=weights, when=when)


def parameters(*, finite=False, when=None):
    """Float, Int or Choice of any kind."""
    return st.one_of(kind(finite=finite, when=when) for kind in (floats, ints, choices))


def value_of(parameter):
    """Draw a value of a parameter."""
    if isinstance(parameter, Choice):
        return st.sampled_from(parameter.values)
    if isinstance(parameter, Int):
        return st.integers(0, (parameter.high - parameter.low) // (parameter.step or 1)).map(
            lambda index: parameter.low + index * (parameter.step or 1)
        )
    if parameter.step is not None:
        return st.just(parameter.low)
    return st.floats(parameter.low, parameter.high)


@st.composite
def conditions(draw, known, depth=2):
    """Draw a condition over some of the parameters `known` by name."""
    kind = draw(st.sampled_from(["leaf", "leaf", "all_of", "any_of", "not_"])) if depth else "leaf"
    inner = conditions(known, depth - 1)
    if kind == "not_":
        return not_(draw(inner))
    if kind != "leaf":
        return {"all_of": all_of, "any_of": any_of}[kind](*draw(st.lists(inner, min_size=1, max_size=3)))
    name = draw(st.sampled_from(sorted(known)))
    value, ordered = value_of(known[name]), getattr(known[name], "ordered", True)
    kind = draw(st.sampled_from(["equals", "one_of", *(["less", "greater"] if ordered else [])]))
    if kind == "one_of":
        return one_of(name, *draw(st.lists(value, min_size=2, max_size=3)))
    return {"equals": equals, "less": less, "greater": greater}[kind](name, draw(value))


@st.composite
def spaces(draw, *, finite=False, most=6):
    """Draw a feasible space: parameters in any order, conditions, a constant, a derived value, a mild requirement."""
    known = {}
    for name in NAMES[: draw(st.integers(1, most))]:
        when = draw(st.none() | conditions(known)) if known else None
        known[name] = draw(parameters(finite=finite, when=when))
    order = draw(st.permutations(sorted(known)))
    members = {name: known[name] for name in order}
    requirements = []
    numbers = [name for name, p in known.items() if not isinstance(p, Choice) and p.prior is None]
    if len(numbers) >= 2 and draw(st.booleans()):
        first, second = numbers[:2]
        members["total"] = Derived(f"{first} + {second}")
        # The middles of both, so that about half of all draws or more are legal.
        bound = sum((known[name].low + known[name].high) / 2 for name in (first, second))
        requirements.append(require(draw(st.sampled_from([f"total <= {bound}", f"{first} + {second} <= {bound}"]))))
    if draw(st.booleans()):
        members["fixed"] = Constant(draw(values))
    return Space(*requirements, **members)


def finite_spaces(most=4):
    """Draw spaces of few points."""
    return spaces(finite=True, most=most)

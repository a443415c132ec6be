"""ConfigSpace: a space goes out and comes back with the same legal configurations, or says what cannot go."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import conditions
from trainwright.errors import MissingExtra, SpaceError
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

cs = pytest.importorskip("ConfigSpace")

FULL = Space(
    require("batch * accumulation <= 1024"),
    require("drop != 0.3"),
    require("size not in ('s',) or depth < 5.5"),
    lr=Float(1e-5, 1e-1, log=True, prior=Normal(0.4, 0.2)),
    width=Int(16, 256, log=True),
    drop=Float(0.0, 0.5, step=0.1),
    batch=Choice(32, 64, 128, 256, ordered=True),
    accumulation=Int(1, 8),
    low_end=Float(0, 1),
    high_end=Float(0, 2, prior=Beta(2, 3)),
    optimizer=Choice("sgd", "adamw", weights=[1, 3]),
    momentum=Float(0, 0.99, when=equals("optimizer", "sgd")),
    size=Choice("s", "m", "l", ordered=True),
    depth=Int(1, 9, when=not_(any_of(less("width", 32.5), equals("size", "l")))),
    data=Constant("digits"),
)


def legal_there(space, params):
    """Whether ConfigSpace takes parameters for a configuration of its space."""
    try:
        cs.Configuration(space, values=params)
    except ValueError:
        return False
    return True


def assert_same(ours, theirs, count=40, seed=0):
    """Each side's draws are legal on the other."""
    for params in ours.decode(ours.sample(np.random.default_rng(seed), count)):
        assert legal_there(theirs, params), params
    theirs.seed(seed)
    for params in map(dict, theirs.sample_configuration(count)):
        if legal_there(theirs, params):  # ConfigSpace 1.2 draws children of inactive parents, which it then refuses
            assert ours.check(params) == [], params


def illegal_here(space, seed, count):
    """Return draws that break a requirement of the space."""
    latent = space.settle(space.latent(np.random.default_rng(seed), count))
    return space.decode(latent[~space.legal(latent)])


def test_every_kind_goes_out_and_comes_back():
    """Conditions, requirements, priors, weights and steps survive; what is illegal here is illegal there."""
    theirs = FULL.to_configspace()
    back = Space.from_configspace(theirs)
    for ours in (FULL, back):
        assert_same(ours, theirs, 200)
    broken = illegal_here(FULL, 1, 300)
    assert len(broken) > 50
    for params in broken:
        assert not legal_there(theirs, params), params
        assert back.check(params), params
    assert isinstance(back.parameters["drop"], Choice)
    assert back.parameters["drop"].values == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    assert back.parameters["optimizer"].weights == (1, 3)
    assert back.parameters["high_end"].prior == Beta(2.0, 3.0)
    normal = back.parameters["lr"].prior
    assert (normal.mean, normal.sd) == (pytest.approx(0.4), pytest.approx(0.2))


def test_a_second_round_trip_changes_nothing():
    """What came from ConfigSpace is a fixed point: defaults and the order of parameters are settled."""
    once = Space.from_configspace(FULL.to_configspace())
    assert Space.from_configspace(once.to_configspace()) == once


numbers = st.integers(-40, 40).map(lambda n: n / 4)


@st.composite
def members(draw, when=None):
    """Draw a parameter that ConfigSpace can hold."""
    kind = draw(st.sampled_from(["float", "int", "step", "choice", "levels"]))
    if kind == "float":
        low = draw(numbers)
        return Float(low, low + draw(st.integers(1, 40)) / 4, prior=draw(priors), when=when)
    if kind == "int":
        low, log = draw(st.integers(1, 9)), draw(st.booleans())
        # ConfigSpace's draws of whole numbers with log and a prior lie beside the places that it compares.
        return Int(low, low + draw(st.integers(1, 30)), log=log, prior=None if log else draw(priors), when=when)
    if kind == "step":
        return Int(0, draw(st.integers(2, 20)), step=2, when=when)
    values = draw(st.sampled_from([("a", "b", "c"), (1, 2, 4, 8), (None, "x"), (0.5, 0.25), ((1, 2), (3, 4))]))
    return Choice(*values, ordered=kind == "levels", when=when)


priors = st.none() | st.builds(Normal, st.floats(0, 1), st.floats(0.05, 3)) | st.builds(Beta, st.just(2), st.just(3))


@st.composite
def exported(draw):
    known = {}
    for name in "abcde"[: draw(st.integers(2, 5))]:
        when = draw(st.none() | conditions(known)) if known else None
        known[name] = draw(members(when=when))
    free = [name for name, p in known.items() if isinstance(p, Float | Int)]
    rules = []
    for name in free:
        parameter = known[name]
        middle = (parameter.low + parameter.high) / 2
        other = draw(st.sampled_from(free))
        texts = [
            f"{name} <= {middle}", f"not {name} > {middle}", f"{name} >= {middle} or {other} < {known[other].high}",
            f"{name} != {middle} and {name} * {other} < {parameter.high}",
            f"{name} in ({parameter.low}, {parameter.high}) or {name} != {other}",
        ]  # fmt: skip
        rules += draw(st.lists(st.sampled_from(texts).map(require), max_size=1))
    return Space.of(known, *rules)


@settings(max_examples=60)
@given(space=exported(), seed=st.integers(0, 99))
def test_draws_of_either_side_are_legal_on_the_other(space, seed):
    """For any space: out, back, and the draws of all three are legal in all three, or the refusal is a sentence."""
    try:
        theirs = space.to_configspace()
    except SpaceError:
        return
    back = Space.from_configspace(theirs)
    for ours in (space, back):
        assert_same(ours, theirs, 12, seed)
    for params in illegal_here(space, seed, 30):
        assert not legal_there(theirs, params), params
        assert back.check(params), params


@pytest.fixture
def foreign():
    """Return a ConfigurationSpace as its own users write it."""
    space = cs.ConfigurationSpace(seed=3)
    kernel = cs.Categorical("kernel", ["rbf", "poly", "linear"], weights=[0.5, 0.3, 0.2])
    c = cs.Float("C", (0.01, 100.0), log=True, default=1.0)
    degree = cs.Integer("degree", (2, 8))
    gamma = cs.Float("gamma", (0.001, 1.0), log=True, distribution=cs.Normal(0.1, 0.5))
    shrink = cs.OrdinalHyperparameter("shrink", ["no", "some", "much"], default_value="some")
    tolerance = cs.Float("tolerance", (0.0, 1.0), distribution=cs.Beta(2, 5))
    steps = cs.NormalIntegerHyperparameter("steps", mu=40, sigma=10, lower=1, upper=100)
    space.add(kernel, c, degree, gamma, shrink, tolerance, steps, cs.Constant("seed", 7))
    space.add(cs.EqualsCondition(degree, kernel, "poly"))
    space.add(cs.AndConjunction(cs.InCondition(gamma, kernel, ["rbf", "poly"]), cs.NotEqualsCondition(gamma, c, 0.5)))
    space.add(cs.OrConjunction(cs.GreaterThanCondition(steps, c, 1.5), cs.LessThanCondition(steps, shrink, "much")))
    space.add(
        cs.ForbiddenAndConjunction(
            cs.ForbiddenEqualsClause(kernel, "linear"),
            cs.ForbiddenOrConjunction(
                cs.ForbiddenGreaterThanClause(c, 10.0), cs.ForbiddenInClause(shrink, ["no", "much"])
            ),
        ),
        cs.ForbiddenGreaterThanRelation(gamma, tolerance),
        cs.ForbiddenLessThanClause(shrink, "some"),
        cs.ForbiddenEqualsClause(degree, 4),
    )
    return space


def test_a_space_of_theirs(foreign):
    """Every kind of condition, clause and relation comes in; what compares a plain number does not go out again."""
    space = Space.from_configspace(foreign)
    assert_same(space, foreign, 200)
    with pytest.raises(SpaceError, match=r"'not \(kernel == 'linear' and C > 10.0\)' has parameters of many values"):
        space.to_configspace()
    for params in illegal_here(space, 0, 300):
        assert not legal_there(foreign, params), params
    assert set(map(str, space.requirements)) == {
        "not (kernel == 'linear' and C > 10.0)",
        "not (kernel == 'linear' and shrink in ('no', 'much',))",
        "degree != 4",
        "gamma <= tolerance",
        "shrink not in ('no',)",
    }
    parameters = space.parameters
    assert parameters["gamma"].when == all_of(one_of("kernel", "rbf", "poly"), not_(equals("C", 0.5)))
    assert parameters["steps"].when == any_of(greater("C", 1.5), less("shrink", "much"))
    assert (parameters["C"].default, parameters["shrink"].default, parameters["seed"]) == (1.0, "some", Constant(7))
    assert (parameters["steps"].prior.mean, parameters["steps"].prior.sd) == (39 / 99, 10 / 99)


def test_draws_follow_the_same_law(foreign):
    """Priors and weights mean the same on both sides: quantiles of 4,000 draws agree."""
    space = cs.ConfigurationSpace(seed=0)
    space.add(
        cs.Categorical("kernel", ["rbf", "poly"], weights=[0.8, 0.2]),
        cs.Float("gamma", (0.001, 1.0), log=True, distribution=cs.Normal(0.1, 0.5)),
        cs.Float("tolerance", (0.0, 1.0), distribution=cs.Beta(2, 5)),
    )
    ours = Space.from_configspace(space)
    mine = ours.decode(ours.sample(np.random.default_rng(0), 4000))
    theirs = [dict(c) for c in space.sample_configuration(4000)]
    for name in ("gamma", "tolerance"):
        quantiles = [
            np.quantile([math.log(p[name] + 1e-3) for p in draws], [0.1, 0.5, 0.9]) for draws in (mine, theirs)
        ]
        assert quantiles[0] == pytest.approx(quantiles[1], abs=0.12)
    shares = [np.mean([p["kernel"] == "rbf" for p in draws]) for draws in (mine, theirs)]
    assert shares == [pytest.approx(0.8, abs=0.03)] * 2


def test_defaults_that_are_forbidden_together_are_drawn_anew():
    """ConfigSpace wants a legal default: where its own is none, one is found."""
    space = Space(require("a + b >= 18"), a=Int(1, 10), b=Int(1, 10))
    assert space.check(dict(space.to_configspace().get_default_configuration())) == []


def test_combinations_of_values_are_forbidden():
    space = Space(require("a * b <= 6"), a=Int(1, 4), b=Choice(1, 2, 3))
    theirs = space.to_configspace()
    assert_same(space, theirs)
    assert not legal_there(theirs, {"a": 3, "b": 3})
    assert Space.from_configspace(theirs).size == space.size == 9


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (Space(a=Int(1, 4), b=Derived("2 * a")), "b is derived"),
        (
            Space(require("x * y < 1"), x=Float(0, 2), y=Float(0, 2)),
            r"'x \* y < 1' has parameters of many values, which",
        ),
        (Space(require("a * b < 1e4"), a=Int(1, 400), b=Int(1, 400)), "forbid up to 1000 combinations"),
        (Space(x=Float(0, 1, step=0.0001)), "step=0.0001 makes 10001 values, .* allow at most 1000"),
        (Space(x=Float(0, 1, step=0.1, prior=Beta(2, 2))), "a stepped number has a prior"),
        (Space(x=Float(0, 1, prior=Beta(0.5, 2))), "has a shape below 1"),
        (Space(x=Float(100, 1000, log=True, prior=Normal(0.5, 0.1))), "no sigma for Normal"),
        (Space(x=Float(1 / 3, 1)), "has more than 13 decimals, .* give 0.3333333333333 if"),
        (Space(x=Choice(1, 2.5)), "x: it would make 1.0 of 1"),
        (Space(x=Choice(1, True, "a")), "its values 1 and True are equal in Python"),
        (Space(x=Choice(1, 2, ordered=True, weights=[1, 2])), "an ordered choice has weights"),
        (Space(x=Float(0, 1, when=equals("c", 2)), y=Int(1, 2), c=Constant(1)), "x: is never active, as c == 2"),
    ],
)
def test_what_cannot_go_out_is_refused(space, sentence):
    """One sentence: the parameter or requirement, what is wrong with it, and how to mend it."""
    with pytest.raises(SpaceError, match=sentence) as refusal:
        space.to_configspace()
    assert "\n" not in str(refusal.value)


def test_what_cannot_come_in_is_refused():
    space = cs.ConfigurationSpace({"clf:kind": ["a", "b"], "x": (0.0, 1.0)})
    assert Space.from_configspace(space).parameters["clf:kind"].values == ("a", "b")
    space.add(cs.ForbiddenEqualsClause(space["clf:kind"], "b"))
    with pytest.raises(SpaceError, match="a forbidden clause names 'clf:kind', which no requirement can write; rename"):
        Space.from_configspace(space)
    with pytest.raises(SpaceError, match=r"got 3; allowed: a ConfigSpace\.ConfigurationSpace"):
        Space.from_configspace(3)
    wild = cs.ConfigurationSpace()
    wild.add(cs.Constant("x", {"a": 1}), cs.Integer("y", (1, 2)))
    with pytest.raises(SpaceError, match="is not a scalar"):
        Space.from_configspace(wild)


def test_conditional_constants_become_choices_of_one():
    space = cs.ConfigurationSpace({"a": ["x", "y"]})
    space.add(cs.Constant("b", 5))
    space.add(cs.EqualsCondition(space["b"], space["a"], "x"))
    ours = Space.from_configspace(space)
    assert ours.parameters["b"] == Choice(5, default=5, when=equals("a", "x"))
    assert_same(ours, space)


def test_without_the_package_the_line_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ConfigSpace", None)
    for call in (FULL.to_configspace, lambda: Space.from_configspace(None)):
        with pytest.raises(MissingExtra, match=r'needs ConfigSpace: pip install "\.\[configspace\]"'):
            call()

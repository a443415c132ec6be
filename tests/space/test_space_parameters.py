"""Parameters: the column maps of each kind, and one clear sentence for each contradiction."""

import math

import numpy as np
import pytest

from trainwright.errors import SpaceError, TrialError
from trainwright.space import Beta, Choice, Constant, Derived, Float, Int, Normal, Space, equals
from trainwright.space.columns import Column


def units(parameter, *given):
    space = Space(x=parameter)
    return [space.encode({"x": value})[0] for value in given]


class TestColumnMaps:
    """The formulas of each kind, by hand."""

    def test_float(self):
        assert units(Float(-1, 3), -1, 0, 3) == [0, 0.25, 1]

    def test_float_log(self):
        assert units(Float(1e-4, 1, log=True), 1e-4, 1e-2, 1) == pytest.approx([0, 0.5, 1])

    def test_float_step_counts_from_low_and_stays_below_high(self):
        parameter = Float(0.1, 1.0, step=0.2)
        assert Space(x=parameter).size == 5
        assert units(parameter, 0.1, 0.3, 0.9) == pytest.approx([0.1, 0.3, 0.9])

    def test_grid_values_are_the_decimal_ones(self):
        space = Space(x=Float(0.1, 1.0, step=0.1))
        assert [params["x"] for params in space.decode(space.enumerate())] == [i / 10 for i in range(1, 11)]

    def test_a_step_without_short_decimals_still_makes_a_grid(self):
        space = Space(x=Float(0, 1, step=1 / 3))
        assert [params["x"] for params in space.decode(space.enumerate())] == pytest.approx([0, 1 / 3, 2 / 3, 1])

    def test_int(self):
        assert units(Int(1, 4), 1, 2, 4) == [0.125, 0.375, 0.875]

    def test_int_log(self):
        start, end = math.log(15.5), math.log(256.5)
        assert units(Int(16, 256, log=True), 16, 64) == pytest.approx(
            [(math.log(k) - start) / (end - start) for k in (16, 64)]
        )

    def test_ordinal(self):
        assert units(Choice("low", "mid", "high", ordered=True), "low", "high") == pytest.approx([1 / 6, 5 / 6])

    def test_choice(self):
        assert units(Choice("a", "b", "c"), "a", "c") == [0, 2]

    @pytest.mark.parametrize(
        "parameter", [Int(-7, 9), Int(1, 3000, log=True), Int(0, 100, step=7), Int(-(2**49), 2**49 - 1)]
    )
    def test_whole_numbers_come_back_exactly(self, parameter):
        step = parameter.step or 1
        last = (parameter.high - parameter.low) // step
        indexes = {*range(min(last, 3000) + 1), last - 1, last}
        space = Space(x=parameter)
        for value in (parameter.low + step * index for index in indexes):
            assert space.decode(space.encode({"x": value})[None])[0]["x"] == value

    @pytest.mark.parametrize("u", [0.0, 1.0, -0.5, 1.5, math.nextafter(1, 0)])
    @pytest.mark.parametrize(
        "parameter", [Float(0.3, 0.7), Float(1e-7, 3e-3, log=True), Int(3, 10, log=True), Float(0, 1, step=0.3)]
    )
    def test_units_outside_and_at_the_ends_stay_within_the_bounds(self, parameter, u):
        space = Space(x=parameter)
        U = space.settle(np.array([[u]]))
        assert 0 <= U[0, 0] <= 1
        [params] = space.decode(U)
        assert parameter.low <= params["x"] <= parameter.high

    def test_columns_describe_themselves(self):
        space = Space(
            f=Float(0, 1),
            s=Float(0, 1, step=0.5),
            i=Int(1, 8, log=True),
            c=Choice("a", "b"),
            o=Choice(1, 2, ordered=True),
        )
        assert space.columns == (
            Column(name="f", kind="unit", points=None, ordered=False),
            Column(name="s", kind="unit", points=3, ordered=True),
            Column(name="i", kind="unit", points=8, ordered=True),
            Column(name="c", kind="choice", points=2, ordered=False),
            Column(name="o", kind="unit", points=2, ordered=True),
        )


class TestValues:
    """What reaches the training function."""

    def test_types_are_those_of_the_parameter(self):
        space = Space(f=Float(0, 2), i=Int(0, 2), c=Choice(1, 1.0, True, "1", None, (1, 2)), k=Constant((3, "x")))
        for params in space.decode(space.sample(np.random.default_rng(0), 50)):
            assert type(params["f"]) is float
            assert type(params["i"]) is int
            assert params["k"] == (3, "x")
        assert {repr(p["c"]) for p in space.decode(space.sample(np.random.default_rng(0), 200))} == {
            "1", "1.0", "True", "'1'", "None", "(1, 2)",
        }  # fmt: skip

    def test_choice_values_are_told_apart_by_their_json(self):
        """1, 1.0 and True are equal in Python and three values here."""
        space = Space(c=Choice(1, 1.0, True))
        assert [space.encode({"c": value})[0] for value in (1, 1.0, True)] == [0, 1, 2]
        assert len({space.configuration_of({"c": value}).key for value in (1, 1.0, True)}) == 3

    def test_numpy_scalars_are_taken_as_numbers(self):
        space = Space(f=Float(0, np.float64(2)), i=Int(np.int64(0), 5), c=Choice(np.int32(3), "x"))
        found = space.configuration_of({"f": np.float32(0.5), "i": np.int16(4), "c": np.int64(3)})
        assert {type(value) for value in found.params.values()} == {float, int}

    def test_whole_floats_are_taken_as_ints_and_ints_as_floats(self):
        space = Space(f=Float(0, 2), i=Int(0, 5))
        assert repr(space.configuration_of({"f": 1, "i": 4.0}).params) == "{'f': 1.0, 'i': 4}"

    def test_lists_are_taken_as_the_tuples_that_json_made_them_of(self):
        assert Space(c=Choice((1, 2), (3,))).configuration_of({"c": [3]}).params == {"c": (3,)}


REFUSED = {
    "lr: low 1 is not below high 0; give Float(0, 1)": lambda: Float(1, 0),
    "lr: low 3 is not below high 3; give Constant(3)": lambda: Int(3, 3),
    "lr: log=True needs low > 0, got 0; use a small bound such as 1e-6, or log=False": lambda: Float(0, 1, log=True),
    "lr: log=True needs low >= 1, got 0; use Int(1, ...), or log=False": lambda: Int(0, 9, log=True),
    "lr: step and log cannot be combined; list the values: Choice(1, ..., ordered=True)": lambda: Int(
        1, 9, log=True, step=2
    ),
    "lr: step must be above 0 and at most high - low = 1, got 2": lambda: Float(0, 1, step=2),
    "lr: step must be above 0 and at most high - low = 1, got 0": lambda: Float(0, 1, step=0),
    "lr: step: got 'x'; allowed: a number": lambda: Float(0, 1, step="x"),
    "lr: low: got nan; allowed: a number": lambda: Float(math.nan, 1),
    "lr: high: got inf; allowed: a number": lambda: Float(0, math.inf),
    "lr: high: got True; allowed: a number": lambda: Float(0, True),
    "lr: low: got '1'; allowed: a whole number": lambda: Int("1", 2),
    "lr: high: got 2.5; allowed: a whole number": lambda: Int(1, 2.5),
    "lr: high: got 1152921504606846976; allowed: a whole number from": lambda: Int(1, 2**60),
    "lr: [0, 9007199254740992] holds more than 2**50 points; narrow it": lambda: Int(0, 2**53),
    "lr: log=True needs high <= 2**40": lambda: Int(1, 2**45, log=True),
    "lr: step 1e-17 makes more than 2**50 points": lambda: Float(0, 1, step=1e-17),
    "lr: the range from -1.5e+308 to 1.5e+308 is too wide": lambda: Float(-1.5e308, 1.5e308),
    "lr: log: got 'yes'; allowed: true, false": lambda: Float(1, 2, log="yes"),
    "lr: default 3 is outside [0, 1]": lambda: Float(0, 1, default=3),
    "lr: default True is not a number": lambda: Float(0, 1, default=True),
    "lr: default 2.5 is not a whole number": lambda: Int(0, 4, default=2.5),
    "lr: default 0.3 is not on the grid 0, 0.25, ...; the nearest point is 0.25": lambda: Float(
        0, 1, step=0.25, default=0.3
    ),
    "lr: default 'c' is not a value of lr; allowed: 'a', 'b'": lambda: Choice("a", "b", default="c"),
    "lr: 'wide' is no prior; give Normal(mean, sd) or Beta(a, b)": lambda: Float(0, 1, prior="wide"),
    "lr: Normal.mean: got 64; allowed: a number from 0 (the parameter's low) to 1 (its high)": lambda: Int(
        1, 99, prior=Normal(64, 1)
    ),
    "lr: Normal.sd: got 0; allowed: a number > 0": lambda: Float(0, 1, prior=Normal(0.5, 0)),
    "lr: Beta.b: got -1; allowed: a number > 0": lambda: Float(0, 1, prior=Beta(1, -1)),
    "lr: when='x' is no condition; write for example when=equals('optimizer', 'sgd')": lambda: Float(0, 1, when="x"),
    "lr: at least one value is needed": Choice,
    "lr: value 'sgd' is listed twice": lambda: Choice("sgd", "adam", "sgd"),
    "lr: value [1, 2] is not a scalar; use the tuple (1, 2)": lambda: Choice([1, 2]),
    "lr: value {'a': 1} is not a scalar; use a number, text, True, False, None, or a tuple of these": lambda: Choice(
        {"a": 1}
    ),
    "lr: value ((1, 2), 3) is not a scalar": lambda: Choice(((1, 2), 3)),
    "lr: value nan is not finite": lambda: Choice(math.nan),
    "lr: 1 weights for 2 values; give one for each": lambda: Choice(1, 2, weights=[1]),
    "lr: sum of weights: got 0; allowed: a number > 0": lambda: Choice(1, 2, weights=[0, 0]),
    "lr: weights: got (-1, 2); allowed: a list of a number >= 0": lambda: Choice(1, 2, weights=[-1, 2]),
    "lr: ordered: got 1; allowed: true, false": lambda: Choice(1, 2, ordered=1),
    "lr: value [1] is not a scalar; use the tuple (1,)": lambda: Constant([1]),
    "lr: 3 is no text; write for example Derived('batch * accumulation')": lambda: Derived(3),
    "lr: 0.1 is no parameter; give Float, Int, Choice, Constant or Derived, such as Constant(0.1)": lambda: 0.1,
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_contradictions_are_refused_in_one_sentence(sentence):
    with pytest.raises(SpaceError) as caught:
        Space(lr=REFUSED[sentence](), other=Float(0, 1))
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (3.0, "x=3.0 is outside [0, 1]"),
        (True, "x=True is not a number; allowed: a number in [0, 1]"),
        ("a", "x='a' is not a number; allowed: a number in [0, 1]"),
        (None, "x=None is not a number; allowed: a number in [0, 1]"),
        (math.nan, "x=nan is outside [0, 1]"),
        (10**400, "is outside [0, 1]"),
    ],
)
def test_values_that_a_float_cannot_take(value, sentence):
    with pytest.raises(TrialError) as caught:
        Space(x=Float(0, 1)).encode({"x": value})
    assert sentence in str(caught.value)


@pytest.mark.parametrize("value", [1.5, True, "1", math.nan, math.inf, 10**400, 99, [1]])
def test_values_that_an_int_cannot_take(value):
    with pytest.raises(TrialError, match=r"is not a whole number|is outside"):
        Space(x=Int(0, 9)).encode({"x": value})


@pytest.mark.parametrize("value", ["c", 1, ("a",), {"a"}, math.nan, object()])
def test_values_that_a_choice_cannot_take(value):
    with pytest.raises(TrialError, match="is not a value of x; allowed: 'a', 'b'"):
        Space(x=Choice("a", "b")).encode({"x": value})


def test_a_space_without_anything_that_varies_is_refused():
    with pytest.raises(SpaceError, match="give at least one Float, Int or Choice"):
        Space(epochs=Constant(3))


def test_names_that_are_no_identifiers():
    space = Space.of({"weight decay": Float(0, 1), "lambda": Int(1, 2)})
    assert list(space.parameters) == ["weight decay", "lambda"]
    with pytest.raises(SpaceError, match="parameter name '' is not allowed"):
        Space.of({"": Float(0, 1)})
    with pytest.raises(SpaceError, match="parameter name 3 is not allowed"):
        Space.of({3: Float(0, 1)})


def test_parameters_read_as_they_are_written():
    space = Space(
        a=Float(0, 1, step=0.5), b=Choice("x", 1, ordered=True), c=Constant(2), d=Int(1, 2, when=equals("c", 2))
    )
    assert eval(repr(space), {**globals(), "require": None}) == space  # noqa: S307  # our own repr

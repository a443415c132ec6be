"""Requirements and derived values: the little language, what it refuses, and where rules apply."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.errors import SpaceError
from trainwright.space import Choice, Constant, Derived, Float, Int, Space, equals, require

ALLOWED = "allowed: names, numbers, strings, + - * / // % **, comparisons, and or not in, min max abs log ceil floor"


def space_of(*requirements):
    return Space(
        *requirements,
        a=Int(-9, 9),
        b=Int(1, 9),
        x=Float(0.5, 4),
        name=Choice("one", "two", "three"),
        flag=Choice(True, False),
        mixed=Choice(1, "1", None),
        scale=Constant(3),
    )


@pytest.mark.parametrize(
    "text",
    [
        "a + b - x * 2 / b <= scale",
        "a // b == 1 or a % b > 3",
        "a ** 2 < b ** 3 - -x",
        "-9 <= a < b <= 9",
        "not (a > 0 and b > 5)",
        "a in (1, 2, b) or b not in [3, 4]",
        "name == 'one' or name in ('two', 'none')",
        "name != 'two' and flag",
        "flag == True or not flag",
        "mixed == '1' or mixed in (2, None) or mixed == 'x'",
        "mixed != 1",
        "min(a, b, 3) == 3 or max(a, b) < 5",
        "abs(a) >= ceil(x) or floor(x) == 1",
        "log(x) > 0.3",
        "flag + 1 == 2",
        "b >= scale",
    ],
)
def test_text_means_what_python_means(text):
    """Column-wise evaluation agrees with Python's own, row by row."""
    import math

    space = space_of()
    U = space.sample(np.random.default_rng(0), 300)
    words = {"min": min, "max": max, "abs": abs, "log": math.log, "ceil": math.ceil, "floor": math.floor}
    expected = [eval(text, {"__builtins__": {}} | words, params) for params in space.decode(U)]  # noqa: S307  # the oracle
    found = space_of(require(text)).legal(U)
    assert found.tolist() == [bool(value) for value in expected]
    assert 0 < found.sum() < 300 or text == "flag == True or not flag"


@settings(max_examples=60)
@given(
    st.recursive(
        st.sampled_from(["a", "b", "x", "2", "0.5"]),
        lambda inner: st.builds(
            lambda left, op, right: f"({left} {op} {right})", inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner
        ),
        max_leaves=6,
    )
)
def test_arithmetic_agrees_with_python(text):
    space = Space(a=Int(1, 9), b=Int(1, 9), x=Float(0.5, 4), value=Derived(f"a + {text}"))
    U = space.settle(space.latent(np.random.default_rng(0), 20))
    for params in space.decode(U):
        value = params.pop("value")
        try:
            assert value == pytest.approx(eval(f"a + {text}", {}, params), rel=1e-12)  # noqa: S307  # the oracle
        except ZeroDivisionError:
            continue  # columns follow IEEE 754, in which an infinity on the way may turn finite again


NOT_ALLOWED = {
    "os.system(1)": "os.system(1)",
    "a.real < 1": "a.real",
    "__import__('os') == 1": "__import__('os')",
    "a[0] < 1": "a[0]",
    "(lambda: 1)() == a": "(lambda: 1)()",
    "a if b else x": "a if b else x",
    "[c for c in a] == 1": "[c for c in a]",
    "a in [c for c in (1, 2)]": "[c for c in (1, 2)]",
    "a & 1 == 0": "a & 1",
    "~a == 0": "~a",
    "a is 1": "a is 1",
    "f'{name}' == 'x'": "f'{name}'",
    "name == b'x'": "b'x'",
    "a == ...": "...",
    "a == 2j": "2j",
    "(y := a) == 1": "(y := a)",
    "max(*a) < 1": "*a",
    "log(a, base=2) < 1": "log(a, base=2)",
    "min(a, b)(3) < 1": "min(a, b)(3)",
    "(a, 1) == 1": "(a, 1)",
}
REFUSED = {text: f"{part!r} is not allowed; {ALLOWED}" for text, part in NOT_ALLOWED.items()} | {
    "a <": f"cannot be read (invalid syntax); {ALLOWED}",
    "a = 1": "cannot be read (",
    "": "cannot be read (",
    "(" * 300 + "a" + ")" * 300 + " < 1": "cannot be read (too many nested parentheses)",
    "-" * 100_000 + "a < 1": "cannot be read (",
    "a + b": "gives a value, not true or false; compare it",
    "a and b > 1": "a is neither true nor false; compare it with something",
    "name < 1": "name is no number, so it can only be compared by == != in",
    "name + 1 == 2": "name is no number",
    "a == 'one'": "a and 'one' are number and text, never equal",
    "a in b": "'in' needs a list of values on its right",
    "min(a) < 1": "min takes two or more numbers",
    "log(a, b) < 1": "log takes one number",
    "widht < 1": "names 'widht'; known: a, b, x, name, flag, mixed, scale",
    "nam == 'one'": "names 'nam'; known: a, b, x, name, flag, mixed, scale (did you mean 'name'?)",
    "1 < 2": "names no parameter; compare at least one",
    f"a < 1{'0' * 400}": "is too large a number",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:30] or "empty")
def test_what_the_language_refuses(text):
    with pytest.raises(SpaceError) as caught:
        space_of(require(text))
    sentence = str(caught.value)
    assert sentence.startswith(f"requirement {text.strip()!r}: ")
    assert REFUSED[text] in sentence


def test_a_requirement_applies_only_where_all_its_names_are_active():
    space = Space(
        require("depth * width <= 4"), kind=Choice("x", "y"), width=Int(1, 9), depth=Int(1, 9, when=equals("kind", "x"))
    )
    assert space.check({"kind": "y", "width": 9}) == []
    [violation] = space.check({"kind": "x", "width": 9, "depth": 2})
    assert violation == "depth=2, width=9 breaks 'depth * width <= 4'"


@pytest.mark.parametrize("rule", [3, None, lambda a: a < 3])
def test_a_requirement_is_a_text(rule):
    with pytest.raises(SpaceError, match="allowed: a text over names of parameters"):
        require(rule)
    with pytest.raises(SpaceError, match="'a < 1' is no requirement; write require"):
        Space("a < 1", a=Int(1, 2))


class TestDerived:
    """Values computed after sampling."""

    def test_whole_numbers_stay_whole(self):
        space = Space(
            a=Int(2, 2**20), b=Choice(2, 4), total=Derived("a * b"), half=Derived("a / b"), big=Derived("a > b"),
            rest=Derived("a % b"), power=Derived("b ** 2"), up=Derived("ceil(a / 3)"),
        )  # fmt: skip
        for params in space.decode(space.sample(np.random.default_rng(0), 20)):
            assert params["total"] == params["a"] * params["b"]
            assert {name: type(value) for name, value in params.items()} == {
                "a": int, "b": int, "total": int, "half": float, "big": bool, "rest": int, "power": int, "up": int,
            }  # fmt: skip

    def test_chains_constants_and_rules(self):
        space = Space(
            require("world <= 100"), world=Derived("batch * ranks"), batch=Derived("micro * steps"), micro=Int(1, 8),
            steps=Int(1, 8), ranks=Constant(4),
        )  # fmt: skip
        U = space.sample(np.random.default_rng(0), 100)
        for params in space.decode(U):
            assert params["world"] == params["micro"] * params["steps"] * 4 <= 100
        assert space.configuration_of({"micro": 2, "steps": 3}).params == {
            "world": 24, "batch": 6, "micro": 2, "steps": 3, "ranks": 4,
        }  # fmt: skip
        assert space.check({"micro": 8, "steps": 8}) == ["world=256 breaks 'world <= 100'"]
        assert space.check({"micro": 2, "steps": 3, "batch": 7}) == ["batch=7 differs from its derived value 6"]

    def test_they_are_absent_where_they_or_their_names_are_inactive(self):
        space = Space(
            kind=Choice("x", "y"), a=Int(1, 9, when=equals("kind", "x")), twice=Derived("a * 2"), b=Int(1, 9),
            more=Derived("b + 1", when=equals("kind", "y")),
        )  # fmt: skip
        for params in space.decode(space.sample(np.random.default_rng(0), 50)):
            assert ("twice" in params) == ("a" in params) == ("more" not in params)

    def test_a_value_that_is_no_finite_number_is_illegal(self):
        space = Space(a=Int(0, 3), b=Int(1, 9), share=Derived("b / a"))
        assert all(params["a"] > 0 for params in space.decode(space.sample(np.random.default_rng(0), 100)))
        assert space.check({"a": 0, "b": 2}) == ["share=inf breaks 'share is finite'"]

    def test_the_key_leaves_them_out(self):
        plain, derived = Space(a=Int(1, 9)), Space(a=Int(1, 9), twice=Derived("a * 2"))
        assert plain.configuration_of({"a": 3}).key == derived.configuration_of({"a": 3}).key

    def test_what_is_refused(self):
        with pytest.raises(SpaceError, match="derived values form a cycle: x -> y -> x"):
            Space(x=Derived("y + 1"), y=Derived("x + 1"), a=Int(1, 2))
        with pytest.raises(SpaceError, match="x: 'name' gives no number; derive numbers only"):
            Space(x=Derived("name"), name=Choice("a", "b"))
        with pytest.raises(SpaceError, match=r"x: 'aa \+ 1': names 'aa'; known: x, ab"):
            Space(x=Derived("aa + 1"), ab=Int(1, 2))
        with pytest.raises(SpaceError, match=r"x: 'a\.b': 'a\.b' is not allowed"):
            Space(x=Derived("a.b"), a=Int(1, 2))

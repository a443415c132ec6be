"""Effects of kinds: known ones come back, few measurements are trusted less, what was not measured has none."""

import numpy as np
import pytest
from benchmarks.plan.effects import effects_of

from trainwright.errors import InputError

TRUTH = dict(zip("abcdefgh", (0.2, -0.1, 0.0, 0.05, -0.2, 0.1, 0.15, -0.15), strict=True))


def residuals(kinds, noise, seed=0):
    """Return log(predicted / measured) of measurements whose kinds take longer by the known effects, and noise."""
    return -np.array([TRUTH[kind] for kind in kinds]) + noise * np.random.default_rng(seed).standard_normal(len(kinds))


def test_known_effects_come_back():
    """With many measurements of each kind the factors are those of the kinds, and so is the spread."""
    kinds = list(TRUTH) * 50
    found = effects_of(residuals(kinds, 0.02), kinds)
    assert found.factors(list(TRUTH)) == pytest.approx(np.exp(list(TRUTH.values())), rel=0.02)
    assert found.within == pytest.approx(0.02, rel=0.1)
    assert found.between == pytest.approx(np.std(list(TRUTH.values()), ddof=1), rel=0.05)


def test_one_measurement_is_trusted_less():
    """An effect is shrunk, the more the fewer measurements there are; a kind that was not measured has none."""
    kinds = [*"abcdefg" * 4, "h"]
    known = residuals(kinds, 0.1)
    found = effects_of(known, kinds)
    ratios = {kind: found.effects[kind] / -np.mean(known[[each == kind for each in kinds]]) for kind in "ah"}
    assert 0 < ratios["h"] < ratios["a"] < 1
    assert found.factors(["z", ("never", 1)]) == pytest.approx([1.0, 1.0])


def test_residuals_are_of_the_others():
    """What is left of a measurement is what the effect of its kind, found without it, leaves."""
    kinds = list("aaabbbcccdd")
    known = residuals(kinds, 0.05)
    found = effects_of(known, kinds)
    v, w = found.between**2, found.within**2
    for place, kind in enumerate(kinds):
        rest = [-known[i] for i in range(len(kinds)) if kinds[i] == kind and i != place]
        effect = np.mean(rest) * len(rest) * v / (len(rest) * v + w)
        assert found.residuals[place] == pytest.approx(known[place] + effect)


def test_kinds_that_do_not_differ():
    """Noise alone gives no effects, and no noise at all gives them whole."""
    kinds = list("ab" * 20)
    alike = np.tile([0.1, 0.1, -0.1, -0.1], 10)
    assert set(effects_of(alike, kinds).effects.values()) == {0.0}
    exact = effects_of(residuals(kinds, 0.0), kinds)
    assert exact.effects == pytest.approx({"a": TRUTH["a"], "b": TRUTH["b"]})


@pytest.mark.parametrize("kinds", [["a"], ["a", "a", "a"], ["a", "b", "c"]])
def test_refused(kinds):
    """One kind a residual, two different, one of them twice."""
    with pytest.raises(InputError, match="kinds: got"):
        effects_of([0.1, 0.2, 0.3], kinds)

"""Sampling: marginals follow the priors, rejection keeps the law, and what nothing meets is named."""

import numpy as np
import pytest
from scipy import stats

from trainwright.errors import SpaceError, SpaceInfeasible
from trainwright.space import Beta, Choice, Float, Int, Normal, Space, equals, require

COUNT = 4000
ALPHA = 1e-4  # seeds are fixed, so this only has to be kind to the first run


def column(parameter, count=COUNT):
    space = Space(x=parameter)
    return [params["x"] for params in space.decode(space.sample(np.random.default_rng(1), count))]


@pytest.mark.parametrize(
    ("parameter", "law"),
    [
        (Float(-1, 3), stats.uniform(-1, 4)),
        (Float(1e-5, 1e-1, log=True), stats.loguniform(1e-5, 1e-1)),
        (Float(0, 2, prior=Beta(2, 5)), stats.beta(2, 5, scale=2)),
        (Float(0, 1, prior=Normal(0.2, 0.3)), stats.truncnorm(-0.2 / 0.3, 0.8 / 0.3, 0.2, 0.3)),
    ],
)
def test_continuous_marginals(parameter, law):
    """Kolmogorov-Smirnov against the law."""
    assert stats.kstest(column(parameter), law.cdf).pvalue > ALPHA


def test_a_prior_is_a_law_of_the_log_scaled_unit():
    values = column(Float(1e-4, 1, log=True, prior=Normal(0.5, 0.125)))
    law = stats.truncnorm(-4, 4, 0.5, 0.125)
    assert stats.kstest(1 + np.log10(values) / 4, law.cdf).pvalue > ALPHA


@pytest.mark.parametrize(
    ("parameter", "shares"),
    [
        (Int(1, 5), dict.fromkeys(range(1, 6), 0.2)),
        (Int(0, 10, step=5), dict.fromkeys((0, 5, 10), 1 / 3)),
        (Float(0, 1, step=0.25), dict.fromkeys((0, 0.25, 0.5, 0.75, 1), 0.2)),
        (Int(1, 3, log=True), {k: np.log((k + 0.5) / (k - 0.5)) / np.log(3.5 / 0.5) for k in (1, 2, 3)}),
        (Choice("a", "b", "c"), dict.fromkeys("abc", 1 / 3)),
        (Choice("a", "b", "c", weights=[1, 0, 3]), {"a": 0.25, "c": 0.75}),
        (Choice(1, 2, 4, ordered=True, weights=[2, 1, 1]), {1: 0.5, 2: 0.25, 4: 0.25}),
        (Choice(1, 2, 4, ordered=True), dict.fromkeys((1, 2, 4), 1 / 3)),
    ],
)
def test_discrete_marginals(parameter, shares):
    """Chi-square against the shares; what has no share never comes up."""
    values = column(parameter)
    assert set(values) == set(shares)
    observed = [values.count(value) for value in shares]
    assert stats.chisquare(observed, np.array(list(shares.values())) * COUNT).pvalue > ALPHA


def test_quantile_maps_the_unit_cube_through_priors_and_weights():
    space = Space(
        a=Float(0, 1, prior=Beta(2, 2)), b=Choice("x", "y", weights=[1, 3]), c=Choice("x", "y"), d=Float(0, 1)
    )
    p = np.array([[0.5, 0.2, 0.2, 0.2], [0.0, 0.3, 0.7, 1.0]])
    assert space.quantile(p) == pytest.approx(np.array([[0.5, 0, 0, 0.2], [0, 1, 1, 1]]))
    assert p[1, 3] == 1.0  # the argument is left as it is


def test_a_value_without_weight_is_not_drawn_at_the_ends():
    space = Space(a=Choice("x", "y", "z", weights=[0, 1, 0]))
    assert space.quantile(np.array([[0.0], [1.0]]))[:, 0].tolist() == [1, 1]


def test_rejection_keeps_the_law_of_legal_rows():
    """Uniform on the triangle below the diagonal."""
    space = Space(require("a + b <= 1"), a=Float(0, 1), b=Float(0, 1))
    a = space.sample(np.random.default_rng(0), COUNT)[:, 0]
    assert stats.kstest(a, lambda x: 1 - (1 - x) ** 2).pvalue > ALPHA


def test_requirements_leave_rows_in_which_they_do_not_apply():
    space = Space(require("a <= 0.1"), kind=Choice("x", "y"), a=Float(0, 1, when=equals("kind", "x")))
    kinds = [params["kind"] for params in space.decode(space.sample(np.random.default_rng(0), COUNT))]
    assert kinds.count("x") / COUNT == pytest.approx(0.1 / 1.1, abs=0.02)


def test_a_rare_corner_is_found_by_rejection():
    space = Space(require("a * b <= 0.0005"), a=Float(0, 1), b=Float(0, 1))
    U = space.sample(np.random.default_rng(0), 500)
    assert len(U) == 500
    assert space.legal(U).all()


def test_rules_that_hardly_meet_by_chance_are_mended_one_by_one():
    """Together one draw in 10^8; each rule's own parameters are drawn again until it holds."""
    rules = [require(f"x{i} + y{i} <= 0.014") for i in range(2)]
    space = Space(*rules, **{f"{name}{i}": Float(0, 1) for name in "xy" for i in range(2)}, z=Float(0, 1))
    U = space.sample(np.random.default_rng(0), 200)
    assert len(U) == 200
    assert space.legal(U).all()
    assert stats.kstest(U[:, 4], "uniform").pvalue > ALPHA


def test_what_nothing_meets_is_named_with_its_rate():
    space = Space(require("a * b <= 1"), require("a <= 60"), a=Int(16, 104), b=Int(2, 16))
    with pytest.raises(SpaceInfeasible) as caught:
        space.sample(np.random.default_rng(0), 10)
    assert str(caught.value).startswith(
        "no legal configuration in 100 rounds; 'a * b <= 1' passed 0.0 % of draws, 'a <= 60' passed 5"
    )


def test_counts():
    space = Space(require("a < 0.5"), a=Float(0, 1))
    assert space.sample(np.random.default_rng(0), 0).shape == (0, 1)
    assert Space(a=Float(0, 1)).sample(np.random.default_rng(0), 0).shape == (0, 1)
    with pytest.raises(SpaceError, match="sample: count must be >= 0, got -1"):
        space.sample(np.random.default_rng(0), -1)

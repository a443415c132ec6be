"""When to save: closed forms against numeric minima, simulated losses and brute force over the number of saves."""

import math

import numpy as np
import pytest
from benchmarks.checkpoint.estimators import availability_interval, daly_interval, young_interval
from benchmarks.checkpoint.failure_times import LAWS, Failures, best_interval
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from trainwright.checkpoint.policy.save_policy import Costs, SavePlan, exact_interval, plan_saves
from trainwright.errors import CheckpointConfigError

GRID = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


def costs(ratio, mtbf=10_000.0, **others):
    return Costs(mtbf_seconds=mtbf, cost_seconds=ratio * mtbf, **others)


@given(
    st.floats(1.0, 1e6), st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.sampled_from([0.0, 1.0, 10.0]), st.integers(1, 12)
)
def test_a_horizon_that_saves_divide(mtbf, cost, persist, parts):
    """Where the optimum is just what a save takes, and the time left a multiple of it, saves still fit."""
    one = Costs(mtbf_seconds=mtbf, cost_seconds=cost, persist_seconds=persist)
    free = plan_saves(one)
    remaining = parts * (free.interval_seconds + cost)
    if remaining <= 0:
        return
    plan = plan_saves(one, remaining_seconds=remaining)
    assert plan.saves >= 1
    assert plan.saves == 1 or remaining / plan.saves > max(cost, persist)


class TestFormulas:
    @given(st.floats(1e-9, 5), st.floats(1, 1e7))
    def test_exact_is_where_the_derivative_vanishes(self, ratio, mtbf):
        """T = u M solves u + log(1 - u) = -C/M; next to the branch point too, where W0 itself would lose digits."""
        u = exact_interval(costs(ratio, mtbf)) / mtbf
        # -u - log1p(-u) cancels for small u: its series does not.
        left = sum(u**k / k for k in range(2, 60)) if u < 0.3 else -u - math.log1p(-u)
        assert left == pytest.approx(ratio, rel=1e-9)

    @pytest.mark.parametrize("ratio", [1e-5, 1e-4, *GRID, 0.5, 2])
    def test_exact_is_the_numeric_minimum(self, ratio):
        """The wall time at the minimum of a bounded search is that of the closed form, to 1e-9."""
        here = costs(ratio, recovery_seconds=700, persist_seconds=20)
        found = minimize_scalar(here.wall_per_useful, bounds=(1e-3, 10_000), method="bounded", options={"xatol": 1e-9})
        assert here.wall_per_useful(exact_interval(here)) <= found.fun * (1 + 1e-9)
        assert found.x == pytest.approx(exact_interval(here), rel=1e-5)

    def test_young_daly_and_availability(self):
        """Their formulas by hand, and where they lie from the exact one."""
        here = costs(0.08, 1000, recovery_seconds=200)
        assert young_interval(here) == pytest.approx(math.sqrt(2 * 1000 * 80))
        assert daly_interval(here) == pytest.approx(400 * (1 + math.sqrt(0.04) / 3 + 0.04 / 9) - 80)
        assert availability_interval(here) == pytest.approx(80 + math.sqrt(2 * 1200 * 80 + 80**2))
        assert daly_interval(costs(2.5, 1000)) == 1000
        for ratio, beyond in ((0.001, 1.015), (0.01, 1.049), (0.1, 1.167)):
            assert young_interval(costs(ratio)) / exact_interval(costs(ratio)) == pytest.approx(beyond, abs=2e-3)
        assert all(
            daly_interval(costs(ratio)) == pytest.approx(exact_interval(costs(ratio)), rel=1e-3)
            for ratio in np.linspace(0.001, 0.17)
        )

    def test_a_save_is_committed_before_the_next(self):
        """T + C >= P, whatever the formula says."""
        here = costs(0.001, persist_seconds=3000)
        assert plan_saves(here).interval_seconds == 3000 - 10

    def test_at_the_ends(self):
        """A save for nothing: always, at the price of recovery alone; hundreds of losses per save: never done."""
        free = costs(0, 1000, recovery_seconds=100)
        assert (exact_interval(free), free.wall_per_useful(0)) == (0, 1.1)
        assert costs(0.1).wall_per_useful(0) == math.inf
        assert costs(1000, 1).wall_per_useful(1) == math.inf
        assert exact_interval(costs(100)) == pytest.approx(10_000)


class TestSimulation:
    @pytest.mark.parametrize("ratio", [0.001, 0.02, 0.2])
    def test_exact_is_within_two_percent_of_the_best(self, ratio):
        here = costs(ratio, recovery_seconds=300, persist_seconds=1)
        best = best_interval(Failures(number=200_000), here, exact_interval(here))
        assert exact_interval(here) == pytest.approx(best.interval_seconds, rel=0.02)
        assert here.wall_per_useful(exact_interval(here)) == pytest.approx(best.wall_per_useful, rel=0.01)

    @pytest.mark.slow
    @pytest.mark.parametrize("ratio", np.geomspace(0.001, 0.2, 12))
    @pytest.mark.parametrize("mtbf", [600.0, 86_400.0])
    def test_over_the_grid(self, ratio, mtbf):
        here = costs(ratio, mtbf, recovery_seconds=300)
        best = best_interval(Failures(number=4_000_000, seed=1), here, exact_interval(here))
        assert exact_interval(here) == pytest.approx(best.interval_seconds, rel=0.02)

    @pytest.mark.parametrize("law", LAWS[1:])
    def test_losses_that_cluster(self, law):
        """The best interval is another one; the wall time lost by the rule stays below 2 %."""
        losses = Failures(law, number=200_000)
        for ratio in (0.001, 0.2):
            here = costs(ratio, recovery_seconds=300)
            best = best_interval(losses, here, exact_interval(here))
            assert losses.wall_per_useful(here, exact_interval(here))[0] < 1.02 * best.wall_per_useful

    def test_sorted_counting_is_the_sum_of_floors(self):
        """The definition, loss by loss, gives the same wall time."""
        losses, here = Failures("weibull", number=500, seed=3), costs(0.05, 100, recovery_seconds=7, persist_seconds=9)
        uptimes = 100 * losses._uptimes
        useful = 30 * np.floor(np.maximum(uptimes - 9, 0) / 35).sum()
        assert losses.wall_per_useful(here, 30)[0] == pytest.approx((uptimes.sum() + 500 * 7) / useful)
        assert losses.wall_per_useful(here, 1e9)[0] == math.inf

    @pytest.mark.parametrize("law", LAWS)
    def test_laws_have_mean_one(self, law):
        assert Failures(law, number=200_000)._mean == pytest.approx(1, rel=0.01)

    def test_refusals(self):
        with pytest.raises(CheckpointConfigError, match=r"got 'normal'; allowed: exponential, weibull, bursts"):
            Failures("normal")
        with pytest.raises(CheckpointConfigError, match="got 0; allowed: an integer >= 1"):
            Failures(number=0)
        with pytest.raises(CheckpointConfigError, match="no commit survives"):
            best_interval(Failures(number=100), costs(0.1), 1e9)


class TestPlan:
    @given(st.floats(0.01, 0.5), st.floats(0.01, 20), st.floats(0, 0.3))
    def test_the_number_of_saves_is_the_best_of_all(self, ratio, horizon, persist):
        """Brute force over n: no other number of equal spacings costs less wall time for a useful second."""
        mtbf = 1000.0
        here = costs(ratio, mtbf, persist_seconds=persist * mtbf, recovery_seconds=60)
        least = max(here.cost_seconds, here.persist_seconds)
        found = plan_saves(here, remaining_seconds=horizon * mtbf + 5, drain_seconds=5)
        if found.warning:
            assert horizon * mtbf <= least + 1e-6
            return
        # The horizon as the plan has it: subtracting the margin again may round.
        span = horizon * mtbf + 5 - 5
        wall = {n: here.wall_per_useful(span / n - here.cost_seconds) for n in range(1, int(span / least) + 2)}
        wall = {n: value for n, value in wall.items() if n == 1 or span / n > least}
        assert wall[found.saves] == pytest.approx(min(wall.values()), rel=1e-12)
        assert found.saves * (found.interval_seconds + here.cost_seconds) == pytest.approx(span)

    def test_the_last_commit_lands_at_the_margin(self):
        """Followed save after save, with costs that wander within the dead band, the last one ends in time."""
        left, before = 10_000.0, None
        for number in range(1000):
            here = costs((50 + number % 3) / 20_000, 20_000)
            before = plan_saves(here, remaining_seconds=left, drain_seconds=100, before=before)
            left -= before.interval_seconds + here.cost_seconds
            if before.saves == 1:
                break
        assert left == pytest.approx(100, abs=1e-6)

    def test_small_changes_are_ignored(self):
        """An optimum within 5 % of the one before is not followed; one further off is."""
        before = plan_saves(costs(0.01))
        assert plan_saves(costs(0.0105), before=before) == before
        assert plan_saves(costs(0.012), before=before) == plan_saves(costs(0.012)) != before

    def test_slow_drift_is_followed_in_the_end(self):
        """Many small changes add up: the plan never stays more than 5 % off."""
        followed = plan_saves(costs(0.01))
        for step in range(100):
            here = costs(0.01 * 1.02**step)
            followed = plan_saves(here, before=followed)
            assert abs(exact_interval(here) / followed.optimum_seconds - 1) <= 0.0527

    def test_no_end_and_an_end_far_away(self):
        here = costs(0.01)
        assert (
            plan_saves(here)
            == plan_saves(here, remaining_seconds=math.inf)
            == SavePlan(interval_seconds=exact_interval(here), optimum_seconds=exact_interval(here))
        )
        assert plan_saves(here, remaining_seconds=1e9).interval_seconds == pytest.approx(exact_interval(here), rel=1e-4)

    def test_one_save_fewer_where_none_would_have_time(self):
        """Three saves of ten seconds each are just what is left: two have time."""
        slow = Costs(mtbf_seconds=10.0, cost_seconds=0.5, persist_seconds=10.0)
        assert plan_saves(slow, remaining_seconds=30) == SavePlan(interval_seconds=14.5, optimum_seconds=9.5, saves=2)

    def test_too_late(self):
        """A save that takes longer than what is left is begun at once, and the user hears of it."""
        found = plan_saves(costs(0.01), remaining_seconds=50)
        assert (found.interval_seconds, found.saves) == (0, 1)
        assert found.warning.startswith("50.0 s are left before the end of the allocation and a save takes 100.0 s")

    def test_saving_for_nothing(self):
        assert plan_saves(costs(0), remaining_seconds=100) == SavePlan(interval_seconds=0, optimum_seconds=0)

    @pytest.mark.parametrize(("name", "value"), [("remaining_seconds", -1), ("remaining_seconds", math.nan)])
    def test_refusals(self, name, value):
        with pytest.raises(CheckpointConfigError, match=f"{name}: got {value}"):
            plan_saves(costs(0.01), **{name: value})

    def test_refuses_a_margin_below_zero(self):
        with pytest.raises(CheckpointConfigError, match=r"drain_seconds: got -1; allowed"):
            plan_saves(costs(0.01), remaining_seconds=10, drain_seconds=-1)


class TestCosts:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("mtbf_seconds", 0),
            ("mtbf_seconds", -3),
            ("mtbf_seconds", math.inf),
            ("cost_seconds", -1e-9),
            ("cost_seconds", math.nan),
            ("recovery_seconds", -1),
            ("persist_seconds", math.inf),
        ],
    )
    def test_refusals(self, name, value):
        """One sentence: which, the value, what is allowed."""
        with pytest.raises(CheckpointConfigError, match=rf"^Costs.{name}: got {value}; allowed: a number"):
            Costs(**{"mtbf_seconds": 1000.0, "cost_seconds": 1.0, name: value})

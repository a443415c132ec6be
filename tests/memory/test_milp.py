"""The integer programme: equal to the exact search, valid in the simulator, and a bound where its time ends."""

import numpy as np
import pytest
from chains import budgets, random_chain

import trainwright.memory as tm
from trainwright.errors import ChainError
from trainwright.memory.exact import solve_exact
from trainwright.memory.milp import solve_milp
from trainwright.memory.persistent import lowest_plan
from trainwright.memory.planning import full_bytes, minimal_bytes


def compare(seed, most):
    """At budgets from below the least on: feasible alike, as fast as the optimum, as the simulator says."""
    chain = random_chain(seed, least=3, most=most, options=seed % 2, split=seed % 3 == 0)
    for budget in budgets(chain, lowest_plan(chain)[1] - 2, 4)[:3]:
        found, best = solve_milp(chain, budget), solve_exact(chain, budget)
        assert found.finished
        assert found.seconds == pytest.approx(best.seconds)
        assert found.lower_seconds == pytest.approx(best.lower_seconds, rel=1e-5)
        if found.operations is not None:
            assert tm.simulate(chain, found.operations, budget_bytes=budget).fits


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_exact_search(seed):
    compare(seed, 5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_equals_the_exact_search_on_hundreds(seed):
    compare(seed, 7)


def test_a_saved_value_may_go_before_its_backward():
    """Where saving is faster than a plain run, the best plan drops what it saved; both searches know it."""
    chain = random_chain(15, least=3, most=6, options=1, split=True)
    assert solve_milp(chain, 37).seconds == solve_exact(chain, 37).seconds == 70.0


def test_a_certificate_beyond_the_exact_search():
    """On a chain that no exact search ends on: a plan not slower than moves find, and its proof."""
    chain = random_chain(7, least=16, most=16)
    budget = minimal_bytes(chain) + (full_bytes(chain) - minimal_bytes(chain)) // 2
    moved = tm.plan(chain, budget=budget, solver="dp")
    plan = tm.plan(chain, budget=budget, solver="milp")
    assert plan.solver == "milp"
    assert plan.seconds <= moved.seconds
    assert moved.lower_seconds <= plan.lower_seconds
    assert plan.gap == pytest.approx(0.0, abs=1e-5)
    known = solve_milp(chain, budget, better_than_seconds=plan.seconds * 0.999)
    assert known.finished
    assert known.operations is None
    assert known.lower_seconds == plan.seconds * 0.999


def test_an_ended_time_leaves_a_bound():
    """Without time there is no plan of its own, and the plan that was there keeps a bound below it."""
    chain = random_chain(3, least=14, most=14)
    budget = int(np.mean([minimal_bytes(chain), full_bytes(chain)]))
    plan = tm.plan(chain, budget=budget, solver="milp", limit_seconds=0.01)
    assert plan.lower_seconds <= plan.seconds
    assert plan.peak_bytes <= budget
    with pytest.raises(ChainError, match="at most 60"):
        tm.plan(random_chain(1, least=61, most=61), budget=0.5, solver="milp")

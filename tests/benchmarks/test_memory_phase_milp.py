"""The integer programme: equal to the exact search, valid in the simulator, and a bound where its time ends."""

import numpy as np
import pytest
from benchmarks.memory.phase_milp import solve_milp

import trainwright.memory as tm
from memory_chains import budgets, random_chain
from trainwright.plan.memory.exact import solve_exact
from trainwright.plan.memory.known_plans import lowest_plan
from trainwright.plan.memory.planning import full_bytes, minimal_bytes
from trainwright.plan.memory.simulate import simulate


def compare(seed, most):
    """At budgets from below the least on: feasible alike, as fast as the optimum, as the simulator says."""
    chain = random_chain(seed, least=3, most=most, options=seed % 2, split=seed % 3 == 0)
    for budget in budgets(chain, lowest_plan(chain)[1] - 2, 4)[:3]:
        found, best = solve_milp(chain, budget), solve_exact(chain, budget)
        assert found.finished
        assert found.seconds == pytest.approx(best.seconds)
        assert found.lower_seconds == pytest.approx(best.lower_seconds, rel=1e-5)
        if found.operations is not None:
            assert simulate(chain, found.operations, budget_bytes=budget).fits


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
    best = solve_milp(chain, budget, better_than_seconds=moved.seconds)
    assert best.finished
    assert moved.lower_seconds <= best.lower_seconds <= best.seconds <= moved.seconds
    assert best.seconds / best.lower_seconds == pytest.approx(1.0, abs=1e-5)
    known = solve_milp(chain, budget, better_than_seconds=best.seconds * 0.999)
    assert known.finished
    assert known.operations is None
    assert known.lower_seconds == best.seconds * 0.999


def test_an_ended_time_leaves_a_bound():
    """Without time there is no plan of its own, but a bound below the plan that is known."""
    chain = random_chain(3, least=14, most=14)
    budget = int(np.mean([minimal_bytes(chain), full_bytes(chain)]))
    plan = tm.plan(chain, budget=budget, solver="dp")
    hurried = solve_milp(chain, budget, better_than_seconds=plan.seconds, limit_seconds=0.01)
    assert not hurried.finished
    assert hurried.lower_seconds <= plan.seconds

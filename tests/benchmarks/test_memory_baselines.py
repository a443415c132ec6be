"""Baselines of memory plans: valid, and never better than a plan."""

import pytest
from benchmarks.memory import baselines

import trainwright.memory as tm
from memory_chains import budgets, random_chain
from trainwright.plan.memory.known_plans import first_blocks
from trainwright.plan.memory.planning import minimal_bytes
from trainwright.plan.memory.simulate import simulate


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[] if seed < 2 else pytest.mark.slow) for seed in range(6)])
def test_never_worse_than_baselines(seed):
    """At every budget from the least on, within it, and below none of its bounds."""
    chain = random_chain(seed, least=4, most=9, split=True)
    for budget in budgets(chain, minimal_bytes(chain), 4):
        plan = tm.plan(chain, budget=budget)
        assert plan.peak_bytes <= budget
        assert plan.seconds <= baselines.best_baseline(chain, budget)[1] + 1e-9
        assert plan.lower_seconds <= plan.seconds
        assert plan.solver in {"none", "exact"}
        assert plan.gap == pytest.approx(0.0)


@pytest.mark.parametrize("seed", range(4))
def test_baselines_are_valid(seed):
    chain = random_chain(seed, least=4, most=9)
    for name, operations in baselines.suite(chain).items():
        assert simulate(chain, operations).fits, name
    ran = simulate(chain, first_blocks(chain, len(chain.stages))).seconds
    assert ran == chain.plain_seconds + sum(stage.forward_seconds for stage in chain.stages)

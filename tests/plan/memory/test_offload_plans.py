"""Offloading: valid within the budget, never slower than rematerialisation alone, right at both ends of the link."""

import pytest

import trainwright.memory as tm
from memory_chains import random_chain
from trainwright.errors import BudgetError
from trainwright.plan.memory.planning import full_bytes, minimal_bytes
from trainwright.plan.memory.simulate import simulate


@pytest.mark.parametrize("seed", range(2))
def test_never_slower_than_rematerialisation(seed):
    """At any speed of the link; what is returned is simulated, with its copies, within the budget."""
    chain = random_chain(seed, least=5, most=9)
    budget = minimal_bytes(chain) + 3
    alone = tm.plan(chain, budget=budget)
    last = alone.seconds
    for bandwidth in (1e-3, 2.0, 1e9):
        joint = tm.plan(chain, budget=budget, offload=True, bandwidth=bandwidth)
        assert joint.seconds <= alone.seconds
        assert simulate(chain, joint.operations, budget_bytes=budget, link=tm.Link.of(bandwidth)).fits
        last = min(last, joint.seconds)
    assert last == joint.seconds  # the fastest link has the fastest plan


def test_an_endless_link_costs_nothing():
    """With room for every single operation, copies at no cost take the place of recomputation."""
    chain = random_chain(4, least=8, most=8)
    budget = int(0.6 * full_bytes(chain))
    alone = tm.plan(chain, budget=budget)
    joint = tm.plan(chain, budget=budget, offload=True, bandwidth=1e12)
    assert alone.overhead > 0.01
    assert joint.overhead == pytest.approx(0.0, abs=1e-6)
    assert joint.solver == "joint"


def test_offloading_needs_a_bandwidth():
    with pytest.raises(BudgetError, match="bandwidth="):
        tm.plan(random_chain(1), budget=0.9, offload=True)

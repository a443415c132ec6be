"""Rematerialisation and offloading together: copies in time, and the least budget with copies."""

import numpy as np
import pytest

import trainwright.memory as tm
from memory_chains import budgets, random_chain
from trainwright.errors import InfeasibleBudget
from trainwright.plan.memory.copy_schedule import place_copies, simulate_seconds
from trainwright.plan.memory.known_plans import lowest_with_copies
from trainwright.plan.memory.operations import PREFETCH, operations_of, rows_of
from trainwright.plan.memory.persistent import solve_persistent
from trainwright.plan.memory.planning import minimal_bytes
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.memory.sizes import sizes_of


@pytest.mark.parametrize("seed", range(6))
def test_the_compiled_simulator(seed):
    """It gives the seconds of the simulator, or fails where that does, for plans in order and in disorder."""
    random = np.random.default_rng(seed)
    chain = random_chain(seed, least=3, most=9, options=seed % 2, split=seed % 3 == 0)
    link = tm.Link(to_host=2.0, to_device=3.0, to_host_together=1.5, to_device_together=1.0)
    rates = (2.0, 3.0, 1.5, 1.0)
    fits = 0
    for budget in budgets(chain, lowest_with_copies(chain)[1], 8):
        room = budget - chain.fixed_bytes
        for more in (2, 3):
            solved = solve_persistent(chain, chain.fixed_bytes + more * room)
            rows = rows_of(lowest_with_copies(chain)[0] if solved is None else solved.operations)
            rows = rows[rows[:, 0] != PREFETCH]
            for hurry in (np.inf, 1.0):
                copied = place_copies(sizes_of(chain), room, rows, 3.0, hurry)
                for shuffled in range(6):
                    if shuffled and len(copied):
                        one, other = random.integers(len(copied), size=2)
                        copied[[one, other]] = copied[[other, one]]
                    found = simulate(chain, operations_of(copied), budget_bytes=budget, link=link)
                    expected = found.seconds if found.fits else np.inf
                    assert simulate_seconds(sizes_of(chain), (room, rates), copied) == pytest.approx(expected)
                    assert np.array_equal(rows_of(operations_of(copied)), copied)
                    fits += found.fits
    assert fits > 20


@pytest.mark.parametrize("seed", range(40))
def test_the_least_budget_with_copies(seed):
    """The plan needs just that, one byte less does not do, and no plan without copies needs less."""
    chain = random_chain(seed, least=1, most=9, options=seed % 2, split=seed % 3 == 0)
    operations, least = lowest_with_copies(chain)
    found = simulate(chain, operations, budget_bytes=least, link=tm.Link.of(2.0))
    assert found.fits
    assert found.peak_bytes == least <= minimal_bytes(chain)
    assert not simulate(chain, operations, budget_bytes=least - 1, link=tm.Link.of(2.0)).fits


def test_infeasible_budgets_name_what_offloading_allows():
    """Without copies the sentence says what copies would allow; with that budget and copies there is a plan."""
    chain = random_chain(51, least=8, most=8, split=True)
    _, least = lowest_with_copies(chain)
    assert least < minimal_bytes(chain)
    with pytest.raises(InfeasibleBudget, match=rf"or allow offload \(at least {least} B, {least} bytes\)"):
        tm.plan(chain, budget=minimal_bytes(chain) - 1, solver="dp")
    assert tm.plan(chain, budget=least, offload=True, bandwidth=1.0, solver="dp").peak_bytes == least
    with pytest.raises(InfeasibleBudget, match="with copies to the host") as caught:
        tm.plan(chain, budget=least - 1, offload=True, bandwidth=1.0)
    assert caught.value.minimal_bytes == least
    assert sum(caught.value.owners.values()) == least

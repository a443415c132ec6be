"""Rematerialisation and offloading together: copies in time, and the least budget with copies."""

import pytest

import trainwright.memory as tm
from memory_chains import random_chain
from trainwright.errors import InfeasibleBudget
from trainwright.plan.memory.known_plans import lowest_with_copies
from trainwright.plan.memory.planning import minimal_bytes
from trainwright.plan.memory.simulate import simulate


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

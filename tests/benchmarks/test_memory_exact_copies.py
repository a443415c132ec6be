"""The exact search with copies of tiny chains: a bound of all lists of operations, which joint plans nearly reach."""

import numpy as np
import pytest
from benchmarks.memory.certificates import certify
from benchmarks.memory.exact_copies import solve_exact_with_copies

from memory_chains import random_chain
from trainwright.errors import ChainError
from trainwright.memory import Link
from trainwright.plan.memory.exact import solve_exact
from trainwright.plan.memory.known_plans import lowest_with_copies
from trainwright.plan.memory.operations import operations_of, rows_of
from trainwright.plan.memory.planning import plan_chain
from trainwright.plan.memory.simulate import simulate


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 2)) for seed in range(6)])
def test_copies_are_searched_too(seed):
    """No slower than without copies, no faster than the work; the list takes as long, and changed lists take longer."""
    random = np.random.default_rng(seed)
    chain = random_chain(seed, least=2, most=3)
    budget = lowest_with_copies(chain)[1] + seed % 4
    searched = solve_exact_with_copies(chain, budget, 1)
    assert searched.finished
    assert chain.plain_seconds <= searched.seconds <= solve_exact(chain, budget).seconds
    found = simulate(chain, searched.operations, budget_bytes=budget, link=Link.of(1))
    assert found.fits
    assert found.seconds >= searched.seconds == searched.lower_seconds
    rows = rows_of(searched.operations)
    for _ in range(1000):
        changed = np.delete(rows, random.integers(len(rows), size=random.integers(3)), axis=0)
        one, other = random.integers(len(changed), size=2)
        changed[[one, other]] = changed[[other, one]]
        other_plan = simulate(chain, operations_of(changed), budget_bytes=budget, link=Link.of(1))
        assert other_plan.seconds >= searched.seconds
    proof = solve_exact_with_copies(chain, budget, 1, better_than_seconds=searched.seconds)
    assert proof.finished
    assert proof.operations is None


def test_joint_plans_of_tiny_chains_are_optimal():
    """Of most; none is faster than the fastest schedule, and the integer programme proves it of nearly all."""
    gaps, loose = [], 0
    for seed in range(8):
        chain = random_chain(seed, least=2, most=3)
        budget = lowest_with_copies(chain)[1] + 1 + seed % 3
        joint = plan_chain(chain, budget=budget, offload=True, bandwidth=1.0)
        best = solve_exact_with_copies(chain, budget, 1).seconds
        gaps.append(joint.seconds / best - 1)
        proof = certify(chain, budget, Link.of(1.0), known_seconds=joint.seconds)
        assert proof.finished
        assert proof.lower_seconds <= best
        loose += proof.lower_seconds < best * 0.999
    assert loose <= 1
    assert min(gaps) > -1e-9
    assert np.mean(np.array(gaps) < 1e-9) >= 0.7
    assert np.mean(gaps) < 0.03


def test_the_search_with_copies_refuses_what_it_cannot_pack():
    for chain in (random_chain(1, least=7, most=7), random_chain(1, options=1)):
        with pytest.raises(ChainError, match="allowed for the exact search with copies"):
            solve_exact_with_copies(chain, 100, 1)

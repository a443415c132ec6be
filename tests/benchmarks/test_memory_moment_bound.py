"""Bounds by a few moments of a step: below every plan, and near the best where bytes and the link decide."""

import pytest
from benchmarks.memory.exact_copies import solve_exact_with_copies
from benchmarks.memory.moment_bound import bound_by_moments

import trainwright.memory as tm
from memory_chains import random_chain
from trainwright.plan.memory.known_plans import lowest_with_copies
from trainwright.plan.memory.planning import full_bytes
from trainwright.plan.memory.simulate import simulate


def bound(chain, budget, bandwidth, known, moments=3):
    return bound_by_moments(
        chain, budget, tm.Link.of(bandwidth), known_seconds=known, limit_seconds=60.0, most_moments=moments
    )


@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in range(2, 30))])
def test_the_bound_is_below_every_plan(seed):
    """Of chains with options, gradients of parameters and plain forwards of their own; more link, a lower bound."""
    chain = random_chain(seed, least=2, most=5, options=seed % 2, split=seed % 3 > 0)
    budget = (2 * lowest_with_copies(chain)[1] + full_bytes(chain)) // 3
    last = float("inf")
    for bandwidth in (0.2, 1.0, 1e9):
        plan = tm.plan(chain, budget=budget, offload=True, bandwidth=bandwidth)
        lower = bound(chain, budget, bandwidth, 1.3 * plan.seconds)
        assert lower <= min(plan.seconds, last) * (1 + 1e-6)
        last = lower


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_the_bound_is_below_the_optimum(seed):
    chain = random_chain(seed, least=2, most=3)
    budget = lowest_with_copies(chain)[1] + seed % 4
    best = solve_exact_with_copies(chain, budget, 1)
    assert best.finished
    assert bound(chain, budget, 1, 2 * best.seconds) <= best.seconds * (1 + 1e-6)


def test_what_cannot_stay_runs_again_or_is_waited_for():
    """Of 8 values 3 can stay and 1.6 can leave while the forward runs; the bound knows of the others."""
    stages = [
        tm.Stage(forward_seconds=1, backward_seconds=2, output_bytes=1, saved_bytes=100 + 2**i // 8) for i in range(8)
    ]
    chain = tm.Chain(stages=tuple(stages))
    operations, _ = lowest_with_copies(chain)
    known = simulate(chain, operations, budget_bytes=350, link=tm.Link.of(20.0)).seconds
    assert chain.plain_seconds + 3 <= bound(chain, 350, 20.0, known, 1) <= known

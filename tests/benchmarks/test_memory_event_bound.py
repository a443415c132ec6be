"""Certificates of plans with copies: bounds that hold, on chains that no exact search ends on."""

import pytest
from benchmarks.memory.certificates import certify

import trainwright.memory as tm
from memory_chains import random_chain
from trainwright.plan.memory.known_plans import lowest_with_copies
from trainwright.plan.memory.planning import full_bytes
from trainwright.plan.memory.simulate import simulate


@pytest.mark.slow
def test_a_proof_beyond_the_exact_search():
    """The plan of seven stages is proven to be the best there is; a worse one known, the bound is the same."""
    chain = random_chain(1, least=7, most=7)
    budget = lowest_with_copies(chain)[1] + 4
    plan = tm.plan(chain, budget=budget, offload=True, bandwidth=1.0)
    proof = certify(chain, budget, tm.Link.of(1.0), known_seconds=plan.seconds)
    assert plan.solver == "joint"
    assert plan.overhead > 0.1
    assert plan.seconds / proof.lower_seconds == pytest.approx(1.0, abs=2e-4)
    assert certify(chain, budget, tm.Link.of(1.0), known_seconds=plan.seconds * 1.1).lower_seconds <= plan.seconds


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 6))])
def test_the_bound_is_below_every_plan(seed):
    """Of chains with options, gradients of parameters and plain forwards of their own; more link, a lower bound."""
    chain = random_chain(seed, least=3, most=5, options=seed % 2, split=True)
    budget = (lowest_with_copies(chain)[1] + full_bytes(chain)) // 2
    last = float("inf")
    for bandwidth in (0.1, 1.0, 1e9):
        plan = tm.plan(chain, budget=budget, offload=True, bandwidth=bandwidth)
        proof = certify(chain, budget, tm.Link.of(bandwidth), known_seconds=plan.seconds)
        assert proof.finished
        assert chain.plain_seconds * 0.5 < proof.lower_seconds <= min(plan.seconds, last)
        last = proof.lower_seconds


def test_small_values_are_nothing():
    """A long tail of small stages is one event; the bound stays one, and finds what the large values force."""
    large = [tm.Stage(forward_seconds=1 + i, backward_seconds=2, output_bytes=900, saved_bytes=900) for i in range(3)]
    small = [tm.Stage(forward_seconds=0.1, backward_seconds=0.1, output_bytes=2, saved_bytes=3) for _ in range(40)]
    chain = tm.Chain(stages=(*large, *small))
    lowest, least = lowest_with_copies(chain)
    link = tm.Link.of(100.0)
    known = simulate(chain, lowest, budget_bytes=least, link=link).seconds
    proof = certify(chain, least, link, known_seconds=known)
    assert proof.finished
    assert proof.lower_seconds == pytest.approx(chain.plain_seconds + 1.0, rel=1e-4)  # stage 1 runs again


def test_an_ended_time_leaves_a_bound():
    chain = random_chain(3, least=9, most=9)
    budget = lowest_with_copies(chain)[1] + 4
    plan = tm.plan(chain, budget=budget, offload=True, bandwidth=1.0)
    hurried = certify(chain, budget, tm.Link.of(1.0), known_seconds=plan.seconds, limit_seconds=1e-3)
    assert 0 <= hurried.lower_seconds <= plan.seconds
    assert not hurried.finished

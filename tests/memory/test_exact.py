"""The exact search equals Dijkstra's on short chains; moves and the dynamic programme are never below it."""

import heapq

import numpy as np
import pytest
from chains import budgets, random_chain

from trainwright.errors import ChainError
from trainwright.memory import Link, simulate
from trainwright.memory._placed import seconds
from trainwright.memory.certificates import certify
from trainwright.memory.exact import solve_exact, solve_exact_with_copies
from trainwright.memory.improve import improve
from trainwright.memory.joint import rows_of
from trainwright.memory.lowest import lowest_with_copies
from trainwright.memory.persistent import lowest_plan, solve_persistent
from trainwright.memory.planning import plan_chain
from trainwright.memory.sizes import sizes_of


def dijkstra(chain, budget):
    """Search all states, no estimate, bare outputs and saved values side by side, as the operations are defined."""
    steps, room = (None, *chain.steps), budget - chain.fixed_bytes
    start = (frozenset(), len(chain.steps))
    best, heap, count = {start: 0.0}, [(0.0, 0, start)], 0
    while heap:
        spent, _, state = heapq.heappop(heap)
        if spent > best[state]:
            continue
        alive, gradient = state
        if gradient == 0:
            return spent
        grown = sum(step.parameter_gradient_bytes for step in steps[gradient + 1 :])
        used = (
            grown
            + steps[gradient].delta_bytes
            + sum(steps[i].output_bytes if kind == "a" else steps[i].choices[kind].saved_bytes for i, kind in alive)
        )
        there = {0, *(i for i, _ in alive)}
        follow = [(0.0, (alive - {value}, gradient)) for value in alive]
        for i in range(1, gradient + 1):
            if i - 1 not in there:
                continue
            step = steps[i]
            if used + step.output_bytes + step.plain_temporary_bytes <= room:
                follow.append((step.plain_seconds, (alive | {(i, "a")}, gradient)))
            for o, option in enumerate(step.choices):
                if used + option.saved_bytes + option.forward_temporary_bytes <= room:
                    follow.append((option.forward_seconds, (alive | {(i, o)}, gradient)))
                made = steps[i - 1].delta_bytes if i > 1 else chain.input_gradient_bytes
                needed = used + made + option.backward_temporary_bytes + step.parameter_gradient_bytes
                if i == gradient and (i, o) in alive and needed <= room:
                    follow.append((option.backward_seconds, (alive - {(i, o)}, gradient - 1)))
        for cost, other in follow:
            if spent + cost < best.get(other, float("inf")):
                best[other] = spent + cost
                count += 1
                heapq.heappush(heap, (spent + cost, count, other))
    return float("inf")


@pytest.mark.parametrize("seed", range(12))
def test_equals_dijkstra(seed):
    chain = random_chain(seed, least=3, most=4 - seed % 2, options=seed % 2, split=seed % 3 == 0)
    for budget in budgets(chain, lowest_plan(chain)[1] - 3, 4):
        searched = solve_exact(chain, budget)
        assert searched.finished
        assert searched.seconds == pytest.approx(dijkstra(chain, budget))
        if searched.operations is not None:
            found = simulate(chain, searched.operations, budget_bytes=budget)
            assert found.fits
            assert found.seconds == pytest.approx(searched.seconds)


@pytest.mark.parametrize("seed", range(8))
def test_moves_lie_between(seed):
    """Moves never lose time or the budget, and nothing is below the exact optimum."""
    chain = random_chain(seed, least=4, most=8, options=seed % 2, split=True)
    for budget in budgets(chain, lowest_plan(chain)[1], 4)[1:]:
        solved = solve_persistent(chain, budget)
        moved = simulate(chain, improve(chain, budget, solved.operations), budget_bytes=budget)
        assert moved.fits
        assert moved.seconds <= solved.seconds + 1e-9
        searched = solve_exact(chain, budget)
        assert searched.seconds <= moved.seconds + 1e-9


def test_moves_find_what_persistence_forbids():
    """On a good part of short chains the best persistent plan is not the best; moves find most of the difference."""
    better = optimal = 0
    for seed in range(30):
        chain = random_chain(seed, least=5, most=6)
        budget = lowest_plan(chain)[1] + 4
        solved = solve_persistent(chain, budget)
        best = solve_exact(chain, budget).seconds
        if best < solved.seconds - 1e-9:
            better += 1
            moved = simulate(chain, improve(chain, budget, solved.operations), budget_bytes=budget)
            optimal += moved.seconds < best + 1e-9
    assert better >= 8
    assert optimal >= 0.7 * better


def test_an_unfinished_search_proves_something():
    """Beyond its states it has no plan, but a lower bound; with a known optimum it proves that nothing is better."""
    chain = random_chain(5, least=9, most=9)
    budget = lowest_plan(chain)[1] + 6
    whole = solve_exact(chain, budget)
    short = solve_exact(chain, budget, states=20)
    assert not short.finished
    assert short.operations is None
    assert 0 < short.lower_seconds <= whole.seconds
    proof = solve_exact(chain, budget, better_than_seconds=whole.seconds)
    assert proof.finished
    assert proof.operations is None
    assert proof.lower_seconds == whole.seconds


@pytest.mark.parametrize("seed", range(6))
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
    rows, limits = rows_of(searched.operations), (budget - chain.fixed_bytes, (1.0, 1.0, 1.0, 1.0))
    for _ in range(2000):
        changed = np.delete(rows, random.integers(len(rows), size=random.integers(3)), axis=0)
        one, other = random.integers(len(changed), size=2)
        changed[[one, other]] = changed[[other, one]]
        assert seconds(sizes_of(chain), limits, changed) >= searched.seconds
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

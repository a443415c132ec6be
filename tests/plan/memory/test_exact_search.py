"""The exact search equals Dijkstra's on short chains; moves and the dynamic programme are never below it."""

import heapq

import pytest

from memory_chains import budgets, random_chain
from trainwright.plan.memory.exact import solve_exact
from trainwright.plan.memory.known_plans import lowest_plan
from trainwright.plan.memory.persistent import solve_persistent
from trainwright.plan.memory.phases import improve_plan
from trainwright.plan.memory.simulate import simulate


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
            + steps[gradient].output_gradient_bytes
            + sum(steps[i].output_bytes if kind == "a" else steps[i].choices[kind].saved_bytes for i, kind in alive)
        )
        there = {0, *(i for i, _ in alive)}
        follow = [(0.0, (alive - {value}, gradient)) for value in alive]
        for i in range(1, gradient + 1):
            if i - 1 not in there:
                continue
            step = steps[i]
            if used + step.output_bytes + step.no_grad_temporary_bytes <= room:
                follow.append((step.no_grad_seconds, (alive | {(i, "a")}, gradient)))
            for o, option in enumerate(step.choices):
                if used + option.saved_bytes + option.forward_temporary_bytes <= room:
                    follow.append((option.forward_seconds, (alive | {(i, o)}, gradient)))
                made = steps[i - 1].output_gradient_bytes if i > 1 else chain.input_gradient_bytes
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
        moved = simulate(chain, improve_plan(chain, budget, solved.operations), budget_bytes=budget)
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
            moved = simulate(chain, improve_plan(chain, budget, solved.operations), budget_bytes=budget)
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

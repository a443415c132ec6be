"""The persistent dynamic programme equals brute force on short chains, and never breaks a budget."""

from functools import cache

import numpy as np
import pytest

from memory_chains import budgets, random_chain
from trainwright.plan.memory.known_plans import lowest_plan
from trainwright.plan.memory.persistent import PersistentTable, solve_persistent
from trainwright.plan.memory.simulate import simulate


def brute_force(chain, budget):
    """Solve the recurrence over bytes, written from the paper's definition, by recursion on exact memory."""
    steps = (None, *chain.steps)

    def gradient(stage):
        return chain.input_gradient_bytes if stage == 0 else steps[stage].output_gradient_bytes

    def grown(stage):
        return sum(step.parameter_gradient_bytes for step in steps[stage + 1 :])

    @cache
    def cost(s, t, m):
        best = float("inf")
        for option in steps[s].choices:
            need = max(
                gradient(t) + grown(t) + option.saved_bytes + option.forward_temporary_bytes,
                gradient(s) + option.saved_bytes + gradient(s - 1) + grown(s - 1) + option.backward_temporary_bytes,
            )
            if m >= need:
                rest = cost(s + 1, t, m - option.saved_bytes) if s < t else 0.0
                best = min(best, option.forward_seconds + rest + option.backward_seconds)
        for split in range(s + 1, t + 1):
            ran = range(s, split)
            need = max(
                gradient(t) + grown(t) + steps[j].output_bytes + steps[j].no_grad_temporary_bytes
                + (steps[j - 1].output_bytes if j > s else 0)
                for j in ran
            )  # fmt: skip
            if m >= need:
                right = cost(split, t, m - steps[split - 1].output_bytes)
                best = min(best, sum(steps[j].no_grad_seconds for j in ran) + right + cost(s, split - 1, m))
        return best

    return cost(1, len(chain.steps), budget - chain.fixed_bytes)


@pytest.mark.parametrize("seed", range(25))
def test_equals_brute_force(seed):
    """With one byte a slot; its plans take the time that it says, within the budget, with one option or several."""
    chain = random_chain(seed, options=seed % 3, split=seed % 2 == 1)
    for budget in budgets(chain, lowest_plan(chain)[1] - 2, 6):
        expected = brute_force(chain, budget)
        solved = solve_persistent(chain, budget)
        if solved is None:
            assert expected == float("inf")
            continue
        found = simulate(chain, solved.operations, budget_bytes=budget)
        assert found.fits
        assert found.seconds == pytest.approx(solved.seconds)
        assert solved.seconds == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(100, 110))
def test_rounding_is_sound(seed):
    """Few slots cost time, never the budget; rounding down is a lower bound; more memory is never slower."""
    chain = random_chain(seed, least=8, most=14, split=True)
    last = float("inf")
    for budget in budgets(chain, lowest_plan(chain)[1], 6):
        exact = solve_persistent(chain, budget)
        assert exact.seconds <= last
        last = exact.seconds
        below = solve_persistent(chain, budget, slots=9, rounding="down")
        assert below.seconds <= exact.seconds + 1e-9
        coarse = solve_persistent(chain, budget, slots=9)
        if coarse is not None:
            assert simulate(chain, coarse.operations, budget_bytes=budget).fits
            assert coarse.seconds >= exact.seconds - 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_the_lowest_plan_has_the_least_peak(seed):
    """It is valid at its own peak, and a byte less has no persistent plan."""
    chain = random_chain(seed, options=1, split=True)
    operations, needed = lowest_plan(chain)
    assert simulate(chain, operations, budget_bytes=needed).peak_bytes == needed
    assert solve_persistent(chain, needed) is not None
    assert solve_persistent(chain, needed - 1) is None


def test_one_table_holds_every_memory():
    """Rows fall with memory and end at the time of a step that keeps everything."""
    chain = random_chain(3, least=6)
    table = PersistentTable(chain, unit=1, slots=200)
    values = table.values
    assert (np.diff(values[np.isfinite(values)]) <= 0).all()
    assert values[-1] == pytest.approx(chain.plain_seconds)
    middle = int(np.flatnonzero(np.isfinite(values))[0]) + 4
    assert table.plan(middle).seconds == pytest.approx(float(values[middle]))
    assert table.plan(0) is None

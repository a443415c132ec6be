"""Joint plans by phases: any digits make a valid list, nothing unread is made, and changes only gain."""

import numpy as np
import pytest

import trainwright.memory as tm
from memory_chains import random_chain
from trainwright.plan.memory.copy_schedule import fastest_schedule
from trainwright.plan.memory.known_plans import lowest_with_copies
from trainwright.plan.memory.offload import plan_offload
from trainwright.plan.memory.operations import OperationKind, operations_of
from trainwright.plan.memory.persistent import solve_persistent
from trainwright.plan.memory.phases import anneal_phases, list_rows, phases_of, save_everything
from trainwright.plan.memory.planning import full_bytes
from trainwright.plan.memory.simulate import simulate
from trainwright.plan.memory.sizes import sizes_of


@pytest.mark.parametrize("seed", range(12))
def test_any_digits_make_a_valid_list(seed):
    """It runs without a budget in the seconds that it says; read back as phases, it is the same list."""
    random = np.random.default_rng(seed)
    chain = random_chain(seed, least=3, most=9, options=seed % 2, split=seed % 3 == 0)
    n, sizes = len(chain.steps), sizes_of(chain)
    for _ in range(20):
        made, away = save_everything(n)
        for d in range(1, n + 1):
            for i in range(1, d + 1):
                if d == n or random.random() < 0.2:
                    made[d, i] = random.integers(1, 3 + (seed % 2) * (i < n))
        rows, spent = list_rows(sizes, made, away)
        found = simulate(chain, operations_of(rows))
        assert found.fits
        assert found.seconds == pytest.approx(spent)
        again, _ = list_rows(sizes, *phases_of(n, rows))
        assert np.array_equal(rows, again)


def test_what_nobody_reads_is_not_made():
    """Of two runs with no reader between them the second is made; a graph that has no backward is not."""
    chain = random_chain(3, least=5, most=5)
    made, away = save_everything(len(chain.steps))
    made[5, 1] = made[4, 1] = 1
    made[2, 2] = 2
    rows, spent = list_rows(sizes_of(chain), made, away)
    assert spent == chain.plain_seconds + chain.stages[0].no_grad_seconds + chain.stages[1].forward_seconds
    runs = [each.kind for each in operations_of(rows) if each.stage == 2 and each.value is None]
    assert runs == [OperationKind.FORWARD_KEEP, OperationKind.FORWARD_ALL, OperationKind.BACKWARD]


def test_saved_without_its_input():
    """What no programme over segments plans: a large value stays for its backward, its input is made again."""
    large = {"output_bytes": 8, "saved_bytes": 8}
    stages = [
        tm.Stage(forward_seconds=1, backward_seconds=1, output_bytes=8, saved_bytes=8),
        tm.Stage(forward_seconds=20, backward_seconds=20, **large),
        tm.Stage(forward_seconds=1, backward_seconds=1, **large),
        tm.Stage(forward_seconds=9, backward_seconds=9, output_bytes=1, saved_bytes=1),
    ]
    chain = tm.Chain(stages=tuple(stages), input_bytes=1)
    budget = lowest_with_copies(chain)[1]
    link = tm.Link.of(0.05)
    joint = simulate(chain, plan_offload(chain, budget, link), budget_bytes=budget, link=link)
    assert joint.seconds == chain.plain_seconds + 1 < solve_persistent(chain, budget).seconds


@pytest.mark.parametrize("seed", range(3))
def test_changes_gain(seed):
    """From what keeps everything; the digits that come back are those of the list."""
    chain = random_chain(seed, least=6, most=8, options=seed % 2)
    sizes, n = sizes_of(chain), len(chain.steps)
    budget = (lowest_with_copies(chain)[1] + full_bytes(chain)) // 2
    within = ((budget - chain.fixed_bytes, (0.5, 0.5, 0.5, 0.5)), np.array([np.inf, 2.0]))
    phases = save_everything(n)
    before = fastest_schedule(sizes, *within, list_rows(sizes, *phases)[0])[1]
    rows, seconds = anneal_phases(sizes, within, phases, np.random.default_rng(seed).random((500, 20)), 1e-3)
    assert seconds < before
    assert np.array_equal(fastest_schedule(sizes, *within, list_rows(sizes, *phases)[0])[0], rows)
    found = simulate(chain, operations_of(rows), budget_bytes=budget, link=tm.Link.of(0.5))
    assert found.fits
    assert found.seconds == pytest.approx(seconds)

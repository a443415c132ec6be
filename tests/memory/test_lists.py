"""Joint plans changed row by row: what no plan by phases says, and changes that only gain."""

import numpy as np
import pytest
from chains import random_chain

import trainwright.memory as tm
from trainwright.memory._lists import polish
from trainwright.memory.exact import solve_exact_with_copies
from trainwright.memory.joint import operations_of, rows_of
from trainwright.memory.lowest import lowest_with_copies
from trainwright.memory.planning import full_bytes
from trainwright.memory.sizes import sizes_of


def test_a_stage_twice_in_a_phase():
    """What a stage saves is on its way to the host while its output, made once more, is read: the optimum."""
    stages = (
        tm.Stage(forward_seconds=7, backward_seconds=9, output_bytes=2, saved_bytes=8, forward_temporary_bytes=1,
                 backward_temporary_bytes=0),
        tm.Stage(forward_seconds=3, backward_seconds=3, output_bytes=1, saved_bytes=3, forward_temporary_bytes=2,
                 backward_temporary_bytes=2),
    )  # fmt: skip
    chain = tm.Chain(stages=stages, input_bytes=4)
    plan = tm.plan(chain, budget=14, offload=True, bandwidth=3)
    assert plan.seconds == pytest.approx(solve_exact_with_copies(chain, 14, 3).seconds)
    assert [str(each) for each in plan.operations][:3] == ["Fall 1", "Off s1", "Fck 1"]


@pytest.mark.parametrize("seed", range(4))
def test_changes_gain(seed):
    """From the plan of the least budget, within a larger one; the seconds are those of the simulator."""
    chain = random_chain(seed, least=4, most=8, options=seed % 2, split=seed % 3 == 0)
    lowest, least = lowest_with_copies(chain)
    budget, link = (least + full_bytes(chain)) // 2, tm.Link.of(0.5)
    before = tm.simulate(chain, lowest, budget_bytes=budget, link=link).seconds
    limits = (budget - chain.fixed_bytes, (0.5, 0.5, 0.5, 0.5))
    draws = np.random.default_rng(seed).random((3000, 17))
    rows, seconds = polish(sizes_of(chain), limits, rows_of(lowest), draws, 0.01)
    after = tm.simulate(chain, operations_of(rows), budget_bytes=budget, link=link)
    assert after.fits
    assert after.seconds == pytest.approx(seconds)
    assert after.seconds < before

"""Baselines of memory plans: valid, revolve as its closed form says, and never better than a plan."""

import dataclasses
import math

import pytest
from benchmarks.memory import baselines

import trainwright.memory as tm
from memory_chains import budgets, random_chain
from trainwright.plan.memory.checkpointing import every_block
from trainwright.plan.memory.planning import minimal_bytes
from trainwright.plan.memory.simulate import simulate


@pytest.mark.parametrize("seed", range(6))
def test_never_worse_than_baselines(seed):
    """At every budget from the least on, within it, and below none of its bounds."""
    chain = random_chain(seed, least=4, most=9, split=True)
    for budget in budgets(chain, minimal_bytes(chain), 4):
        plan = tm.plan(chain, budget=budget)
        assert plan.peak_bytes <= budget
        assert plan.seconds <= baselines.best_baseline(chain, budget)[1] + 1e-9
        assert plan.lower_seconds <= plan.seconds
        assert plan.solver in {"none", "exact"}
        assert plan.gap == pytest.approx(0.0)


@pytest.mark.parametrize("seed", range(4))
def test_baselines_are_valid(seed):
    chain = random_chain(seed, least=4, most=9)
    for name, operations in baselines.suite(chain).items():
        assert simulate(chain, operations).fits, name
    ran = simulate(chain, every_block(chain)).seconds
    assert ran == chain.plain_seconds + sum(stage.forward_seconds for stage in chain.stages)


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("length", [5, 10, 17])
def test_revolve_equals_the_closed_form(kept, length):
    """Equal stages, s = kept + 1 values with the input: r l - binom(s + r, r - 1) forwards (Griewank 1992)."""
    stage = tm.Stage(forward_seconds=1, backward_seconds=0, output_bytes=1, saved_bytes=2, gradient_bytes=0)
    loss = dataclasses.replace(stage, output_bytes=0)
    chain = tm.Chain(stages=(stage,) * (length - 1), loss=loss)
    operations = baselines.revolve(chain, kept + 3)  # the running stage: its input, and two bytes
    ran = sum(str(each).startswith(("Fck", "Fdrop")) for each in operations)
    most = next(r for r in range(length) if math.comb(kept + 1 + r, r) >= length)
    assert ran == most * length - (math.comb(kept + 1 + most, most - 1) if most else 0)

"""Plans: within every budget, never worse than any baseline, saved and loaded, and refused with a sentence."""

import dataclasses
import json
import math
import pickle

import pytest
from chains import budgets, random_chain

import trainwright.memory as tm
from trainwright.errors import BudgetError, ChainError, InfeasibleBudget, PlanMismatch
from trainwright.memory import baselines
from trainwright.memory.budget import read_budget, readable
from trainwright.memory.planning import full_bytes, minimal_bytes

CHAIN = random_chain(1, least=6)


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


def test_with_all_it_needs_there_is_nothing_to_plan():
    plan = tm.plan(CHAIN, budget=1.0)
    assert plan.solver == "none"
    assert plan.overhead == 0.0
    assert plan.peak_bytes == full_bytes(CHAIN)


def test_the_least_budget():
    """It has a plan; below it the error says how much is needed and by whom, and survives a process boundary."""
    least = minimal_bytes(CHAIN)
    assert tm.plan(CHAIN, budget=least).peak_bytes <= least
    with pytest.raises(InfeasibleBudget, match=f"{least} bytes") as caught:
        tm.plan(CHAIN, budget=least - 1, solver="dp")
    assert caught.value.minimal_bytes == least
    assert sum(caught.value.owners.values()) == least
    assert pickle.loads(pickle.dumps(caught.value)).minimal_bytes == least


@pytest.mark.parametrize("seed", range(4))
def test_baselines_are_valid(seed):
    chain = random_chain(seed, least=4, most=9)
    for name, operations in baselines.suite(chain).items():
        assert tm.simulate(chain, operations).fits, name
    ran = tm.simulate(chain, baselines.every_block(chain)).seconds
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


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(0.5, 500), (7, 7), ("2 KiB", 2048), ("1.5kB", 1500), ("8 GiB", 8 << 30), ("0.25", 250), ("40%", 400), ("12", 12)],
)
def test_budgets_are_read(budget, expected):
    assert read_budget(budget, 1000) == expected


@pytest.mark.parametrize("budget", [0, -1, 0.0, 1.5, float("nan"), "8 GiBs", "much", "", "-3 MB", None, True, "150%"])
def test_budgets_that_are_none(budget):
    with pytest.raises(BudgetError, match="budget: got"):
        read_budget(budget, 1000)


def test_sizes_are_written():
    assert [readable(count) for count in (12, 2048, 1 << 31, 1 << 42)] == ["12 B", "2.00 KiB", "2.00 GiB", "4.00 TiB"]


def test_unknown_solvers_and_subjects():
    with pytest.raises(ChainError, match="did you mean 'exact'"):
        tm.plan(CHAIN, budget=0.9, solver="exactt")
    with pytest.raises(ChainError, match="got int"):
        tm.plan(3, budget=0.9)


def test_files(tmp_path):
    """A plan that is saved and loaded has the same operations, profile and bounds; it knows its chain."""
    plan = tm.plan(CHAIN, budget=0.7)
    plan.save(tmp_path / "plan.json")
    again = tm.Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.simulation == plan.simulation
    again.check(CHAIN)
    other = random_chain(2, least=6)
    with pytest.raises(PlanMismatch, match=f"{CHAIN.digest}, the model's is {other.digest} \\(stage 1 differs first"):
        again.check(other)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"schema": 9}, "schema: got 9"),
        ({"kind": "chain"}, "no memory plan"),
        ({"digest": "0" * 16}, "digest"),
        ({"operations": ["Fall 1"]}, "ends before backward"),
        ({"budget_bytes": 1}, "allowed: operations that run within 1 bytes"),
    ],
)
def test_files_that_are_none(tmp_path, change, where):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**tm.plan(CHAIN, budget=0.7).to_json(), **change}))
    with pytest.raises(PlanMismatch, match=where):
        tm.Plan.load(path)
    path.write_text("{")
    with pytest.raises(PlanMismatch, match="no JSON"):
        tm.Plan.load(path)

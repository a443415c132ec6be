"""Plans: within every budget, saved and loaded, and refused with a sentence."""

import json
import pickle

import pytest

import trainwright.memory as tm
from memory_chains import random_chain
from trainwright.errors import BudgetError, ChainError, InfeasibleBudget, PlanMismatch
from trainwright.plan.byte_sizes import format_bytes, read_budget
from trainwright.plan.memory.planning import full_bytes, minimal_bytes

CHAIN = random_chain(1, least=6)


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
    assert [format_bytes(count) for count in (12, 2048, 1 << 31, 1 << 42)] == [
        "12 B",
        "2.00 KiB",
        "2.00 GiB",
        "4.00 TiB",
    ]


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

"""The curve, and the report on a plan."""

import pytest

import trainwright.memory as tm
from memory_chains import random_chain
from trainwright.plan.memory.plan_record import explain_plan
from trainwright.plan.memory.planning import minimal_bytes

CHAIN = random_chain(1, least=6, options=1)


def test_curve():
    """From the least feasible budget to that of keeping everything, each point faster than those before it."""
    curve = tm.curve(CHAIN, points=6)
    assert curve.points[0].peak_bytes <= curve.minimal_bytes == minimal_bytes(CHAIN)
    assert curve.points[-1].peak_bytes <= curve.full_bytes
    times = [point.seconds for point in curve.points]
    assert times == sorted(times, reverse=True)
    assert 2 <= len(set(times)) == len(times) <= 7
    for baseline in curve.baselines:
        if baseline.peak_bytes >= curve.minimal_bytes:
            plan = tm.plan(CHAIN, budget=baseline.peak_bytes)
            assert plan.seconds <= baseline.seconds + 1e-9, baseline.name


def test_explain_adds_up():
    """What the stages pay is what the plan takes beyond a plain step."""
    plan = tm.plan(CHAIN, budget=minimal_bytes(CHAIN) + 2)
    reports = explain_plan(plan)
    assert len(reports) == len(CHAIN.steps)
    assert sum(each.paid_seconds for each in reports) == pytest.approx(plan.seconds - CHAIN.plain_seconds)
    assert any(each.fate == "recomputed" for each in reports)
    for each in reports:
        assert (each.forwards > 1) <= (each.fate == "recomputed")

"""The curve, the report on a plan, and its picture."""

import xml.etree.ElementTree as ET

import pytest

import trainwright.memory as tm
from memory_chains import random_chain
from trainwright.errors import BudgetError
from trainwright.plan.memory.explain import draw_timeline, explain_plan
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


def test_picture(tmp_path):
    """It is well-formed, has a bar for each operation that takes time, and a file name that says what it is."""
    plan = tm.plan(CHAIN, budget=minimal_bytes(CHAIN) + 2)
    draw_timeline(plan, tmp_path / "memory.svg")
    root = ET.parse(tmp_path / "memory.svg").getroot()  # noqa: S314 -- our own file
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [str(plan.operations[span.operation]) for span in plan.simulation.spans
                      if span.end_seconds > span.start_seconds]  # fmt: skip
    with pytest.raises(BudgetError, match="ends with"):
        draw_timeline(plan, tmp_path / "memory.png")


def test_what_is_let_go_early_is_not_drawn(tmp_path):
    """No band is below the one before it where a backward's temporaries are negative; reruns have their own colour."""
    stage = tm.Stage(forward_seconds=1, backward_seconds=2, output_bytes=8, saved_bytes=12, backward_temporary_bytes=-8)
    chain = tm.Chain(stages=(stage,) * 5)
    draw_timeline(tm.plan(chain, budget=minimal_bytes(chain)), tmp_path / "memory.svg")
    root = ET.parse(tmp_path / "memory.svg").getroot()  # noqa: S314 -- our own file
    for band in root.iter("{http://www.w3.org/2000/svg}polygon"):
        heights = [float(each.partition(",")[2]) for each in band.get("points").split()]
        half = len(heights) // 2
        assert all(upper <= lower for upper, lower in zip(heights[:half], reversed(heights[half:]), strict=True))
    rows = root.iter("{http://www.w3.org/2000/svg}rect")
    colours = {each.get("fill") for each in rows if each.find("{http://www.w3.org/2000/svg}title") is not None}
    assert len(colours) == 3

"""Pipelines: partitions equal brute force, memory is counted right, schedules equal their closed forms."""

import math
from itertools import accumulate, combinations

import numpy as np
import pytest
from benchmarks.memory.pipeline_checks import bubble_share, simulate_schedule
from hypothesis import given, settings
from hypothesis import strategies as st

import trainwright.memory as tm
from memory_chains import random_chain
from trainwright.errors import InfeasibleBudget, PipelineError
from trainwright.plan.memory.persistent import solve_persistent
from trainwright.plan.pipeline.partition import (
    PATTERNS,
    SCHEDULES,
    RematerialisationTables,
    WeightBytes,
    in_flight,
    partition_chain,
    parts_of,
    stage_bytes,
    training_ways,
)
from trainwright.plan.pipeline.schedules import group_stages, simulate_orders


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("way", ["none", "full", "planned"])
def test_partition_equals_brute_force(seed, way):
    """Over all cuts of a short chain, with the micro-batches in flight of each stage and shared links."""
    chain = random_chain(seed, least=5, most=7)
    stages, microbatches, bandwidth = 2 + seed % 3, 1 + seed % 4, 3.0
    memory = 30 + 12 * seed
    cost = training_ways(chain, memory, weights=WeightBytes(), microbatches=microbatches)[way]
    layers, best = len(chain.stages), math.inf
    for inner in combinations(range(1, layers), stages - 1):
        ends, load = [*inner, layers], 0.0
        for place, (begin, end) in enumerate(zip([0, *inner], ends, strict=True)):
            link = 2 * chain.stages[end - 1].output_bytes / bandwidth if end < layers else 0.0
            load = max(load, cost(begin + 1, end, min(stages - place, microbatches)), link)
        best = min(best, load)
    found = partition_chain(chain, stages, cost, way=way, bandwidth=bandwidth, microbatches=microbatches)
    assert (math.inf if found is None else found.load_seconds) == best


@pytest.mark.parametrize("seed", range(4))
def test_recomputing_stages_are_never_slower(seed):
    """At every memory the planned way is as fast as the others, and somewhere strictly faster than both."""
    chain = random_chain(seed, least=6, most=8)
    better = 0
    for memory in range(20, 200, 15):
        costs = training_ways(chain, memory, weights=WeightBytes(), microbatches=4)
        load = {}
        for way, cost in costs.items():
            found = partition_chain(chain, 3, cost, way=way, bandwidth=10.0, microbatches=4)
            load[way] = math.inf if found is None else found.load_seconds
        assert load["planned"] <= min(load["none"], load["full"])
        better += load["planned"] < min(load["none"], load["full"])
    assert better


def test_one_micro_batch_is_a_plan_for_one_device():
    """With a single one in flight, a stage that is the whole chain takes what the dynamic programme says."""
    chain = random_chain(3, least=5, most=5)
    for memory in (25, 30, 40):
        found = solve_persistent(chain, memory + chain.fixed_bytes, slots=memory)
        assert RematerialisationTables(chain).seconds(1, 5, 1, memory) == pytest.approx(
            math.inf if found is None else found.seconds
        )


def test_bytes_of_a_stage():
    """Weights twice; per micro-batch what is saved and the input; temporaries once; two buffers at each border."""
    stage = tm.Stage(
        forward_seconds=1, backward_seconds=1, output_bytes=10, saved_bytes=30, backward_temporary_bytes=5,
        parameter_bytes=100,
    )  # fmt: skip
    chain = tm.Chain(stages=(stage,) * 4)
    assert stage_bytes(chain, 2, 3, flying=3, weights=WeightBytes()) == 400 + 3 * (60 + 10) + 5 + 2 * (10 + 10)
    assert stage_bytes(chain, 1, 2, flying=1, weights=WeightBytes(copies=4, shared_by=2)) == 400 + 60 + 5 + 2 * 10
    assert [in_flight("1f1b", stage=s, stages=4, microbatches=3) for s in range(4)] == [3, 3, 2, 1]
    assert in_flight("gpipe", stage=3, stages=4, microbatches=9) == 9


def held_by(timeline):
    """Return the most chunks' worth of saved values that each device holds, to the last part of their backwards."""
    last = "W" if any(run.kind == "W" for lane in timeline.runs for run in lane) else "B"
    return [max(accumulate((run.kind == "F") - (run.kind == last) for run in lane)) for lane in timeline.runs]


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 4), (4, 8), (4, 2)])
def test_schedules_of_equal_stages(stages, microbatches):
    """GPipe and 1F1B have the bubble of the formula; 1F1B holds fewer; zero-bubble is never slower."""
    forward, back = [1.0] * stages, [2.0] * stages
    work = 3.0 * microbatches
    for name in ("gpipe", "1f1b"):
        found = simulate_schedule(name, forward, back, microbatches=microbatches)
        assert found.seconds == pytest.approx(work / (1 - bubble_share(stages=stages, microbatches=microbatches)))
        assert held_by(found) == [
            in_flight(name, stage=each, stages=stages, microbatches=microbatches) for each in range(stages)
        ]
    zero = simulate_schedule("zero-bubble", forward, back, microbatches=microbatches)
    assert work <= zero.seconds <= found.seconds


def test_interleaving_divides_the_bubble():
    """Two chunks a device, of half the time each: the formula with v = 2."""
    found = simulate_schedule("interleaved", [0.5] * 8, [1.0] * 8, microbatches=8, devices=4)
    assert found.seconds == pytest.approx(24.0 / (1 - bubble_share(stages=4, microbatches=8, chunks=2)))


def test_groups():
    """From the end, stages and links join while they fit into the period."""
    assert group_stages([2.0, 2.0, 2.0], [0.5, 0.5], 7.0) == [1, 1, 1]
    assert group_stages([2.0, 2.0, 2.0], [0.5, 0.5], 2.5) == [3, 2, 1]
    assert group_stages([2.0, 2.0, 2.0], [0.5, 0.5], 1.9) is None


def test_the_whole_way():
    """A plan for pipelines: within memory, rows of the schedule for each device, and what is refused."""
    chain = random_chain(2, least=8, most=8)
    plan = tm.pipeline(chain, stages=3, microbatches=6, memory="120 B", bandwidth=10.0)
    assert plan.partition.parts[0].first == 1
    assert plan.partition.parts[-1].last == len(chain.stages)
    assert plan.step_seconds >= plan.partition.load_seconds * 6
    assert set(plan.timelines) == {*SCHEDULES, *PATTERNS} - {"interleaved"}  # whose chunks want more
    roomy = tm.pipeline(chain, stages=3, microbatches=6, memory="2 kB", bandwidth=10.0)
    assert set(roomy.timelines) == {*SCHEDULES, *PATTERNS}
    least = sum(each.forward_seconds + each.backward_seconds for each in chain.steps) * 6 / 3
    assert roomy.timelines["interleaved"].seconds >= least
    other = tm.pipeline(chain, stages=3, microbatches=5, memory="2 kB")
    assert set(other.timelines) == {*SCHEDULES, *PATTERNS} - {"interleaved"}
    rows = tm.pipeline(chain, stages=3, microbatches=6, memory="120 B", schedule="1f1b").to_csv().splitlines()
    assert len(rows) == 3
    assert rows[2].startswith("2F0,2B0,2F1")
    with pytest.raises(InfeasibleBudget) as caught:
        tm.pipeline(chain, stages=3, microbatches=6, memory=8)
    assert tm.pipeline(chain, stages=3, microbatches=6, memory=caught.value.minimal_bytes)
    for wrong in (
        {"stages": 9},
        {"stages": 0},
        {"microbatches": 0},
        {"schedule": "1f2b"},
        {"microbatches": 3, "schedule": "interleaved"},
    ):
        with pytest.raises(PipelineError):
            tm.pipeline(chain, **{"stages": 2, "microbatches": 2, "memory": 500, **wrong})


@pytest.mark.parametrize("schedule", ["1f1b-star", "madpipe"])
def test_orders_of_their_own(schedule):
    """Their rows name every piece of work once, and take what the plan says."""
    chain, batches = random_chain(2, least=8, most=8), 6
    plan = tm.pipeline(chain, stages=3, microbatches=batches, memory="70 B", bandwidth=10.0, schedule=schedule)
    parts = plan.partition.parts
    assert [part.last + 1 for part in parts[:-1]] == [part.first for part in parts[1:]]
    assert len(plan.devices) == len(parts)
    assert plan.step_seconds == plan.timelines[schedule].seconds
    rows = [row.split(",") for row in plan.to_csv().splitlines()]
    work = [cell for row in rows for cell in row]
    assert len(work) == len(set(work)) == 2 * batches * len(parts)
    for device, row in enumerate(rows):
        assert {plan.devices[int(cell[0])] for cell in row} == {device}
    orders = [[(cell[1], int(cell[0]), int(cell[2:])) for cell in row] for row in rows]
    forward = [part.forward_seconds for part in parts]
    back = [part.seconds - part.forward_seconds for part in parts]
    links = [part.link_seconds / 2 for part in parts[:-1]]
    assert simulate_orders(orders, forward, back, links).seconds == pytest.approx(plan.step_seconds)


@pytest.mark.parametrize("seed", [8, 15, 2])
def test_no_other_partition_has_a_shorter_step(seed):
    """Of all partitions the least step under 1F1B, which need not be that of least load."""
    chain, stages, batches, memory = random_chain(seed, least=6, most=8), 3, 4, 60
    plan = tm.pipeline(chain, stages=stages, microbatches=batches, memory=memory, schedule="1f1b")
    cost = training_ways(plan.chain, memory, weights=WeightBytes(), microbatches=batches)["planned"]
    flying, layers, best = [min(stages - each, batches) for each in range(stages)], len(chain.stages), math.inf
    for inner in combinations(range(1, layers), stages - 1):
        parts = parts_of(plan.chain, (*inner, layers), cost, flying, math.inf)
        if parts is not None:
            forward = [part.forward_seconds for part in parts]
            back = [part.seconds - part.forward_seconds for part in parts]
            best = min(best, simulate_schedule("1f1b", forward, back, microbatches=batches).seconds)
    assert plan.step_seconds == pytest.approx(best)


numbers = st.integers(0, 9)
CHAINS = st.lists(st.tuples(numbers, numbers, st.integers(1, 6), numbers), min_size=3, max_size=6).map(
    lambda rows: tm.Chain(
        stages=tuple(
            tm.Stage(forward_seconds=f, backward_seconds=b, output_bytes=out, saved_bytes=out + more)
            for f, b, out, more in rows
        ),
        input_bytes=2,
    )
)
"""Some of whose stages take no time."""


@pytest.mark.parametrize("schedule", ["auto", *SCHEDULES, *PATTERNS])
@pytest.mark.parametrize("bandwidth", [math.inf, 5.0])
def test_stages_that_all_take_no_time(schedule, bandwidth):
    """A step of nothing but messages, or of nothing at all."""
    layer = tm.Stage(forward_seconds=0, backward_seconds=0, output_bytes=2, saved_bytes=3)
    chain = tm.Chain(stages=(layer,) * 6, input_bytes=2)
    plan = tm.pipeline(chain, stages=3, microbatches=3, memory=500, bandwidth=bandwidth, schedule=schedule)
    assert (plan.step_seconds == 0) is (math.isinf(bandwidth) or len({*plan.devices}) == 1)


@settings(max_examples=25, deadline=None)
@given(CHAINS, st.integers(2, 3), st.integers(1, 5), st.sampled_from([math.inf, 5.0]), st.data())
def test_the_default_is_the_best_that_is_known_and_never_slower_with_more_memory(
    chain, stages, microbatches, bandwidth, data
):
    """At any two memories; asked for by its name, no schedule is faster; orders keep to the memory."""

    def planned(memory, schedule="auto"):
        return tm.pipeline(
            chain, stages=stages, microbatches=microbatches, memory=memory, bandwidth=bandwidth, schedule=schedule
        )

    with pytest.raises(InfeasibleBudget) as caught:
        planned(1)
    least, last = caught.value.minimal_bytes, math.inf
    for memory in sorted(data.draw(st.sets(st.integers(least, 6 * least), min_size=3, max_size=3))):
        plan = planned(memory)
        assert plan.step_seconds == min(each.seconds for each in plan.timelines.values())
        assert plan.step_seconds <= last * (1 + 1e-6)
        last = plan.step_seconds
        name = data.draw(st.sampled_from(sorted(plan.timelines)))
        asked = planned(memory, name)
        assert plan.step_seconds <= asked.step_seconds
        assert asked.schedule == name
        if name in {"1f1b", "1f1b-star", "zero-bubble", "gpipe"}:
            held = zip(held_by(asked.timelines[name]), asked.partition.parts, strict=True)
            assert all(most <= part.flying for most, part in held)


def test_zero_bubble_is_never_slower_than_1f1b_and_holds_no_more():
    """Whatever the stages and links."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        count, batches = int(rng.integers(1, 5)), int(rng.integers(1, 7))
        forward, back, links = rng.integers(0, 9, (3, count)).astype(float).tolist()
        settings = {"microbatches": batches, "link_seconds": links}
        one = simulate_schedule("1f1b", forward, back, **settings)
        zero = simulate_schedule("zero-bubble", forward, back, **settings)
        assert zero.seconds <= one.seconds
        assert all(a <= b for a, b in zip(held_by(zero), held_by(one), strict=True))

"""What a plan waits for gradients and weights: two clocks come to what the list of events does."""

from dataclasses import replace

import numpy as np
import pytest
from event_list import events_of, makespan
from hypothesis import given
from hypothesis import strategies as st

from trainwright.plan.parallel.exposure import StageTimes, exposed_seconds, span_at_full_speed

SECONDS = st.floats(min_value=0.0, max_value=10.0, allow_subnormal=False)


@st.composite
def stages(draw):
    blocks = draw(st.integers(1, 3))
    columns = [draw(st.lists(SECONDS, min_size=blocks, max_size=blocks)) for _ in range(6)]
    forward, backward, gather_forward, gather_backward, scatter, gradients = map(np.array, columns)
    return StageTimes(
        runs=np.array(draw(st.lists(st.integers(0, 3), min_size=blocks, max_size=blocks)), dtype=np.float64),
        forward=forward,
        backward=backward,
        gather_forward=gather_forward,
        gather_backward=gather_backward,
        scatter=scatter,
        buckets=draw(st.integers(0, 4)),
        bucket_seconds=draw(SECONDS),
        gradients=gradients,
        microbatches=draw(st.integers(1, 3)),
        every=draw(st.booleans()),
    )


@given(stages(), st.booleans())
def test_two_clocks_equal_the_events(stage, shards):
    """Within rounding, with weights that are gathered and without, whatever the numbers of runs and buckets."""
    events = events_of(stage, shards=shards, buckets=stage.buckets)
    clocks = span_at_full_speed(stage, shards=shards, buckets=stage.buckets)
    assert clocks == pytest.approx(makespan(events), rel=1e-9, abs=1e-12)


@given(stages())
def test_less_speed_beside_a_collective_costs_time(stage):
    """Nothing that is exposed gets less by it."""
    stage = replace(stage, microbatches=1)
    assert exposed_seconds(stage, 0.0) + 1e-9 >= exposed_seconds(stage, 0.6) >= exposed_seconds(stage, 1.0) - 1e-9


@given(stages(), st.booleans())
def test_beside_a_collective(stage, shards):
    """At no speed each waits for the other; between, the list of events takes no longer than what is predicted."""
    if not shards:
        zeros = np.zeros_like(stage.scatter)
        stage = replace(stage, gather_forward=zeros, gather_backward=zeros, scatter=zeros)
    stage = replace(stage, microbatches=1, runs=stage.runs + (stage.runs.sum() == 0))
    events = events_of(stage, shards=shards, buckets=stage.buckets)
    work = sum(event.seconds for event in events if event.stream == "compute")
    for speed in (0.0, 0.6):
        found = exposed_seconds(stage, speed)
        assert found >= makespan(events, beside=speed) - work - 1e-6
        assert speed or found == pytest.approx(sum(event.seconds for event in events) - work, abs=1e-9)

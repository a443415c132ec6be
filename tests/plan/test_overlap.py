"""The makespan of events on streams: bounds, hand-made cases, and a brute-force clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.plan.parallel.exposure import Event, makespan


@st.composite
def event_lists(draw):
    """Up to six backward steps, each with a bucket that may travel when it is done."""
    seconds = st.integers(0, 20)
    events = []
    for _ in range(draw(st.integers(1, 6))):
        events.append(Event("compute", float(draw(seconds))))
        if draw(st.booleans()):
            events.append(Event("communication", float(draw(seconds)), (len(events) - 1,)))
    return events


def by_ticks(events, beside):
    """Go through time in small ticks: what integers and speeds of 1, 2/3, 1/3 or 0 beside a collective need at most."""
    left = [round(event.seconds * 6) * 2 for event in events]
    total = 0
    done = [False] * len(events)
    rate = round(6 * beside)  # sixths of compute a tick beside a collective
    while not all(done):
        heads = {}
        for number, event in enumerate(events):
            if not done[number]:
                heads.setdefault(event.stream, number)
        ready = [number for number in heads.values() if all(done[other] for other in events[number].after)]
        finished = [number for number in ready if left[number] <= 0]
        if finished:
            for number in finished:
                done[number] = True
            continue
        busy = any(events[number].stream == "communication" for number in ready)
        for number in ready:
            left[number] -= rate if busy and events[number].stream == "compute" else 6
        total += 1
    return total


@given(event_lists())
def test_between_the_bounds(events):
    """max(compute, communication) <= makespan <= their sum, at full speed."""
    sums = {
        stream: sum(each.seconds for each in events if each.stream == stream) for stream in ("compute", "communication")
    }
    found = makespan(events)
    assert max(sums.values()) - 1e-9 <= found <= sum(sums.values()) + 1e-9


@given(event_lists(), st.sampled_from([1.0, 2 / 3, 1 / 3, 0.0]))
def test_equals_a_clock(events, beside):
    """The same as a clock that moves in small ticks, to within the ticks that an event can lose."""
    ticks = by_ticks(events, beside)
    assert makespan(events, beside=beside) == pytest.approx(ticks / 2, abs=len(events))


@given(event_lists())
def test_full_speed_is_a_limit(events):
    """The way through time that lower speeds need gives the same as the short one, in the limit."""
    assert makespan(events, beside=1 - 1e-12) == pytest.approx(makespan(events))


def test_known_cases():
    """A bucket hides behind the next layer; with nothing to hide behind, the sum; a lower speed stretches."""
    layers = [Event("compute", 4.0), Event("communication", 3.0, (0,)), Event("compute", 4.0)]
    assert makespan(layers) == 8.0
    assert makespan([*layers, Event("communication", 3.0, (2,))]) == 11.0
    assert makespan([Event("compute", 4.0), Event("communication", 3.0, (0,))]) == 7.0
    # Beside the 3 seconds of the bucket only 1.5 of 4 are computed.
    assert makespan(layers, beside=0.5) == pytest.approx(4 + 3 + 2.5)
    assert makespan(layers, beside=0.0) == pytest.approx(4 + 3 + 4)
    assert makespan([]) == 0.0

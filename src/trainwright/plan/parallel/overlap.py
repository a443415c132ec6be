"""Overlap: the makespan of a small list of events on streams that run beside each other.

A stream works through its events in order; an event starts when those that it waits for have ended. While a collective
is under way computation goes on at `beside` times its speed: 1 on devices that do both at once, 0 where one waits for
the other.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

__all__ = ["Event", "makespan"]

Stream = Literal["compute", "communication", "copy"]


class Event(NamedTuple):
    """`seconds` of work on a stream, after the events of these numbers."""

    stream: Stream
    seconds: float
    after: tuple[int, ...] = ()


def makespan(events: Sequence[Event], *, beside: float = 1.0) -> float:
    """Return when the last event ends; an event may wait only for earlier ones of the list. O(n) steps."""
    return _in_order(events) if beside == 1 else _slowed(events, beside)


def _in_order(events: Sequence[Event]) -> float:
    free: dict[str, float] = {"compute": 0.0, "communication": 0.0, "copy": 0.0}
    ends: list[float] = []
    for stream, seconds, after in events:
        end = free[stream]
        for number in after:
            end = max(end, ends[number])
        end += seconds
        ends.append(end)
        free[stream] = end
    return max(ends, default=0.0)


def _slowed(events: Sequence[Event], beside: float) -> float:
    """Go from one end of an event to the next, for speeds change there."""
    # A stream works through its queue in order; `left` has the seconds of the event that it works on.
    queues: dict[str, list[int]] = {}
    for number, event in enumerate(events):
        queues.setdefault(event.stream, []).append(number)
    heads = dict.fromkeys(queues, 0)
    left: dict[str, float] = {}
    done = [False] * len(events)
    now = 0.0
    while left or any(heads[stream] < len(queue) for stream, queue in queues.items()):
        for stream, queue in queues.items():
            if stream not in left and heads[stream] < len(queue):
                event = events[queue[heads[stream]]]
                if all(done[number] for number in event.after):
                    left[stream] = event.seconds
        # Computation runs slower only while a collective is under way.
        slow = beside if left.get("communication", 0.0) > 0 else 1.0
        speeds = {stream: slow if stream == "compute" else 1.0 for stream in left}
        needs = {stream: _quotient(seconds, speeds[stream]) for stream, seconds in left.items()}
        # Until the next event ends, all speeds stay as they are.
        step = min(needs.values())
        now += step
        for stream, needed in needs.items():
            if needed <= step:
                done[queues[stream][heads[stream]]] = True
                heads[stream] += 1
                del left[stream]
            else:
                left[stream] -= step * speeds[stream]
    return now


def _quotient(seconds: float, speed: float) -> float:
    return seconds / speed if speed else math.inf if seconds else 0.0

"""Overlap: the makespan of a small list of events on streams that run beside each other.

A stream works through its events in order; an event starts when those that it waits for have ended. Computation takes
`slowdown` times as long while a collective is under way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Event", "makespan"]

Stream = Literal["compute", "communication", "copy"]


@dataclass(frozen=True, slots=True)
class Event:
    """`seconds` of work on a stream, after the events of these numbers."""

    stream: Stream
    seconds: float
    after: tuple[int, ...] = ()


def makespan(events: Sequence[Event], *, slowdown: float = 1.0) -> float:
    """Return when the last event ends.

    An event may wait only for earlier ones of the list, so that there is always one that can start. O(n) events, each
    looked at a constant number of times.
    """
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
        slow = slowdown if "communication" in left and left["communication"] > 0 else 1.0
        rates = {stream: slow if stream == "compute" else 1.0 for stream in left}
        step = min(seconds * rates[stream] for stream, seconds in left.items())
        now += step
        for stream in list(left):
            if left[stream] * rates[stream] <= step:
                done[queues[stream][heads[stream]]] = True
                heads[stream] += 1
                del left[stream]
            else:
                left[stream] -= step / rates[stream]
    return now

"""The event list of a micro-batch, followed event by event: the reference of `plan/parallel/exposure.py`."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from trainwright.plan.parallel.exposure import StageTimes, _columns

Stream = Literal["compute", "communication"]


class Event(NamedTuple):
    """`seconds` of work on a stream, after the events of these numbers."""

    stream: Stream
    seconds: float
    after: tuple[int, ...] = ()


def events_of(stage: StageTimes, *, shards: bool, buckets: int) -> list[Event]:
    """Return the events of a micro-batch: weights are gathered one block ahead of their use."""
    forward, backward, gather_forward, gather_backward, scatter, gradients = _columns(stage)
    events: list[Event] = []
    computed: list[int] = []
    for place, seconds in enumerate(forward):
        if shards:
            # It waits for the block before the last, so that the last is at work meanwhile.
            events.append(Event("communication", gather_forward[place], tuple(computed[-2:-1])))
        events.append(Event("compute", seconds, (len(events) - 1,) if shards else ()))
        computed.append(len(events) - 1)
    last = computed[-1] if computed else 0
    produced, sent, total = 0.0, 0, sum(gradients)
    gathered: tuple[int, ...] = ()
    if shards and forward:
        events.append(Event("communication", gather_backward[-1]))
        gathered = (len(events) - 1,)
    for place in range(len(forward) - 1, -1, -1):
        needs = gathered
        if shards and place:
            events.append(Event("communication", gather_backward[place - 1], (last,)))
            gathered = (len(events) - 1,)
        events.append(Event("compute", backward[place], needs))
        last = len(events) - 1
        if shards:
            events.append(Event("communication", scatter[place], (last,)))
        produced += gradients[place]
        complete = buckets if place == 0 else int(buckets * produced / total) if total else 0
        events += [Event("communication", stage.bucket_seconds, (last,))] * (complete - sent)
        sent = max(sent, complete)
    return events


def makespan(events: Sequence[Event], *, beside: float = 1.0) -> float:
    """Return when the last event ends; an event may wait only for earlier ones of the list.

    It goes from one end of an event to the next, for speeds change there: O(n) steps.
    """
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
    # What stands still never ends, unless nothing of it is left.
    return seconds / speed if speed else math.inf if seconds else 0.0

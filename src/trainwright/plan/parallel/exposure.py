"""Exposure: seconds that a plan waits for gradients and divided weights, from the event list of one micro-batch.

A stream works through its events in order; an event starts when those that it waits for have ended. While a collective
is under way computation goes on at `beside` times its speed: 1 on devices that do both at once, 0 where one waits for
the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from trainwright.plan.parallel.mesh import Floats

__all__ = ["Event", "StageTimes", "events_of", "exposed_seconds", "makespan", "span_at_full_speed"]


Stream = Literal["compute", "communication", "copy"]


class Event(NamedTuple):
    """`seconds` of work on a stream, after the events of these numbers."""

    stream: Stream
    seconds: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class StageTimes:
    """One candidate's busiest stage: arrays over the blocks of the chain."""

    runs: Floats
    forward: Floats
    backward: Floats
    """With recomputation; both with the exchanges inside the block."""
    gather_forward: Floats
    gather_backward: Floats
    scatter: Floats
    """Seconds of the exchanges of one run, 0 where weights are not divided."""
    buckets: int
    bucket_seconds: float
    """Of the exchanges of whole gradients, one after another as they become complete."""
    gradients: Floats
    """Bytes of a run, which say when a bucket is complete."""
    microbatches: int
    every: bool
    """Whether buckets travel in every micro-batch and not in the last alone."""


def exposed_seconds(stage: StageTimes, beside: float) -> float:
    """Return the seconds of an iteration beyond those of computation, which goes on `beside` times as fast."""
    # All micro-batches but the last alike; the last one also sends the buckets of whole gradients.
    plain = float(stage.runs @ (stage.forward + stage.backward))
    shards = bool((stage.gather_forward + stage.gather_backward + stage.scatter).any())
    last = _span(stage, shards=shards, buckets=stage.buckets, beside=beside) - plain
    if stage.microbatches == 1 or not (shards or stage.every):
        return max(0.0, last)
    buckets = stage.buckets if stage.every else 0
    other = _span(stage, shards=shards, buckets=buckets, beside=beside) - plain
    return max(0.0, last + (stage.microbatches - 1) * other)


def _span(stage: StageTimes, *, shards: bool, buckets: int, beside: float) -> float:
    if beside == 1:
        return span_at_full_speed(stage, shards=shards, buckets=buckets)
    return makespan(events_of(stage, shards=shards, buckets=buckets), beside=beside)


def span_at_full_speed(stage: StageTimes, *, shards: bool, buckets: int) -> float:
    """Return the makespan of `events_of` where computation is not slowed down: two clocks, without a list."""
    # Two clocks: when the computation that was issued so far ends, and when the communication does.
    forward, backward, gather_forward, gather_backward, scatter, gradients = _columns(stage)
    compute = before = communication = 0.0
    for place, seconds in enumerate(forward):
        if shards:
            # Gathered while the block before is at work, that is after the one before that.
            communication = max(communication, before) + gather_forward[place]
            before, compute = compute, max(compute, communication)
        compute += seconds
    produced, sent, total = 0.0, 0, sum(gradients)
    gathered = 0.0
    if shards and forward:
        communication += gather_backward[-1]
        gathered = communication
    for place in range(len(forward) - 1, -1, -1):
        ready = gathered
        if shards and place:
            communication = max(communication, compute) + gather_backward[place - 1]
            gathered = communication
        compute = max(compute, ready) + backward[place]
        if shards:
            communication = max(communication, compute) + scatter[place]
        produced += gradients[place]
        # Buckets are of one size: as large a share of them is full as there is of the gradients.
        complete = buckets if place == 0 else int(buckets * produced / total) if total else 0
        for _ in range(complete - sent):
            communication = max(communication, compute) + stage.bucket_seconds
        sent = max(sent, complete)
    return max(compute, communication)


def _columns(stage: StageTimes) -> list[list[float]]:
    """Return seconds and gradients of every run of the stage's chain."""
    chain = np.repeat(np.arange(len(stage.runs)), stage.runs.astype(np.int64))
    columns = (
        stage.forward, stage.backward, stage.gather_forward, stage.gather_backward, stage.scatter, stage.gradients
    )  # fmt: skip
    return [column[chain].tolist() for column in columns]


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

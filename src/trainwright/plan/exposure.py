"""Exposure: seconds that a plan waits for gradients and divided weights, from the event list of one micro-batch."""

from dataclasses import dataclass

import numpy as np

from trainwright.plan.mesh import Floats
from trainwright.plan.overlap import Event, makespan

__all__ = ["StageTimes", "exposed_seconds"]


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


def exposed_seconds(stage: StageTimes, slowdown: float) -> float:
    """Return the seconds of an iteration beyond those of computation."""
    plain = float(stage.runs @ (stage.forward + stage.backward))
    shards = bool((stage.gather_forward + stage.gather_backward + stage.scatter).any())
    last = makespan(_events(stage, shards=shards, buckets=stage.buckets), slowdown=slowdown) - plain
    if stage.microbatches == 1 or not (shards or stage.every):
        return max(0.0, last)
    buckets = stage.buckets if stage.every else 0
    other = makespan(_events(stage, shards=shards, buckets=buckets), slowdown=slowdown) - plain
    return max(0.0, last + (stage.microbatches - 1) * other)


def _events(stage: StageTimes, *, shards: bool, buckets: int) -> list[Event]:
    """Return the events of a micro-batch: weights are gathered one block ahead of their use."""
    chain = [block for block, count in enumerate(stage.runs) for _ in range(int(count))]
    events: list[Event] = []

    def add(stream: str, seconds: float, *after: int) -> int:
        events.append(Event(stream, seconds, after))  # type: ignore[arg-type]
        return len(events) - 1

    computed: list[int] = []
    for block in chain:
        before = computed[-2:-1] if shards else []
        needs = [add("communication", float(stage.gather_forward[block]), *before)] if shards else []
        computed.append(add("compute", float(stage.forward[block]), *needs))
    made, sent = 0.0, 0
    total = sum(float(stage.gradients[block]) for block in chain)
    gathered = add("communication", float(stage.gather_backward[chain[-1]])) if shards and chain else None
    for place in range(len(chain) - 1, -1, -1):
        block = chain[place]
        needs = [] if gathered is None else [gathered]
        if shards and place:
            gathered = add("communication", float(stage.gather_backward[chain[place - 1]]), computed[-1])
        computed.append(add("compute", float(stage.backward[block]), *needs))
        if shards:
            add("communication", float(stage.scatter[block]), computed[-1])
        made += float(stage.gradients[block])
        complete = buckets if place == 0 else int(np.floor(buckets * made / total)) if total else 0
        while sent < complete:
            add("communication", stage.bucket_seconds, computed[-1])
            sent += 1
    return events

"""Computes exposed communication: seconds that a plan waits for gradients and shards that nothing overlaps.

Computation and communication work through their events in order; one starts when those that it waits for have ended.
While a collective is under way computation goes on at `beside` times its speed: 1 on devices that do both at once, 0
where one waits for the other.
"""

# ruff: noqa: FURB136 -- `max` takes three times as long as a comparison, and a search follows thousands of plans
from dataclasses import dataclass

import numpy as np

from trainwright.plan.parallel.mesh import Floats

__all__ = ["StageTimes", "exposed_seconds", "span_at_full_speed"]


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
    """Return the seconds of a micro-batch.

    While a collective is under way computation loses 1 - `beside` of its speed: that share of all communication is as
    if each waited for the other.
    """
    hidden = span_at_full_speed(stage, shards=shards, buckets=buckets)
    if beside == 1:
        return hidden
    communication = buckets * stage.bucket_seconds
    if shards:
        communication += float(stage.runs @ (stage.gather_forward + stage.gather_backward + stage.scatter))
    in_turn = float(stage.runs @ (stage.forward + stage.backward)) + communication
    return beside * hidden + (1 - beside) * in_turn


def span_at_full_speed(stage: StageTimes, *, shards: bool, buckets: int) -> float:
    """Return the makespan of `events_of` where computation is not slowed down: two clocks, without a list."""
    # Two clocks: when the computation that was issued so far ends, and when the communication does.
    forward, backward, gather_forward, gather_backward, scatter, gradients = _columns(stage)
    compute = before = communication = 0.0
    for place, seconds in enumerate(forward):
        if shards:
            # Gathered while the block before is at work, that is after the one before that.
            communication = (communication if communication > before else before) + gather_forward[place]
            before, compute = compute, communication if communication > compute else compute
        compute += seconds
    produced, sent, total = 0.0, 0, sum(gradients)
    gathered = 0.0
    if shards and forward:
        communication += gather_backward[-1]
        gathered = communication
    for place in range(len(forward) - 1, -1, -1):
        ready = gathered
        if shards and place:
            communication = (communication if communication > compute else compute) + gather_backward[place - 1]
            gathered = communication
        compute = (compute if compute > ready else ready) + backward[place]
        if shards:
            communication = (communication if communication > compute else compute) + scatter[place]
        produced += gradients[place]
        # Buckets are of one size: as large a share of them is full as there is of the gradients.
        complete = buckets if place == 0 else int(buckets * produced / total) if total else 0
        if complete > sent:
            # They travel one after the other, from when the first of them is full.
            start = communication if communication > compute else compute
            communication, sent = start + (complete - sent) * stage.bucket_seconds, complete
    return max(compute, communication)


def _columns(stage: StageTimes) -> list[list[float]]:
    """Return seconds and gradients of every run of the stage's chain."""
    chain = np.repeat(np.arange(len(stage.runs)), stage.runs.astype(np.int64))
    columns = (
        stage.forward, stage.backward, stage.gather_forward, stage.gather_backward, stage.scatter, stage.gradients
    )  # fmt: skip
    return [column[chain].tolist() for column in columns]

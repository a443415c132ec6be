"""Retention: a pure choice of the checkpoints to retain, by age, metric, step, pin and budget."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainwright.checkpoint.config import Retention
from trainwright.checkpoint.save.publish import Published

__all__ = ["RetentionChoice", "choose_retained"]


class RetentionChoice(NamedTuple):
    """What stays and what goes, each newest first."""

    keep: tuple[Published, ...]
    drop: tuple[Published, ...]


def choose_retained(
    checkpoints: Sequence[Published],
    policy: Retention,
    *,
    budget_bytes: int | None = None,
) -> RetentionChoice:
    """Choose among a run's checkpoints, given newest first.

    The newest that is not suspect (or if all are, the newest) and all pinned ones stay whatever the policy and the
    budget say. Over the budget, what the policy keeps goes oldest first, the best by metric last.
    """
    pinned = {place for place, one in enumerate(checkpoints) if one.manifest.pin is not None}
    safe = next((place for place, one in enumerate(checkpoints) if one.manifest.screen == "good"), 0)
    # Certain ones stay whatever the policy says: a run must never be left without a checkpoint to restore.
    certain = pinned | {safe} if checkpoints else pinned
    best = sorted(
        (place for place, one in enumerate(checkpoints) if not math.isnan(_metric_value(one, policy.metric))),
        key=lambda place: (_metric_value(checkpoints[place], policy.metric), place),
    )[: policy.best]
    every = [
        place
        for place, one in enumerate(checkpoints)
        if policy.every_steps and one.manifest.step % policy.every_steps == 0
    ]
    wanted = [*range(min(policy.last, len(checkpoints))), *every]
    keep, size = set[int](), 0
    # In order of importance: over a budget the oldest go first, and the best by metric last.
    for place in [*sorted(certain), *best, *sorted(wanted)]:
        fits = budget_bytes is None or size + checkpoints[place].manifest.size <= budget_bytes
        if place not in keep and (place in certain or fits):
            keep.add(place)
            size += checkpoints[place].manifest.size
    return RetentionChoice(
        tuple(one for place, one in enumerate(checkpoints) if place in keep),
        tuple(one for place, one in enumerate(checkpoints) if place not in keep),
    )


def _metric_value(checkpoint: Published, metric: str) -> float:
    metrics = checkpoint.manifest.report.get("metrics", {})
    value = float(metrics.get(metric.removeprefix("-"), math.nan)) if metric else math.nan
    return -value if metric.startswith("-") else value

"""Deletes old checkpoints by the retention policy: which stay by age, metric, step and pin; lists those of a run."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from trainwright.checkpoint.config import Retention
from trainwright.checkpoint.owner import Owner
from trainwright.checkpoint.save.publish import Published, quarantine
from trainwright.publishing import FileLayer, is_disk_full

__all__ = ["RetainedCheckpoints", "RetentionChoice", "choose_retained"]


class RetentionChoice(NamedTuple):
    """What stays and what goes, each newest first."""

    keep: tuple[Published, ...]
    drop: tuple[Published, ...]


def choose_retained(checkpoints: Sequence[Published], policy: Retention) -> RetentionChoice:
    """Choose among a run's checkpoints, given newest first.

    The newest and all pinned ones stay whatever the policy says.
    """
    places = range(len(checkpoints))
    manifests = [one.manifest for one in checkpoints]
    values = {place: _metric_value(checkpoints[place], policy.metric) for place in places}
    best = sorted(
        (place for place in places if not math.isnan(values[place])), key=lambda place: (values[place], place)
    )
    keep = {*range(policy.last), *best[: policy.best]}
    keep |= {place for place in places if manifests[place].pin is not None}
    if policy.every_steps:
        keep |= {place for place in places if manifests[place].step % policy.every_steps == 0}
    # The oldest of an epoch comes last, and is the one that was saved at its end.
    ends = {manifest.epoch: place for place, manifest in enumerate(manifests)}
    keep |= {ends[epoch] for epoch in sorted(ends, reverse=True)[: policy.epoch_ends]}
    return RetentionChoice(
        tuple(one for place, one in enumerate(checkpoints) if place in keep),
        tuple(one for place, one in enumerate(checkpoints) if place not in keep),
    )


class RetainedCheckpoints:
    """The retained checkpoints, newest first: adds, applies retention, frees space; on the first rank only.

    `find` returns all good checkpoints that are there; it is asked if nothing was restored.
    """

    def __init__(
        self,
        policy: Retention,
        *,
        owner: Owner,
        layer: FileLayer,
        first: bool,
        find: Callable[[], Iterable[Published]],
    ) -> None:
        self._policy, self._owner, self._layer = policy, owner, layer
        self._first, self._find = first, find
        self._kept: list[Published] | None = None

    def begin(self, line: Iterable[Published]) -> None:
        """Keep a line of checkpoints, newest first."""
        self._kept = list(line)

    def known(self) -> list[Published]:
        """Return what is kept, newest first; none on ranks that keep none."""
        if not self._first:
            return []
        # Nothing was restored: what is there counts for retention all the same.
        if self._kept is None:
            self.begin(self._find())
        return self._kept or []

    def add(self, published: Published, blocking_seconds: float) -> None:
        """Take note of a new checkpoint, and drop what need not stay; on the coordinator."""
        kept = [published, *self.known()]
        # Newest first by (lease, serial), as retention expects them.
        kept.sort(key=lambda one: (one.manifest.lease, one.manifest.serial), reverse=True)
        self._owner.committed(
            published,
            blocking_seconds=blocking_seconds,
            persist_seconds=time.time() - published.manifest.times["saved_at"],
        )
        self._kept = self._delete_others(kept, self._policy)

    def publish_with_room(self, publish: Callable[[], Published]) -> Published:
        """Publish; where there is no room, drop all that can go and try once more."""
        try:
            return publish()
        except OSError as error:
            if not is_disk_full(error):
                raise
        # All can go but the newest good one, and what is pinned.
        if self._first:
            self._kept = self._delete_others(self.known(), Retention(last=1))
        return publish()

    def _delete_others(self, checkpoints: list[Published], policy: Retention) -> list[Published]:
        choice = choose_retained(checkpoints, policy)
        for dropped in choice.drop:
            # Renamed first: a folder that is half removed has no checkpoint's name.
            trash = quarantine(self._layer, dropped.path, "trash")
            if trash is not None:
                self._layer.remove(trash)
        return list(choice.keep)


def _metric_value(checkpoint: Published, metric: str) -> float:
    metrics = checkpoint.manifest.report.get("metrics", {})
    value = float(metrics.get(metric.removeprefix("-"), math.nan)) if metric else math.nan
    return -value if metric.startswith("-") else value

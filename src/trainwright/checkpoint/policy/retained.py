"""The retained checkpoints of a folder, newest first: adds, applies retention, frees space."""

import errno
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from trainwright.checkpoint.config import CheckpointConfig, Retention
from trainwright.checkpoint.owner import Owner
from trainwright.checkpoint.policy.retention import choose_retained
from trainwright.checkpoint.save.publish import Published, quarantine
from trainwright.publishing import FileLayer

__all__ = ["NO_ROOM", "RetainedCheckpoints"]

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class RetainedCheckpoints:
    """The retained checkpoints, newest first: adds, applies retention, frees space; on the first rank only.

    The writer and the drain of tiers both publish, so a lock serialises changes.

    `find` returns all good checkpoints that are there, those of tiers too; it is asked if nothing was restored.
    """

    def __init__(
        self,
        folder: Path,
        config: CheckpointConfig,
        *,
        owner: Owner,
        layer: FileLayer,
        first: bool,
        find: Callable[[], Iterable[Published]],
    ) -> None:
        self._folder, self._config, self._owner, self._layer = folder, config, owner, layer
        self._first, self._find = first, find
        self._kept: list[Published] | None = None
        self._lock = threading.Lock()

    def begin(self, line: Iterable[Published]) -> None:
        """Keep what lies in the folder itself of a line of checkpoints."""
        self._kept = [one for one in line if one.path.is_relative_to(self._folder)]

    def known(self) -> list[Published]:
        """Return what is kept, newest first; none on ranks that keep none."""
        if not self._first:
            return []
        # Nothing was restored: what is there counts for retention all the same.
        if self._kept is None:
            self.begin(self._find())
        return self._kept or []

    def add(self, published: Published, blocking_seconds: float) -> None:
        """Take note of a checkpoint in the folder itself, and drop what need not stay; on the coordinator."""
        with self._lock:
            # A save that began later may have been published earlier.
            kept = [published, *self.known()]
            # Newest first by (lease, serial), as retention expects them.
            kept.sort(key=lambda one: (one.manifest.lease, one.manifest.serial), reverse=True)
            self._owner.committed(
                published,
                blocking_seconds=blocking_seconds,
                persist_seconds=time.time() - published.manifest.times["saved_at"],
            )
            self._kept = self._drop_others(kept, self._config.retention)

    def with_room(self, publish: Callable[[], Published]) -> Published:
        """Publish; where there is no room, drop all that can go and try once more."""
        try:
            return publish()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        # All can go but the newest good one, and what is pinned.
        if self._first:
            with self._lock:
                self._kept = self._drop_others(self.known(), Retention(last=1))
        return publish()

    def _drop_others(self, checkpoints: list[Published], policy: Retention) -> list[Published]:
        choice = choose_retained(checkpoints, policy, budget_bytes=self._config.budget_bytes)
        for dropped in choice.drop:
            trash = quarantine(self._layer, dropped.path, "trash")
            if trash is not None:
                self._layer.remove(trash)
        return list(choice.keep)

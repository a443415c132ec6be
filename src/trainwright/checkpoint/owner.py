"""The owner of checkpoints: a plain folder or a trial, as the Manager sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trainwright.checkpoint.restore.restored import Restored
from trainwright.checkpoint.save.publish import Published
from trainwright.checkpoint.save.snapshot import Buffer

__all__ = ["HasCheckpoints", "Owner"]


class HasCheckpoints(Protocol):
    """Whatever has checkpoints, such as a trial."""

    def checkpoint_owner(self) -> "Owner":
        """Return what a manager speaks with."""


@dataclass(slots=True, kw_only=True)
class Owner:
    """A folder of checkpoints, for a training outside of any study; a trial keeps a record of them as well."""

    folder: Path
    lease: int = 0
    """The run of the owner, from 1: its checkpoints lie in a folder of their own; 0 if runs are not told apart."""
    study: str = ""
    trial: int | None = None
    epoch: int = 0
    """The epochs that are done."""
    last_report: Mapping[str, Any] = field(default_factory=dict)
    """What is to be kept of its last report, as plain values, the numbers under `metrics`."""
    buffer: Buffer | None = None
    """The memory of its snapshots, if that outlives a manager."""

    def claim_checkpoints(self, manager: Any) -> None:
        """Take note of a manager. Several may use a folder: each publishes under names of its own."""

    def committed(self, published: Published, *, blocking_seconds: float, persist_seconds: float) -> None:
        """Take note of a checkpoint that is there now; called in the writer's thread."""

    def damaged(self, path: Path, why: str) -> None:
        """Take note of a checkpoint that was quarantined."""

    def leaves(self) -> bool:
        """Whether its training is to save at this step, and to end there."""
        return False

    def leave(self) -> None:
        """End the training, which has saved for the last time, if that is the owner's to do."""

    def resumed(self, restored: Restored) -> None:
        """Go on from where this checkpoint was saved."""
        self.epoch = restored.epoch

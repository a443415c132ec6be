"""The owner of checkpoints: a plain folder or a trial, as the Manager sees it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from trainwright.checkpoint.restore.restored import Restored
from trainwright.checkpoint.save.publish import Published

__all__ = ["DirectoryOwner", "HasCheckpoints", "Owner", "Saves"]


class Saves(Protocol):
    """What an owner may ask of its manager."""

    steps: int

    def save(self, *, wait: bool = False) -> Any:
        """Save now."""

    def close(self) -> None:
        """Finish what is under way."""


class HasCheckpoints(Protocol):
    """Whatever has checkpoints, such as a trial."""

    def checkpoint_owner(self) -> "Owner":
        """Return what a manager speaks with."""


class Owner(Protocol):
    """What a manager asks of the one whose state it keeps."""

    @property
    def lease(self) -> int:
        """The run of the owner, from 1: its checkpoints lie in a folder of their own; 0 if runs are not told apart."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Who it is, as manifests tell it: `study` and `trial`; empty if a folder is all there is."""

    @property
    def epoch(self) -> int:
        """The epochs that are done."""

    @property
    def last_report(self) -> Mapping[str, Any]:
        """What is to be kept of its last report, as plain values, the numbers under `metrics`."""

    def checkpoint_directory(self) -> Path:
        """Return the folder of all its checkpoints. May refuse."""

    def claim_checkpoints(self, saves: Saves) -> None:
        """Take note of the one manager, and refuse a second."""

    def committed(self, published: Published, *, blocking_seconds: float, persist_seconds: float) -> None:
        """Take note of a checkpoint that is there now; called in the writer's thread."""

    def damaged(self, path: Path, why: str) -> None:
        """Take note of a checkpoint that was quarantined."""

    def resumed(self, restored: Restored) -> None:
        """Go on from where this checkpoint was saved."""


class DirectoryOwner:
    """A plain folder of checkpoints, for a training outside of any study."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.epoch = 0

    @property
    def lease(self) -> int:
        """Runs are not told apart."""
        return 0

    @property
    def identity(self) -> Mapping[str, Any]:
        """Nothing but the folder."""
        return {}

    @property
    def last_report(self) -> Mapping[str, Any]:
        """Nothing is reported."""
        return {}

    def checkpoint_directory(self) -> Path:
        """Return the folder."""
        return self.folder

    def claim_checkpoints(self, saves: Saves) -> None:
        """Let several managers use the folder: each publishes under names of its own."""

    def committed(self, published: Published, *, blocking_seconds: float, persist_seconds: float) -> None:
        """Keep no record but the folder itself."""

    def damaged(self, path: Path, why: str) -> None:
        """Keep no record but the folder that was quarantined."""

    def resumed(self, restored: Restored) -> None:
        """Go on counting epochs."""
        self.epoch = restored.epoch

"""Verifies checkpoints: computes every stored checksum again."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.restore.restored import find_damages
from trainwright.checkpoint.tools.formats.format import format_of
from trainwright.checkpoint.tools.sources import find_newest, list_checkpoints
from trainwright.errors import CheckpointCorruptError, CheckpointFormatError

__all__ = ["Verification", "Verified", "verify"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """One checkpoint: how much was read, and what is wrong: each damage names file, chunk and tensors."""

    path: str
    files: int = 0
    bytes: int = 0
    step: int | None = None
    damages: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """Every checkpoint at or below a path."""

    path: str
    checkpoints: tuple[Verified, ...]

    @property
    def good(self) -> bool:
        """Whether none is damaged."""
        return not any(one.damages for one in self.checkpoints)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "good": self.good}


def verify(path: Path | str) -> Verification:
    """Read every byte of the checkpoint at `path`, or of all below it, and compare it with its checksums.

    Raises `CheckpointNotFoundError` where there is none, and `CheckpointFormatError` for a file of another kind.
    """
    path = Path(path)
    folders = list_checkpoints(path)
    if not folders:
        # Says what lies there instead.
        find_newest(path)
        kind = format_of(path).name
        raise CheckpointFormatError(
            f"verify: got {path}, a {kind} file, which keeps no checksums of its tensors; allowed: what a Manager wrote"
        )
    return Verification(path=str(path), checkpoints=tuple(map(_verify_checkpoint, folders)))


def _verify_checkpoint(folder: Path) -> Verified:
    try:
        manifest = Manifest.read(folder)
    except CheckpointCorruptError as error:
        return Verified(path=str(folder), damages=(str(error),))
    return Verified(
        path=str(folder),
        files=len(manifest.files),
        bytes=manifest.size,
        step=manifest.step,
        damages=tuple(find_damages(folder, manifest)),
    )

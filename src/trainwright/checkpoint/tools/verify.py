"""Verifies checkpoints: computes every stored checksum again."""

import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.restore.restored import find_damages
from trainwright.checkpoint.tools.formats.format import format_of
from trainwright.checkpoint.tools.sources import find_newest, list_checkpoints
from trainwright.errors import CheckpointCorruptError

__all__ = ["Verification", "Verified", "verify"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """One checkpoint: how much was read, and what is wrong: each damage names file, chunk and tensors.

    `checksums` is False for a format that keeps none: then it was only read from end to end.
    """

    path: str
    format: str
    files: int = 0
    bytes: int = 0
    checksums: bool = True
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

    Raises `CheckpointNotFoundError` or `CheckpointFormatError` where there is none.
    """
    path = Path(path)
    folders = list_checkpoints(path)
    if folders:
        checked = tuple(_verify_manager(folder) for folder in folders)
    else:
        # Says what lies there instead.
        find_newest(path)
        checked = (_verify_file(path),)
    return Verification(path=str(path), checkpoints=checked)


def _verify_manager(folder: Path) -> Verified:
    try:
        manifest = Manifest.read(folder)
    except CheckpointCorruptError as error:
        return Verified(path=str(folder), format="manager", damages=(str(error),))
    return Verified(
        path=str(folder),
        format="manager",
        files=len(manifest.files),
        bytes=manifest.size,
        step=manifest.step,
        damages=tuple(find_damages(folder, manifest)),
    )


def _verify_file(path: Path) -> Verified:
    kind = format_of(path)
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    # Of the formats only zip files have checksums; the others are read from end to end.
    zipped = kind.name == "torch"
    wrong = []
    try:
        if zipped:
            wrong += _bad_entry(path)
        with kind.open(path) as stored:
            for name in stored:
                try:
                    # A mapped tensor is read only when it is looked at.
                    stored[name].clone()
                except CheckpointCorruptError as error:
                    wrong.append(str(error))
    except CheckpointCorruptError as error:
        wrong.append(str(error))
    return Verified(
        path=str(path),
        format=kind.name,
        files=len(files),
        bytes=sum(file.stat().st_size for file in files),
        checksums=zipped,
        damages=tuple(wrong),
    )


def _bad_entry(path: Path) -> list[str]:
    """Compare the checksums of a zip file's entries; return what is wrong with the first bad one."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, OSError) as error:
        return [f"{path.name} cannot be read: {error}"]
    return [] if bad is None else [f"{path.name} is damaged in its entry {bad}"]

"""Shows what a checkpoint holds, from its manifest or header, and verifies all stored checksums."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.restore.restored import find_damages
from trainwright.checkpoint.tools.formats.format import format_of
from trainwright.checkpoint.tools.sources import find_newest, list_checkpoints, open_source
from trainwright.errors import CheckpointCorruptError, CheckpointFormatError

__all__ = ["Inspected", "Inspection", "Verification", "Verified", "inspect", "verify"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspected:
    """A tensor of a checkpoint; `shards` is the number of boxes that it is stored in, `tied` the name it shares."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    shards: int = 1
    tied: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What a checkpoint holds. What only a manager knows is None for the file of a format.

    `bytes` are those of the tensors, tied ones once; `steps` all that lie in the folder that was given, oldest first.
    """

    path: str
    format: str
    tensors: tuple[Inspected, ...]
    bytes: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    step: int | None = None
    epoch: int | None = None
    world_size: int | None = None
    study: str | None = None
    trial: int | None = None
    lease: int | None = None
    parent: str | None = None
    digest: str | None = None
    screen: str | None = None
    fingerprint: Mapping[str, Any] | None = None
    steps: tuple[int, ...] = ()


def inspect(path: Path | str) -> Inspection:
    """Return what the checkpoint at `path` holds; of a folder with many steps, the newest.

    Raises `CheckpointNotFoundError`, `CheckpointFormatError` or `CheckpointCorruptError` where there is none.
    """
    import torch

    with open_source(path) as opened:
        manifest, stored = opened.manifest, opened.stored
        shards = {} if manifest is None else {record.name: len(record.shards) for record in manifest.tensors}
        tensors = tuple(
            Inspected(
                name=name,
                dtype=info.dtype,
                shape=info.shape,
                bytes=prod(info.shape) * int(getattr(torch, info.dtype).itemsize),
                shards=shards.get(info.tied or name, 1),
                tied=info.tied,
            )
            for name, info in stored.infos.items()
        )
        found = Inspection(
            path=str(opened.path),
            format=opened.format,
            tensors=tensors,
            bytes=sum(tensor.bytes for tensor in tensors if tensor.tied is None),
            lost=stored.lost,
        )
        if manifest is None:
            return replace(found, metadata=dict(stored.metadata))
        folders = list_checkpoints(Path(path))
        return replace(
            found,
            **{name: getattr(manifest, name) for name in ("step", "epoch", "world_size", "trial", "parent", "digest")},
            study=manifest.study or None,
            lease=manifest.lease or None,
            screen=manifest.screen,
            fingerprint=dict(manifest.fingerprint),
            steps=tuple(sorted({int(one.name.removeprefix("step-").split(".")[0]) for one in folders})),
        )


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

"""Shows what a checkpoint holds, from its manifest or header; reads no tensor."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.tools.formats.registry import format_of
from trainwright.checkpoint.tools.sources import find_newest, infos_of_manifest, list_checkpoints

__all__ = ["Inspected", "Inspection", "inspect"]


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

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def inspect(path: Path | str) -> Inspection:
    """Return what the checkpoint at `path` holds; of a folder with many steps, the newest.

    Raises `CheckpointNotFoundError`, `CheckpointFormatError` or `CheckpointCorruptError` where there is none.
    """
    path = Path(path)
    newest = find_newest(path)
    if newest is not None:
        return _of_manager(path, *newest)
    kind = format_of(path)
    with kind.open(path) as stored:
        tensors = tuple(
            Inspected(
                name=name,
                dtype=info.dtype,
                shape=info.shape,
                bytes=_tensor_bytes(info.dtype, info.shape),
                tied=info.tied,
            )
            for name, info in stored.infos.items()
        )
        return Inspection(
            path=str(path),
            format=kind.name,
            tensors=tensors,
            bytes=sum(tensor.bytes for tensor in tensors if tensor.tied is None),
            metadata=dict(stored.metadata),
            lost=stored.lost,
        )


def _of_manager(given: Path, path: Path, manifest: Manifest) -> Inspection:
    boxes = {record.name: len(record.shards) for record in manifest.tensors}
    tensors = tuple(
        Inspected(
            name=name,
            dtype=info.dtype,
            shape=info.shape,
            bytes=_tensor_bytes(info.dtype, info.shape),
            shards=boxes[info.tied or name],
            tied=info.tied,
        )
        for name, info in infos_of_manifest(manifest).items()
    )
    return Inspection(
        path=str(path),
        format="manager",
        tensors=tensors,
        bytes=sum(tensor.bytes for tensor in tensors if tensor.tied is None),
        step=manifest.step,
        epoch=manifest.epoch,
        world_size=manifest.world_size,
        study=manifest.study or None,
        trial=manifest.trial,
        lease=manifest.lease or None,
        parent=manifest.parent,
        digest=manifest.digest,
        screen=manifest.screen,
        fingerprint=dict(manifest.fingerprint),
        steps=tuple(sorted({_inspect_step(one) for one in list_checkpoints(given)})),
    )


def _inspect_step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-").split(".")[0])


def _tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    import torch

    return prod(shape) * int(getattr(torch, dtype).itemsize)

"""Writing a snapshot: the files of one checkpoint from one buffer, published; here, or in a thread of the manager."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainwright.checkpoint.digest import cuts, digest
from trainwright.checkpoint.files import FileLayer
from trainwright.checkpoint.manifest import FileRecord, Manifest, TensorRecord
from trainwright.checkpoint.publish import Published, publish, write_file
from trainwright.checkpoint.shards import Layout, write_shard

__all__ = ["STATE", "Job", "shard_name", "write_checkpoint"]

STATE = "state.json"
"""The name of the file with all that is no tensor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One checkpoint to write below `home`: a manifest without files and tensors, the tree, the data's layout.

    `screened` names the tensors that must be finite.
    """

    home: Path
    manifest: Manifest
    tree: Mapping[str, Any]
    layout: Layout
    screened: frozenset[str] = frozenset()


def shard_name(rank: int) -> str:
    """Return the name of a rank's data file."""
    return f"rank-{rank:05d}.safetensors"


def write_checkpoint(layer: FileLayer, job: Job, memory: memoryview) -> Published:
    """Write and publish a checkpoint whose tensors lie in `memory` as the layout says. Raises `OSError`."""

    def write(folder: Path) -> Manifest:
        shard, tensors = _write_shard(layer, folder, job.layout, memory)
        tree = json.dumps(job.tree, separators=(",", ":"), allow_nan=False).encode()
        write_file(layer, folder / STATE, [memoryview(tree)])
        chunks = tuple(digest(tree[start:stop]) for start, stop in cuts(0, len(tree)))
        state = FileRecord(name=STATE, bytes=len(tree), chunks=chunks)
        return replace(job.manifest, files=(shard, state), tensors=tensors)

    return publish(layer, job.home, job.manifest.step, job.manifest.lease, write)


def _write_shard(
    layer: FileLayer, folder: Path, layout: Layout, memory: memoryview
) -> tuple[FileRecord, tuple[TensorRecord, ...]]:
    name = shard_name(0)
    handle = layer.create(folder / name)
    try:
        records = write_shard(lambda piece: layer.write(handle, piece), name, layout, memory)
        layer.sync(handle)
    finally:
        layer.close(handle)
    return records

"""Writing the files of one checkpoint from a snapshot, and publishing them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainwright.checkpoint.digest import chunk_ranges, digest_bytes
from trainwright.checkpoint.manifest import FileRecord, Manifest, TensorRecord
from trainwright.checkpoint.ranks.reshard import TensorShare
from trainwright.checkpoint.save.publish import Published, publish
from trainwright.checkpoint.save.shard_file import ShardFile, write_shard
from trainwright.checkpoint.state.captured import Captured
from trainwright.publishing import FileLayer, write_new

__all__ = ["STATE", "WriteJob", "Written", "shard_name", "write_checkpoint", "write_data", "write_tree"]

STATE = "state.json"
"""The name of the file with all that is no tensor."""

Written = tuple[FileRecord, tuple[TensorRecord, ...]]
"""The record of a data file, and those of its tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteJob:
    """One checkpoint to write below `home`: a manifest without files and tensors, the state, the layout of the buffer.

    Of the buffer this process writes `mine`, its head; `shares` says what part of each tensor that is, if others have
    parts too.
    """

    home: Path
    manifest: Manifest
    captured: Captured
    layout: ShardFile
    mine: ShardFile
    shares: Mapping[str, TensorShare] = field(default_factory=dict)


def shard_name(rank: int) -> str:
    """Return the name of a rank's data file."""
    return f"rank-{rank:05d}.safetensors"


def write_checkpoint(layer: FileLayer, job: WriteJob, memory: memoryview) -> Published:
    """Write and publish a checkpoint whose tensors lie in `memory` as the layout says. Raises `OSError`."""

    def write(folder: Path) -> Manifest:
        shard, tensors = write_data(layer, folder, job.mine, memory)
        return replace(job.manifest, files=(shard, write_tree(layer, folder, job.captured.tree)), tensors=tensors)

    return publish(layer, job.home, job.manifest.step, job.manifest.lease, write)


def write_data(layer: FileLayer, folder: Path, layout: ShardFile, memory: memoryview, *, rank: int = 0) -> Written:
    """Write and sync the data file of a rank; return its record and those of its tensors. Raises `OSError`."""
    name = shard_name(rank)
    handle = layer.create(folder / name)
    try:
        records = write_shard(lambda piece: layer.write(handle, piece), name, layout, memory)
        layer.sync(handle)
    finally:
        layer.close(handle)
    return records


def write_tree(layer: FileLayer, folder: Path, tree: Mapping[str, Any]) -> FileRecord:
    """Write and sync the file of all that is no tensor; return its record. Raises `OSError`."""
    content = json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()
    write_new(layer, folder / STATE, [memoryview(content)])
    chunks = tuple(digest_bytes(content[start:stop]) for start, stop in chunk_ranges(0, len(content)))
    return FileRecord(name=STATE, bytes=len(content), chunks=chunks)

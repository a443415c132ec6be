"""Write and publish a checkpoint: files in a temporary folder, synced, the manifest last, renamed into place.

FOLDER/step-000000001200/            a folder with a valid manifest is a checkpoint; a step saved again is -...1200.2
FOLDER/.tmp-step-000000001200.1.../  being written: lease, host, process
FOLDER/.bad-step-000000001200-cd/    damaged, quarantined
FOLDER/.trash-step-000000001200-ef/  dropped, being removed
"""

import json
import os
import platform
import re
import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainwright.checkpoint.digest import chunk_ranges, digest_bytes
from trainwright.checkpoint.manifest import MANIFEST, FileRecord, Manifest, TensorRecord
from trainwright.checkpoint.ranks.tensor_slices import TensorShare
from trainwright.checkpoint.save.shard_file import ShardFile, write_shard
from trainwright.checkpoint.state.captured import Captured
from trainwright.errors import CheckpointError, CheckpointSpaceError
from trainwright.publishing import FileLayer, new_file

__all__ = [
    "STATE",
    "Published",
    "WriteJob",
    "list_published",
    "publish",
    "quarantine",
    "refuse_unwritable",
    "remove_leftovers",
    "step_name",
    "write_checkpoint",
    "write_data",
    "write_tree",
]

_NAME = re.compile(r"step-(\d{12,})(?:\.(\d+))?\Z")
_MOST_TRIES = 1000
_LONG_AGO_SECONDS = 86_400.0
_HERE = f"{zlib.crc32(platform.node().encode()):08x}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A checkpoint that is there: its folder and its manifest."""

    path: Path
    manifest: Manifest


def step_name(step: int) -> str:
    """Return the name of a step's folder."""
    return f"step-{step:012d}"


def list_published(home: Path) -> list[Path]:
    """Return the folders in `home` that are named as checkpoints, newest step first; their manifests may be damaged."""
    if not home.is_dir():
        return []
    named = ((_NAME.fullmatch(path.name), path) for path in home.iterdir())
    return [
        path
        for _, _, path in sorted(
            ((int(match[1]), int(match[2] or 1), path) for match, path in named if match is not None), reverse=True
        )
    ]


def publish(
    layer: FileLayer, home: Path, step: int, lease: int, write: Callable[[Path, ExitStack], Manifest]
) -> Published:
    """Let `write` fill a temporary folder and return the manifest; then make it the checkpoint of `step`.

    Files of the stack that `write` is given are synced at its end.

    Raises `OSError` if it cannot be done; nothing is left of it then, and what was there before still is.
    """
    temporary = home / f".tmp-{step_name(step)}.{lease}.{_HERE}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        # Everything is written below a hidden name first. A crash leaves that folder, and never half a checkpoint.
        layer.make_folder(temporary)
        # All files are written before the first is waited for: the disk then brings them down together.
        with ExitStack() as files:
            manifest = write(temporary, files)
            _write_file(layer, temporary / MANIFEST, files, manifest.to_bytes())
        layer.sync_folder(temporary)
        # One rename publishes; syncing the parent makes the new name survive the machine.
        path = _rename_to_free(layer, temporary, home / step_name(step))
        layer.sync_folder(home)
    except (OSError, CheckpointError):
        layer.remove(temporary)
        raise
    return Published(path=path, manifest=manifest)


def refuse_unwritable(layer: FileLayer, home: Path) -> None:
    """Raise `CheckpointSpaceError` if nothing can be saved in a folder: now, not after hours of training."""
    probe = home / f".probe-{secrets.token_hex(4)}"
    try:
        layer.make_folder(probe)
        probe.rmdir()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CheckpointSpaceError(
            f"{home}: checkpoints cannot be written there: {reason}; give a folder that can"
        ) from error


def quarantine(layer: FileLayer, path: Path, mark: str) -> Path | None:
    """Rename a checkpoint's folder out of the way, as `.bad-...` or `.trash-...`; None if it was gone or may not be."""
    aside = path.with_name(f".{mark}-{path.name}-{secrets.token_hex(4)}")
    with suppress(OSError):
        layer.rename(path, aside)
        return aside
    return None


def remove_leftovers(layer: FileLayer, home: Path, *, ended: bool) -> None:
    """Remove what was dropped, and what was never published if its writer is gone: all of it in a home that `ended`."""
    if not home.is_dir():
        return
    for path in home.iterdir():
        if path.name.startswith(".trash-") or (path.name.startswith(".tmp-") and (ended or _is_left_over(path))):
            layer.remove(path)


def _is_left_over(path: Path) -> bool:
    """Whether the writer of a temporary folder is gone: a process of this host that is no more, or one of long ago."""
    # The name says who writes: a process of this host can be asked for, that of another only waited for.
    host, process = path.name.split(".")[-3:-1]
    if host == _HERE and process.isdigit():
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            # The process exists and belongs to another user.
            return False
        return False
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > _LONG_AGO_SECONDS
    return False


def _rename_to_free(layer: FileLayer, source: Path, target: Path) -> Path:
    """Rename to the first free of step-N, step-N.2, ...: a name is never used twice."""
    for number in range(1, _MOST_TRIES):
        path = target if number == 1 else target.with_name(f"{target.name}.{number}")
        if path.exists():
            continue
        try:
            layer.rename(source, path)
        except FileExistsError:
            # Another writer was faster.
            continue
        except OSError as error:
            # File systems report a target that is not empty by different errors.
            if path.exists() and source.exists():
                continue
            raise error from None
        return path
    raise FileExistsError(f"{target} was saved {_MOST_TRIES} times")


STATE = "state.json"
"""The name of the file with all that is no tensor."""


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


def write_checkpoint(layer: FileLayer, job: WriteJob, memory: memoryview) -> Published:
    """Write and publish a checkpoint whose tensors lie in `memory` as the layout says. Raises `OSError`."""

    def write(folder: Path, files: ExitStack) -> Manifest:
        shard, tensors = write_data(layer, folder, files, job.mine, memory)
        tree = write_tree(layer, folder, files, job.captured.tree)
        return replace(job.manifest, files=(shard, tree), tensors=tensors)

    return publish(layer, job.home, job.manifest.step, job.manifest.lease, write)


def write_data(
    layer: FileLayer, folder: Path, files: ExitStack, layout: ShardFile, memory: memoryview, *, rank: int = 0
) -> tuple[FileRecord, tuple[TensorRecord, ...]]:
    """Write the data file of a rank, synced when `files` end; return its record and those of its tensors."""
    name = f"rank-{rank:05d}.safetensors"
    handle = files.enter_context(new_file(layer, folder / name))
    return write_shard(lambda piece: layer.write(handle, piece), name, layout, memory)


def write_tree(layer: FileLayer, folder: Path, files: ExitStack, tree: Mapping[str, Any]) -> FileRecord:
    """Write the file of all that is no tensor, synced when `files` end; return its record."""
    content = json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()
    _write_file(layer, folder / STATE, files, content)
    chunks = tuple(digest_bytes(content[start:stop]) for start, stop in chunk_ranges(0, len(content)))
    return FileRecord(name=STATE, bytes=len(content), chunks=chunks)


def _write_file(layer: FileLayer, path: Path, files: ExitStack, content: bytes) -> None:
    layer.write(files.enter_context(new_file(layer, path)), memoryview(content))

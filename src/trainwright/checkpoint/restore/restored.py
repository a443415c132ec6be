"""Finds and reads the checkpoint to resume from, the newest good one of the lineage; quarantines damaged ones."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.checkpoint.digest import digest_file, kind_of
from trainwright.checkpoint.manifest import FileRecord, Manifest, TensorRecord
from trainwright.checkpoint.save.publish import STATE, Published, list_published, quarantine
from trainwright.checkpoint.state.differences import Difference
from trainwright.errors import CheckpointCorruptError
from trainwright.publishing import FileLayer, write_file

__all__ = [
    "Restored",
    "find_damages",
    "list_homes",
    "list_quarantined",
    "mark_start",
    "read_lineage",
    "read_tree",
    "records_by_name",
    "verify_digests",
]

_START = "start.json"
"""In a lease's folder: the checkpoint that it went on from. What earlier leases publish later is not of its line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What was restored: the checkpoint, what differs from when it was saved, and the plain values among the items.

    `values` has the items that cannot change in place, such as numbers.
    """

    path: Path
    manifest: Manifest
    differences: tuple[Difference, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def step(self) -> int:
        """The optimizer steps that were done."""
        return self.manifest.step

    @property
    def epoch(self) -> int:
        """The epochs that were done."""
        return self.manifest.epoch


def list_homes(folder: Path, lease: int) -> list[tuple[int, Path]]:
    """Return the folders of checkpoints of this run and of earlier ones, with their leases, newest first."""
    if not lease:
        return [(0, folder)]
    numbered = (
        (int(path.name.removeprefix("lease-")), path)
        for path in folder.glob("lease-*")
        if path.name.removeprefix("lease-").isdigit()
    )
    return sorted(((number, path) for number, path in numbered if number <= lease), reverse=True)


def read_lineage(
    layer: FileLayer, folder: Path, lease: int, damaged: Callable[[Path, str], None]
) -> Iterator[Published]:
    """Yield the checkpoints that a run may go on from, newest first; one without a valid manifest is quarantined.

    What an earlier lease published after a later one had gone on from it is passed over: it is of no line.
    """
    bound: tuple[float, float] = (lease, math.inf)
    for number, home in list_homes(folder, lease):
        whole = []
        for path in list_published(home):
            try:
                whole.append(Published(path=path, manifest=Manifest.read(path)))
            except CheckpointCorruptError as error:
                # A folder that is gone was dropped by another run meanwhile.
                if path.exists():
                    quarantine(layer, path, "bad")
                    damaged(path, str(error))
        for published in sorted(whole, key=lambda one: one.manifest.serial, reverse=True):
            # Serials grow within a lease, so (lease, serial) orders all checkpoints of a run.
            if (number, published.manifest.serial) <= bound:
                yield published
        # What an earlier lease published after this one had started from it is on another line.
        bound = min(bound, _read_start(home))


def mark_start(home: Path, manifest: Manifest | None) -> None:
    """Write down what the run of a lease goes on from; nothing: anew."""
    lease, serial = (manifest.lease, manifest.serial) if manifest is not None else (0, 0)
    # Without this file a later restore considers more checkpoints than it has to, never fewer.
    with suppress(OSError):
        write_file(home / _START, json.dumps({"lease": lease, "serial": serial}))


def list_quarantined(folder: Path, lease: int) -> list[Path]:
    """Return what was quarantined as damaged in this run and earlier ones."""
    return [path for _, home in list_homes(folder, lease) for path in home.glob(".bad-*")]


def _read_start(home: Path) -> tuple[float, float]:
    try:
        start = json.loads((home / _START).read_bytes())
        return start["lease"], start["serial"]
    except (OSError, ValueError, KeyError, TypeError):
        return math.inf, math.inf


def find_damages(folder: Path, manifest: Manifest, *, files: frozenset[str] | None = None) -> Iterator[str]:
    """Yield a phrase for each damage: file, chunk, and the tensors in it; nothing if all is well.

    All bytes of all files are read; with `files`, of these alone.
    """
    for record in manifest.files:
        if files is not None and record.name not in files:
            continue
        path = folder / record.name
        try:
            size = path.stat().st_size
            if size != record.bytes:
                yield f"{record.name} has {size} bytes, not {record.bytes}"
                continue
            # A file of the right size is read whole; its chunks tell which tensors are damaged.
            seen = digest_file(path, record.ends, kind=kind_of("".join(record.chunks[:1])))
        except OSError as error:
            yield f"{record.name} cannot be read: {(error.strerror or str(error)).lower()}"
            continue
        for number, (chunk, expected) in enumerate(zip(seen, record.chunks, strict=False)):
            if chunk != expected:
                start, stop = record.chunk_range(number)
                tensors = _tensors_in(manifest, record, start, stop)
                yield f"{record.name} is damaged in chunk {number} (bytes {start} to {stop}{tensors})"
        if len(seen) != len(record.chunks):
            yield f"{record.name} has {len(seen)} chunks, not {len(record.chunks)}"


def verify_digests(published: Published) -> None:
    """Verify all digests of a checkpoint; raise `CheckpointCorruptError` at the first chunk that differs."""
    for damage in find_damages(published.path, published.manifest):
        raise CheckpointCorruptError(f"{published.path}: {damage}")


def records_by_name(manifest: Manifest) -> dict[str, TensorRecord]:
    """Return a manifest's tensors by every name that they have."""
    records = {record.name: record for record in manifest.tensors}
    return records | {alias: records[name] for alias, name in manifest.ties.items()}


def read_tree(published: Published) -> dict[str, Any]:
    """Return all that is no tensor; checked. Raises `CheckpointCorruptError`."""
    damage = next(find_damages(published.path, published.manifest, files=frozenset({STATE})), None)
    if damage is not None:
        raise CheckpointCorruptError(f"{published.path}: {damage}")
    tree: dict[str, Any] = json.loads((published.path / STATE).read_bytes())
    return tree


def _tensors_in(manifest: Manifest, record: FileRecord, start: int, stop: int) -> str:
    names = [
        tensor.name
        for tensor in manifest.tensors
        for shard in tensor.shards
        if shard.file == record.name and shard.start < stop and shard.start + shard.bytes > start
    ]
    return "".join(f", {name}" for name in names[:3]) + (", ..." if len(names) > 3 else "")

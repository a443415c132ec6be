"""The manifest of a checkpoint: identity, files, tensors, and a digest over all of it.

Canonical JSON with the digest of all bytes before it as its last member. It is written last: a folder without a valid
manifest is no checkpoint.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from trainwright.checkpoint.digest import CHUNK_BYTES, combine_digests, digest_bytes
from trainwright.errors import CheckpointCorruptError, CheckpointVersionError

__all__ = ["MANIFEST", "SCHEMA", "FileRecord", "Manifest", "ShardRecord", "TensorRecord"]

SCHEMA = 1
"""The newest form of manifests that this version reads, and the one that it writes."""

MANIFEST = "manifest.json"
"""The name of the manifest in a checkpoint's folder."""

_TAIL = re.compile(rb',"digest":"([0-9a-f]{32})"}\Z')


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """A file of a checkpoint: its name in the folder, its size, and the digests of its chunks.

    `ends` says where each chunk ends; empty: every 16 MiB.
    """

    name: str
    bytes: int
    chunks: tuple[str, ...]
    ends: tuple[int, ...] = ()

    def chunk_range(self, number: int) -> tuple[int, int]:
        """Return the first byte of a chunk and the one behind its last."""
        if self.ends:
            return (self.ends[number - 1] if number else 0), self.ends[number]
        return number * CHUNK_BYTES, min((number + 1) * CHUNK_BYTES, self.bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRecord:
    """A slice of a tensor in a file: from `offsets`, of `lengths`, its `bytes` at `start`, row-major."""

    file: str
    start: int
    bytes: int
    digest: str
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorRecord:
    """A tensor of a checkpoint: its name, its torch dtype ("float32"), its global shape, the slices that cover it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[ShardRecord, ...]

    @property
    def size(self) -> int:
        """Bytes over all shards."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def digest(self) -> str:
        """The digest of its content; of equal content it is equal if it is cut into equal slices."""
        return combine_digests([shard.digest for shard in self.shards])


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a checkpoint is.

    `step` counts optimizer steps, `epoch` the epochs done, `samples_seen` the samples trained on, `serial` the
    checkpoints of its folder in the order in which they were saved. `parent` is the digest of the manifest that the run
    went on from. `ties` maps names to the name under which their tensor is stored.
    `screen` is "good", `report` what the trial reported with it, `times` are in seconds.
    """

    step: int
    epoch: int = 0
    samples_seen: int = 0
    serial: int = 0
    study: str = ""
    trial: int | None = None
    lease: int = 0
    world_size: int = 1
    parent: str | None = None
    pin: str | None = None
    format: str = "safetensors"
    screen: str = "good"
    report: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    files: tuple[FileRecord, ...] = ()
    tensors: tuple[TensorRecord, ...] = ()
    schema: int = SCHEMA

    @property
    def size(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(file.bytes for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the content of `manifest.json`."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        plain["files"] = [_plain(file) for file in self.files]
        plain["tensors"] = [
            {**_plain(tensor), "shards": [_plain(shard) for shard in tensor.shards]} for tensor in self.tensors
        ]
        # Canonical JSON: equal manifests have equal bytes and so one digest.
        body = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()[:-1]
        return b'%b,"digest":"%b"}' % (body, digest_bytes(body).encode())

    @property
    def digest(self) -> str:
        """The manifest's own digest, which names the checkpoint."""
        return self.to_bytes()[-34:-2].decode()

    @classmethod
    def from_bytes(cls, content: bytes, path: Path) -> "Manifest":
        """Return the manifest that `encoded` gave; `path` is for the error's sentence.

        Raises `CheckpointCorruptError` if a byte of it changed, `CheckpointVersionError` if it is of a newer form.
        """
        # The digest is the last field, over all bytes before it: a single flipped bit is found.
        tail = _TAIL.search(content)
        if tail is None or digest_bytes(content[: tail.start()]).encode() != tail[1]:
            raise CheckpointCorruptError(f"{path}: the manifest is damaged: its digest does not fit its content")
        plain = json.loads(content)
        if plain["schema"] > SCHEMA:
            raise CheckpointVersionError(
                f"{path}: the checkpoint is of form {plain['schema']}; this version reads up to {SCHEMA}; upgrade "
                "trainwright"
            )
        plain.pop("digest")
        plain["files"] = tuple(FileRecord(**_tuples(file)) for file in plain["files"])
        plain["tensors"] = tuple(
            TensorRecord(
                name=tensor["name"],
                dtype=tensor["dtype"],
                shape=tuple(tensor["shape"]),
                shards=tuple(ShardRecord(**_tuples(shard)) for shard in tensor["shards"]),
            )
            for tensor in plain["tensors"]
        )
        return cls(**plain)

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Return the manifest in a folder. Raises as `decoded`, and `CheckpointCorruptError` if there is none."""
        path = folder / MANIFEST
        try:
            content = path.read_bytes()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CheckpointCorruptError(f"{path}: the manifest cannot be read: {reason}") from error
        return cls.from_bytes(content, path)


def _plain(record: FileRecord | ShardRecord | TensorRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _tuples(plain: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}

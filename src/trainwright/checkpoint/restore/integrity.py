"""Integrity: finds the damaged chunks of a checkpoint, and the tensors in them."""

from collections.abc import Iterator
from pathlib import Path

from trainwright.checkpoint.digest import digest_file, kind_of
from trainwright.checkpoint.manifest import FileRecord, Manifest

__all__ = ["find_damages"]


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


def _tensors_in(manifest: Manifest, record: FileRecord, start: int, stop: int) -> str:
    names = [
        tensor.name
        for tensor in manifest.tensors
        for shard in tensor.shards
        if shard.file == record.name and shard.start < stop and shard.start + shard.bytes > start
    ]
    return "".join(f", {name}" for name in names[:3]) + (", ..." if len(names) > 3 else "")

"""Opens whatever holds a checkpoint: a file of any format, or a folder that a Manager wrote."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.checkpoint.manifest import MANIFEST, Manifest
from trainwright.checkpoint.ranks.tensor_slices import TensorSlice, open_slices
from trainwright.checkpoint.restore.restored import find_damages
from trainwright.checkpoint.save.publish import STATE, list_published
from trainwright.checkpoint.tools.formats.format import Stored, TensorInfo, format_of
from trainwright.errors import CheckpointCorruptError, CheckpointNotFoundError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CheckpointSource", "find_newest", "list_checkpoints", "open_source"]

_LEASE = re.compile(r"lease-(\d+)\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSource:
    """An open checkpoint: where it is, what it holds, and its manifest if a manager wrote it."""

    path: Path
    # "manager", or a format's name.
    format: str
    stored: Stored
    manifest: Manifest | None = None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of a manager's checkpoints: `folder` itself, or all below it, newest lease and step first."""
    if (folder / MANIFEST).is_file():
        return [folder]
    if not folder.is_dir():
        return []
    leases = [(int(match[1]), path) for path in folder.iterdir() if (match := _LEASE.fullmatch(path.name))]
    homes = [path for _, path in sorted(leases, reverse=True)]
    return [path for home in [*homes, folder] for path in list_published(home)]


def find_newest(path: Path) -> tuple[Path, Manifest] | None:
    """Return the newest of a manager's checkpoints at or below a path, whose manifest is valid; None: no manager's.

    Raises `CheckpointNotFoundError` if nothing was ever published there, and what is wrong with the manifest if that is
    all there is.
    """
    candidates = list_checkpoints(path)
    if not candidates:
        hidden = sorted(one.name for one in path.glob(".*-step-*")) if path.is_dir() else []
        if hidden:
            raise CheckpointNotFoundError(
                f"checkpoint: got {path}, which holds nothing but {', '.join(hidden[:3])}: unfinished, damaged or "
                "dropped; allowed: a folder with a published step"
            )
        return None
    # A damaged manifest is passed over, as a restore would; it is reported only if there is no other.
    wrong: CheckpointCorruptError | None = None
    for candidate in candidates:
        try:
            return candidate, Manifest.read(candidate)
        except CheckpointCorruptError as error:
            wrong = wrong or error
    raise wrong or CheckpointNotFoundError(f"checkpoint: got {path}, which holds none")


@contextmanager
def open_source(path: Path | str) -> Iterator[CheckpointSource]:
    """Open a checkpoint of any kind; of a folder with many steps, the newest."""
    path = Path(path)
    newest = find_newest(path)
    with ExitStack() as stack:
        if newest is not None:
            folder, manifest = newest
            stored = stack.enter_context(_open_manager(folder, manifest))
            yield CheckpointSource(path=folder, format="manager", stored=stored, manifest=manifest)
            return
        kind = format_of(path)
        yield CheckpointSource(path=path, format=kind.name, stored=stack.enter_context(kind.open(path)))


def _infos_of(manifest: Manifest) -> dict[str, TensorInfo]:
    """Return the tensors of a manifest, tied names too."""
    infos = {record.name: TensorInfo(dtype=record.dtype, shape=record.shape) for record in manifest.tensors}
    for alias, home in manifest.ties.items():
        infos[alias] = TensorInfo(dtype=infos[home].dtype, shape=infos[home].shape, tied=home)
    return infos


@contextmanager
def _open_manager(folder: Path, manifest: Manifest) -> Iterator[Stored]:
    records = {record.name: record for record in manifest.tensors}
    damage = next(find_damages(folder, manifest, files=frozenset({STATE})), None)
    if damage is not None:
        raise CheckpointCorruptError(f"{folder}: {damage}")
    metadata = {"step": str(manifest.step), "epoch": str(manifest.epoch), "checkpoint": manifest.digest}
    tree = json.loads((folder / STATE).read_bytes())
    metadata |= {item: json.dumps(value) for item, value in tree.items()}
    with open_slices(folder, manifest) as reader:

        def fetch(name: str) -> "Tensor":
            return reader.read(records[name], TensorSlice.whole(records[name].shape))

        yield Stored(infos=_infos_of(manifest), metadata=metadata, fetch=fetch)

"""Checkpoints of one trial: a folder per epoch, published by one rename, checked by digest when read.

    TRIAL/lease-2/epoch-000007/state.pt         tensors and plain values, `torch.save`, read with weights_only=True
    TRIAL/lease-2/epoch-000007/manifest.json    epoch, bytes, BLAKE2b-128 of state.pt, the epoch's metrics; written last

A folder without a valid manifest does not exist. The lease is part of the path, so a run that was thought dead cannot
overwrite its successor's files.
"""

import hashlib
import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.errors import TrainwrightError

__all__ = ["CheckpointStore", "Saved"]

_SCHEMA = 1
_KEPT = 2
"""The newest and one to fall back to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A published checkpoint: where it is and what its manifest says."""

    path: Path
    lease: int
    epoch: int
    size: int
    digest: str
    report: Mapping[str, Any]


class CheckpointStore:
    """The checkpoints below one trial's folder, written under one lease."""

    def __init__(self, folder: Path, lease: int) -> None:
        self.folder = folder
        self.lease = lease

    def save(self, epoch: int, state: Mapping[str, Any], report: Mapping[str, Any]) -> Saved:
        """Publish the state after `epoch` together with the report of that epoch; older ones but one are removed."""
        import torch

        buffer = io.BytesIO()
        torch.save(_plain(dict(state)), buffer)
        content = buffer.getbuffer()
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        manifest = {"schema": _SCHEMA, "epoch": epoch, "bytes": len(content), "digest": digest, "report": dict(report)}
        home = self.folder / f"lease-{self.lease}"
        target = home / f"epoch-{epoch:06d}"
        nonce = secrets.token_hex(4)
        temporary, replaced = home / f".tmp-epoch-{epoch:06d}-{nonce}", home / f".tmp-replaced-{nonce}"
        try:
            temporary.mkdir(parents=True)
            _write(temporary / "state.pt", content)
            _write(temporary / "manifest.json", json.dumps(manifest).encode())
            _sync(temporary)
            if target.exists():  # the same epoch again, under the same lease: the later one counts
                target.rename(replaced)
            temporary.rename(target)
            _sync(home)
        except OSError as error:
            if replaced.exists() and not target.exists():
                replaced.rename(target)
            shutil.rmtree(temporary, ignore_errors=True)
            raise TrainwrightError(
                f"cannot save the checkpoint {target}: {(error.strerror or str(error)).lower()}; the one before is kept"
            ) from error
        for old in [replaced, *self.list()[_KEPT:]]:
            shutil.rmtree(old, ignore_errors=True)
        return Saved(path=target, lease=self.lease, epoch=epoch, size=len(content), digest=digest, report=report)

    def list(self) -> list[Path]:
        """Return the folders of all checkpoints of this and earlier leases, newest (lease, epoch) first."""
        found = []
        for path in self.folder.glob("lease-*/epoch-*"):
            lease, epoch = (int(re.sub(r"\D", "", part)) for part in path.parts[-2:])
            if lease <= self.lease:
                found.append((lease, epoch, path))
        return [path for _, _, path in sorted(found, reverse=True)]

    def restore(self, device: str = "cpu") -> tuple[Saved, dict[str, Any]] | None:
        """Return the newest checkpoint that is whole, and its state; None if there is none.

        A damaged one is set aside as `.bad-epoch-...` and the one before it is tried. What earlier leases left half
        written is removed.
        """
        for torn in self.folder.glob("lease-*/.tmp-*"):
            if torn.parent.name != f"lease-{self.lease}":
                shutil.rmtree(torn, ignore_errors=True)
        for path in self.list():
            loaded = _load(path, device)
            if loaded is not None:
                return loaded
            path.rename(path.with_name(f".bad-{path.name}-{secrets.token_hex(4)}"))
        return None


def _load(path: Path, device: str) -> tuple[Saved, dict[str, Any]] | None:
    import torch

    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        content = (path / "state.pt").read_bytes()
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        if digest != manifest["digest"] or manifest["schema"] > _SCHEMA:
            return None
        saved = Saved(
            path=path,
            lease=int(path.parent.name.removeprefix("lease-")),
            epoch=manifest["epoch"],
            size=manifest["bytes"],
            digest=digest,
            report=manifest["report"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return saved, torch.load(io.BytesIO(content), map_location=device, weights_only=True)


def _plain(value: Any) -> Any:
    """Return a state with NumPy's scalars as Python's: `weights_only=True` would refuse to read them back."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:  # a module's own kind of mapping carries versions, and holds tensors anyway
        return {_plain(key): _plain(item) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_plain(item) for item in value)
    return value


def _write(path: Path, content: bytes | memoryview) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

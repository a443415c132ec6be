"""Saves and finds checkpoints of a trial whose files a framework or the user's own function writes.

Each is a file or a folder `epoch-000003-lease-000001` in the trial's folder. Beside it lies its marker, the same name
with `.json`: the report that it was saved for, and the size of each file. The marker is written last, so a checkpoint
is whole exactly if its marker is there and the sizes are right; a kill in between leaves the one before.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.checkpoint.digest import digest_bytes
from trainwright.ledger import Record, facts
from trainwright.publishing import sync_all, write_file
from trainwright.train.assignment import Assignment
from trainwright.train.group import wait_for_ranks

__all__ = ["FrameworkCheckpoints", "SavedReport", "newest_checkpoint"]

_RETAINED = 2
"""One more than is needed: should the newest turn out damaged, the one before is there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedReport:
    """A whole checkpoint at `path`, and the report (`epoch`, `step`, `metrics`) that it was saved for."""

    path: Path
    report: Mapping[str, Any]
    size: int
    digest: str

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of its report."""
        return {name: float(value) for name, value in self.report["metrics"].items()}

    def record(self, assignment: Assignment) -> Record:
        """Return the ledger's record of it."""
        home = Path(assignment.directory or "")
        return facts.checkpointed(
            assignment.trial,
            assignment.lease,
            epoch=self.report["epoch"],
            path=self.path.relative_to(home).as_posix(),
            bytes=self.size,
            digest=self.digest,
            step=self.report["step"] or 0,
        )


class FrameworkCheckpoints:
    """The checkpoints in `folder`, each written by `write(path)`: every rank calls it, with the same path."""

    def __init__(self, folder: Path, assignment: Assignment, write: Callable[[Path], None]) -> None:
        self._folder, self._assignment, self._write = folder, assignment, write

    def save(self, report: Mapping[str, Any]) -> Record:
        """Save the training as it is at this report; return the ledger's record of it."""
        path = self._folder / f"epoch-{report['epoch']:06d}-lease-{self._assignment.lease:06d}"
        first = self._assignment.rank == 0
        if first:
            # What an earlier attempt at this epoch left.
            _remove(path)
        self._wait_for_ranks()
        self._write(path)
        self._wait_for_ranks()
        saved = _mark(path, report) if first else SavedReport(path=path, report=report, size=0, digest="")
        if first:
            self._remove_older()
        return saved.record(self._assignment)

    def _wait_for_ranks(self) -> None:
        if self._assignment.world_size > 1:
            wait_for_ranks()

    def _remove_older(self) -> None:
        """Remove all but the newest, the remains of interrupted saves among them."""
        kept = {marker.stem for marker in _list_markers(self._folder)[:_RETAINED]}
        for found in sorted(self._folder.glob("epoch-*-lease-*")):
            if found.name.removesuffix(".json") not in kept:
                _remove(found.with_name(found.name.removesuffix(".json")))


def newest_checkpoint(folder: Path) -> SavedReport | None:
    """Return the newest whole checkpoint of a trial's folder, None if there is none."""
    for marker in _list_markers(folder):
        content = marker.read_bytes()
        try:
            found = json.loads(content)
            path, sizes = marker.with_suffix(""), found["files"]
            if sizes and sizes == _sizes_below(path):
                return SavedReport(
                    path=path, report=found["report"], size=sum(sizes.values()), digest=digest_bytes(content)
                )
        except (ValueError, KeyError, TypeError, AttributeError):
            # A damaged marker: the checkpoint before it counts.
            continue
    return None


def _mark(path: Path, report: Mapping[str, Any]) -> SavedReport:
    """Make a checkpoint valid: all its bytes are on the disk before its marker is."""
    sync_all(path)
    sizes = _sizes_below(path)
    content = json.dumps({"report": dict(report), "files": sizes}).encode()
    write_file(path.with_name(path.name + ".json"), content)
    return SavedReport(path=path, report=report, size=sum(sizes.values()), digest=digest_bytes(content))


def _list_markers(folder: Path) -> list[Path]:
    """Return the markers in a folder, newest first: names sort by epoch, then by lease."""
    return sorted(folder.glob("epoch-*-lease-*.json"), reverse=True)


def _sizes_below(path: Path) -> dict[str, int]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.stat().st_size for file in files}


def _remove(path: Path) -> None:
    """Remove a checkpoint: first its marker, so that no part of it ever counts as whole."""
    path.with_name(path.name + ".json").unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

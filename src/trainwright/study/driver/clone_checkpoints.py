"""Clones a checkpoint for population-based training: the parent's newest, linked before the clone's proposal.

It lies in the folder of the trial that is replaced until the clone is in the ledger, so that a crash in between leaves
nothing that another trial of the same number could take for its own. Files are linked: the parent may drop its own.
"""

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trainwright.checkpoint.manifest import MANIFEST, Manifest
from trainwright.checkpoint.restore.restored import read_lineage
from trainwright.checkpoint.save.publish import Published
from trainwright.errors import StudyError
from trainwright.ledger import TrialState
from trainwright.publishing import FileLayer, make_folder, publish
from trainwright.schedule import PromotionRule

__all__ = ["check_folder", "link_parent_checkpoint", "move_to_clone"]

_TRIES = 5  # the parent may drop a checkpoint while it is linked


def check_folder(rule: PromotionRule, directory: Path | None) -> None:
    """Refuse a rule that starts trials from checkpoints of others in a study that keeps nothing on disk."""
    if rule.clones and directory is None:
        raise StudyError(
            f"{type(rule).__name__} starts trials from checkpoints of others, and the study keeps nothing on disk; "
            "give tw.Study(..., directory='runs/name')"
        )


def link_parent_checkpoint(directory: Path | None, parent: TrialState, replaces: int, number: int) -> int:
    """Put the newest checkpoint of `parent` by for trial `number`; return its epoch.

    Raises `StudyError` if there is none.
    """
    place = _linked_folder(directory, replaces)
    shutil.rmtree(place, ignore_errors=True)
    make_folder(place)
    for _ in range(_TRIES):
        lineage = read_lineage(FileLayer(), _folder(directory, parent.number), parent.lease, lambda *_: None)
        if (newest := next(lineage, None)) is None:
            break
        # Of its newest epoch the one that was saved at its end: those after it are of an epoch in work.
        ended = [one for one in (newest, *lineage) if one.manifest.epoch == newest.manifest.epoch][-1]
        with suppress(FileNotFoundError):
            return _link(ended, place, number).epoch
    raise StudyError(
        f"trial {parent.number} has saved no checkpoint, so no other can continue it; save with trial.prepare "
        "or a tw.checkpoint.Manager"
    )


def move_to_clone(directory: Path | None, clone: TrialState) -> None:
    """Move what was put by to the clone, as that of a run before its first; nothing if that is done."""
    if clone.exploits is not None:
        place, home = _linked_folder(directory, clone.exploits.replaces), _folder(directory, clone.number)
        if place.is_dir():
            make_folder(home)
            place.rename(home / "lease-0")


def _link(source: Published, place: Path, number: int) -> Manifest:
    """Link a checkpoint as one of trial `number` whose parent it is; raises `FileNotFoundError` if it was dropped."""
    # Lease 0 comes before all of the clone's own in its lineage.
    manifest = replace(source.manifest, trial=number, lease=0, pin=None, parent=source.manifest.digest)
    with publish(place / source.path.name) as temporary:
        temporary.mkdir()
        for file in manifest.files:
            try:
                os.link(source.path / file.name, temporary / file.name)
            except FileNotFoundError:
                raise
            except OSError:  # a file system without links
                shutil.copyfile(source.path / file.name, temporary / file.name)
        (temporary / MANIFEST).write_bytes(manifest.to_bytes())
    return manifest


def _folder(directory: Path | None, number: int) -> Path:
    assert directory is not None  # noqa: S101 -- the driver refuses a rule that clones without one
    return directory / "checkpoints" / f"trial-{number:06d}"


def _linked_folder(directory: Path | None, replaces: int) -> Path:
    return _folder(directory, replaces) / "put-by"

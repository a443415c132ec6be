"""Tiers: fast folders that a save goes to first, and the background copy from there to the final folder.

A tier holds checkpoints as the folder itself does, each with its manifest, below a name of the folder's own:

FOLDER/.tiers                        the name under which tiers keep this folder's; with the folder it goes
TIER/trainwright-0123456789abcdef/   in it step-..., or lease-3/step-...
"""

import contextlib
import errno
import itertools
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from trainwright.checkpoint.config import Tier
from trainwright.checkpoint.digest import CHUNK_BYTES, chunk_ranges, digest_bytes, kind_of, read_at
from trainwright.checkpoint.manifest import FileRecord, Manifest
from trainwright.checkpoint.policy.retention import choose_retained
from trainwright.checkpoint.restore.restored import list_homes
from trainwright.checkpoint.save.publish import Published, publish, quarantine
from trainwright.checkpoint.save.saver import SaveHandle
from trainwright.errors import CheckpointConfigError, CheckpointCorruptError, CheckpointError, CheckpointSpaceError
from trainwright.publishing import FileLayer, write_new

__all__ = ["Tiers", "copy_checkpoint", "name_in_tiers", "refuse_several_nodes"]

_NAME = ".tiers"


class _PendingCopy(NamedTuple):
    """A checkpoint of the nearest tier that waits for the drain; `must` says that none newer may go in its place."""

    published: Published
    handle: SaveHandle | None
    must: bool


class Tiers:
    """The tiers of one run, nearest first, and what is in them.

    `home` is where its checkpoints are to get in the end, in or below `folder`; `deliver` publishes there what it is
    given from a tier, at so many bytes a second, and returns what it published.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        folder: Path,
        home: Path,
        *,
        lease: int,
        name: str,
        layer: FileLayer,
        deliver: Callable[[Published, SaveHandle | None, float | None], Published],
    ) -> None:
        self.roots = tuple(Path(tier.folder) / f"trainwright-{name}" for tier in tiers)
        self.homes = tuple(root / home.relative_to(folder) for root in self.roots)
        self._tiers, self._lease, self._layer, self._deliver = tiers, lease, layer, deliver
        # Newest first.
        self._held: list[list[Published]] = [[] for _ in tiers]
        # The tiers that cannot be written any more.
        self._lost: set[int] = set()
        self._lock = threading.RLock()
        self._waiting: list[_PendingCopy] = []
        # That must be carried on, and could not be.
        self._again: list[_PendingCopy] = []
        self._in_hand: Published | None = None
        # The newest of what was saved, until it is where it is to get.
        self._owed: _PendingCopy | None = None
        self._count = 0
        self._troubles: list[CheckpointError] = []
        self._drain = ThreadPoolExecutor(1, thread_name_prefix="trainwright drain")

    @property
    def nearest(self) -> Path | None:
        """Where to save first; None if that is the folder itself, for want of a tier or of one that still works."""
        level = self._level
        return None if level is None else self.homes[level]

    def lost(self, error: OSError) -> None:
        """Do without the nearest tier from now on: it cannot be written."""
        if (level := self._level) is not None:
            self._give_up_tier(level, error)

    def begin(self, known: Sequence[Published], restored: Published | None) -> None:
        """Go on with what a restore found; what the folder lacks of the checkpoint that it took is carried on."""
        with self._lock:
            for root, held in zip(self.roots, self._held, strict=True):
                held[:] = [one for one in known if one.path.is_relative_to(root)]
        if restored is None or not self._is_here(restored):
            return
        place = restored.manifest.lease, restored.manifest.serial
        # The folder may lack the checkpoint that a tier had: copy it, so that the run can lose its node.
        far = [one.manifest for one in known if not self._is_here(one)]
        if all((manifest.lease, manifest.serial) != place for manifest in far):
            self._owed = _PendingCopy(restored, None, must=True)
            self._schedule_load(self._owed)

    def take(self, published: Published, handle: SaveHandle, *, must: bool) -> None:
        """Carry on what was published in the nearest tier, when its turn comes."""
        load = _PendingCopy(published, handle, must or published.manifest.pin is not None)
        level = self._level_of(published)
        with self._lock:
            self._held[level].insert(0, published)
            self._owed = load
            self._count += 1
            again, self._again = self._again, []
        # A new save shows that training goes on; so try again what could not be copied before.
        for one in again:
            self._schedule_load(one)
        # Copying each save may cost more bandwidth than the final folder has.
        if load.must or self._count % self._tiers[level].drain_every == 0:
            self._schedule_load(load)
        else:
            handle.drained.set_result(None)
        self._apply_retention(level)

    def troubles(self) -> list[CheckpointError]:
        """Return what went wrong since the last call."""
        found, self._troubles = self._troubles, []
        return found

    def wait(self) -> None:
        """Carry on the newest one even if it was not to be, and wait until all that waits is there."""
        self._drain.submit(int).result()
        with self._lock:
            missing = [*self._again, *([] if self._owed is None or self._owed in self._again else [self._owed])]
            self._again = []
        for load in missing:
            self._schedule_load(load._replace(handle=None))
        self._drain.submit(int).result()

    def close(self) -> None:
        """Wait, and leave nothing in the tiers if all of it is where it was to get."""
        self.wait()
        self._drain.shutdown()
        if self._owed is not None or self._again:
            return
        for root in self.roots:
            for _, home in list_homes(root, self._lease):
                self._layer.remove(home)
            # Gone, or of another run that is still at it.
            with contextlib.suppress(OSError):
                root.rmdir()

    @property
    def _level(self) -> int | None:
        return next((level for level in range(len(self._tiers)) if level not in self._lost), None)

    def _level_of(self, published: Published) -> int:
        return next(level for level, root in enumerate(self.roots) if published.path.is_relative_to(root))

    def _is_here(self, published: Published) -> bool:
        return any(published.path.is_relative_to(root) for root in self.roots)

    def _give_up_tier(self, level: int, error: OSError) -> None:
        self._lost.add(level)
        reason = (error.strerror or str(error)).lower()
        self._troubles.append(
            CheckpointError(
                f"{self._tiers[level].folder}: checkpoints cannot be written to this tier: {reason}; this run does "
                "without it"
            )
        )

    def _schedule_load(self, load: _PendingCopy) -> None:
        with self._lock:
            self._waiting.append(load)
        self._drain.submit(self._carry_newest)

    def _carry_newest(self) -> None:
        """Carry the newest one that waits through all tiers, to the folder itself; in the drain's thread."""
        with self._lock:
            # Dropped before its turn.
            if not self._waiting:
                return
            # The newest first: an older one is worth less each minute. Those that must arrive go before all others.
            load = max(self._waiting, key=lambda one: (one.must, one.published.manifest.serial))
            self._waiting.remove(load)
            self._in_hand = load.published
        level = self._level_of(load.published)
        pace = self._tiers[level].drain_bytes_per_second
        try:
            for farther in range(level + 1, len(self.roots)):
                self._copy_to_level(load.published, farther, pace)
            far = self._deliver(load.published, load.handle, pace)
        except (OSError, CheckpointError) as error:
            self._record_failure(load, error)
        else:
            with self._lock:
                if self._owed is not None and self._owed.published == load.published:
                    self._owed = None
            if load.handle is not None:
                load.handle.drained.set_result(far)
        with self._lock:
            self._in_hand = None
        self._apply_retention(level)

    def _copy_to_level(self, published: Published, level: int, pace: float | None) -> None:
        if level in self._lost:
            return
        try:
            one = copy_checkpoint(self._layer, published, self.homes[level], pace)
        except OSError as error:
            self._give_up_tier(level, error)
            return
        with self._lock:
            self._held[level].insert(0, one)
        self._apply_retention(level)

    def _record_failure(self, load: _PendingCopy, error: OSError | CheckpointError) -> None:
        path = load.published.path
        # Nobody must restore it from here either.
        if isinstance(error, CheckpointCorruptError):
            quarantine(self._layer, path, "bad")
            with self._lock:
                held = self._held[self._level_of(load.published)]
                held[:] = [one for one in held if one.path != path]
                if self._owed is not None and self._owed.published == load.published:
                    # There is nothing to carry on.
                    self._owed = None
        elif load.must:
            with self._lock:
                self._again.append(load._replace(handle=None))
        if isinstance(error, CheckpointError):
            told = error
        else:
            reason = (error.strerror or str(error)).lower()
            kind = CheckpointSpaceError if error.errno in {errno.ENOSPC, errno.EDQUOT} else CheckpointError
            told = kind(f"{path}: the checkpoint cannot be carried on: {reason}; it stays there")
        self._troubles.append(told)
        if load.handle is not None:
            load.handle.drained.set_exception(told)

    def _apply_retention(self, level: int) -> None:
        """Drop from a tier what its retention does not keep, but nothing that must be carried on or is just being."""
        policy = self._tiers[level].retention
        with self._lock:
            # What must still be copied, or is being copied, is not dropped.
            needed = {load.published.path for load in (*self._waiting, *self._again) if load.must}
            if self._in_hand is not None:
                needed.add(self._in_hand.path)
            # a pin counts in the folder itself, where it is by now
            free = [one for one in self._held[level] if one.path not in needed]
            plain = [Published(path=one.path, manifest=replace(one.manifest, pin=None)) for one in free]
            gone = {one.path for one in choose_retained(plain, policy).drop}
            self._held[level] = [one for one in self._held[level] if one.path not in gone]
            # What retention drops here is no longer worth copying.
            superseded = [load for load in self._waiting if load.published.path in gone]
            self._waiting = [load for load in self._waiting if load not in superseded]
        for load in superseded:
            if load.handle is not None:
                load.handle.drained.set_result(None)
        for path in gone:
            trash = quarantine(self._layer, path, "trash")
            if trash is not None:
                self._layer.remove(trash)


def name_in_tiers(layer: FileLayer, folder: Path) -> str:
    """Return the name under which tiers keep the checkpoints of `folder`, written down in it: random, made once.

    So what a tier still holds of a folder that was removed is not taken for that of a new one in its place.
    """
    path = folder / _NAME
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(path.read_bytes())["name"])
    temporary = folder / f"{_NAME}.{secrets.token_hex(4)}"
    name = secrets.token_hex(8)
    write_new(layer, temporary, [memoryview(json.dumps({"name": name}).encode())])
    layer.rename(temporary, path)
    layer.sync_folder(folder)
    return name


def refuse_several_nodes(hosts: Sequence[str]) -> None:
    """Raise `CheckpointConfigError` if ranks are on several nodes: in a tier none sees what the others write."""
    if len(hosts) > 1:
        shown = ", ".join(hosts[:3]) + (", ..." if len(hosts) > 3 else "")
        raise CheckpointConfigError(
            f"CheckpointConfig.tiers: the ranks are on {len(hosts)} nodes ({shown}); allowed: tiers where all ranks "
            "are on one node; leave them out"
        )


def copy_checkpoint(
    layer: FileLayer, source: Published, home: Path, bytes_per_second: float | None = None
) -> Published:
    """Publish a checkpoint in another home, with the manifest that it has, at no more than so many bytes a second.

    Every byte is compared with its digest before it is written. Raises `CheckpointCorruptError` if one is damaged.
    """
    manifest = source.manifest
    began, done = time.monotonic(), 0

    def paced(size: int) -> None:
        nonlocal done
        done += size
        if bytes_per_second is not None:
            time.sleep(max(0.0, began + done / bytes_per_second - time.monotonic()))

    def write(folder: Path) -> Manifest:
        for record in manifest.files:
            _copy_file(layer, source.path / record.name, folder / record.name, record, paced)
        return manifest

    return publish(layer, home, manifest.step, manifest.lease, write)


def _copy_file(layer: FileLayer, source: Path, target: Path, record: FileRecord, paced: Callable[[int], None]) -> None:
    edges = [0, *(record.ends or (stop for _, stop in chunk_ranges(0, record.bytes)))]
    chunks = list(zip(itertools.pairwise(edges), record.chunks, strict=True))
    kind = kind_of("".join(record.chunks[:1]))
    buffer = memoryview(bytearray(min(CHUNK_BYTES, record.bytes)))
    handle = os.open(source, os.O_RDONLY)
    try:
        new = layer.create(target)
        try:
            while chunks:
                start = chunks[0][0][0]
                # Small chunks are read and written together, up to 16 MiB at a time.
                together = list(itertools.takewhile(lambda chunk: chunk[0][1] - start <= CHUNK_BYTES, chunks))  # noqa: B023 -- at once
                chunks = chunks[len(together) :]
                piece = buffer[: together[-1][0][1] - start]
                count = read_at(handle, start, piece)
                for (low, high), expected in together:
                    if high - start > count or digest_bytes(piece[low - start : high - start], kind) != expected:
                        raise CheckpointCorruptError(f"{source} is damaged (bytes {low} to {high})")
                layer.write(new, piece)
                paced(len(piece))
            layer.sync(new)
        finally:
            layer.close(new)
    finally:
        os.close(handle)

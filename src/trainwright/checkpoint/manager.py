"""The checkpoint Manager: saves the state of a training asynchronously, and restores it."""

import math
import statistics
import time
import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from trainwright.checkpoint.config import CheckpointConfig
from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.owner import HasCheckpoints, Owner
from trainwright.checkpoint.policy.retention import RetainedCheckpoints
from trainwright.checkpoint.policy.save_policy import SavePolicy
from trainwright.checkpoint.policy.signals import FORCED_EXIT
from trainwright.checkpoint.ranks.ranks import make_ranks
from trainwright.checkpoint.restore.loading import compare_state, load_state
from trainwright.checkpoint.restore.restored import (
    Restored,
    list_homes,
    list_quarantined,
    mark_start,
    read_lineage,
    read_tree,
    records_by_name,
)
from trainwright.checkpoint.save.publish import Published, WriteJob, quarantine, refuse_unwritable, remove_leftovers
from trainwright.checkpoint.save.saver import SaveHandle, Saver
from trainwright.checkpoint.state.captured import RESERVED, capture_state
from trainwright.checkpoint.state.differences import Difference, Mode, settle_differences
from trainwright.checkpoint.state.fingerprint import capture_fingerprint, compare_fingerprints
from trainwright.checkpoint.state.flags import capture_flags, compare_flags, restore_flags
from trainwright.checkpoint.state.rng import capture_rng_state, restore_rng_state
from trainwright.checkpoint.state.tree import decode_tree
from trainwright.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointSpaceError,
    CheckpointStateError,
)
from trainwright.publishing import FileLayer, is_disk_full

__all__ = ["Manager"]

# Over which a usual step's time is taken.
_STEPS_KNOWN = 64


class Manager:
    """Keeps the checkpoints of one training: of a trial, or in a plain folder.

    `owner` is a `tw.Trial` or a folder. `state` names what is kept: anything with `state_dict` and `load_state_dict`, a
    generator of torch, a tensor, or a value of JSON. The global generators, counters, flags and the fingerprint of the
    environment are kept with it. `files` may replace the operations on the file system.
    """

    def __init__(
        self,
        owner: Owner | HasCheckpoints | Path | str,
        *,
        config: CheckpointConfig | None = None,
        files: FileLayer | None = None,
        **state: Any,
    ) -> None:
        reserved = sorted(RESERVED & state.keys())
        if reserved or not state:
            raise CheckpointStateError(
                f"Manager: got {', '.join(reserved) or 'no state'}; allowed: items such as model=model, optimizer="
                f"optimizer, under other names than {', '.join(sorted(RESERVED))}, which a checkpoint brings itself"
            )
        # Until it is whole: its owner may close it if what follows fails.
        self._closed = True
        # Refuses now, not at the first save, what cannot be kept.
        captured = capture_state(state)
        self.config = config or CheckpointConfig()
        self.steps = 0
        """The optimizer steps done: those that `step` counted, and those before the restored checkpoint."""
        named = Owner(folder=Path(owner)) if isinstance(owner, Path | str) else owner
        self._owner = named.checkpoint_owner() if hasattr(named, "checkpoint_owner") else named
        self._layer = files or FileLayer()
        self._state = state
        self._folder = self._owner.folder
        self._owner.claim_checkpoints(self)
        self._home = self._folder / f"lease-{self._owner.lease}" if self._owner.lease else self._folder
        self._ranks = make_ranks(self.config.timeout_seconds)
        self._ranks.exchange_names(state, captured)
        self._ranks.run_together(lambda: refuse_unwritable(self._layer, self._home))
        self._saver = Saver(self.config, self._write, self._ranks, self._owner.buffer)
        self._ended: list[SaveHandle] = []
        self._retained = RetainedCheckpoints(
            self.config.retention,
            owner=self._owner,
            layer=self._layer,
            first=self._ranks.first,
            find=self._find_lineage,
        )
        self._serial = 0
        self._parent: str | None = None
        self._fingerprint: dict[str, Any] | None = None
        self._failures = 0
        self._policy = SavePolicy(self.config, alone=not self._owner.lease)
        self._usual: deque[float] = deque(maxlen=_STEPS_KNOWN)
        self._step_began: float | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def history(self) -> list[SaveHandle]:
        """Every save that ended, in order."""
        self._settle_saves()
        return list(self._ended)

    def save(
        self, *, wait: bool = False, metrics: Mapping[str, float] | None = None, pin: str | None = None
    ) -> SaveHandle:
        """Save now; with `wait` the checkpoint is there when this returns.

        `metrics` decide what retention calls best; `pin` gives a reason to keep it whatever retention says. A save that
        fails warns or raises as `config.on_error` says: at once with `wait`, else at the next call. Raises
        `CheckpointStateError` after `close`.
        """
        started = time.perf_counter()
        if self._closed:
            raise CheckpointStateError("Manager.save: the manager is closed; save before close, or make a new Manager")
        self._settle_saves()
        kept, environment = self._retained.known(), self._read_environment()
        # References only: nothing is copied yet, so this takes microseconds.
        captured = capture_state(
            {
                **self._state,
                "counters": {"step": self.steps},
                "flags": capture_flags(),
                self._ranks.item("rng"): capture_rng_state(),
            }
        )
        manifest = Manifest(
            step=self.steps,
            epoch=self._owner.epoch,
            samples_seen=next((v.samples_seen for v in self._state.values() if hasattr(v, "samples_seen")), 0),
            serial=max([self._serial, *(one.manifest.serial for one in kept)]) + 1,
            study=self._owner.study,
            trial=self._owner.trial,
            lease=self._owner.lease,
            parent=self._parent,
            pin=pin,
            report=self._encode_report(metrics),
            fingerprint=environment,
            versions={name: str(environment[name]) for name in ("trainwright", "torch")},
            times={"saved_at": time.time()},
            ties=captured.ties,
        )
        # Serials order checkpoints, since steps may repeat after a restore and clocks are not compared.
        self._serial = manifest.serial
        self._policy.note_save(self.steps)
        job = self._ranks.plan_write(captured, manifest, self._home)
        handle = self._saver.save(job, wait=wait, started=started)
        if handle.committed.done():
            self._settle_saves()
        return handle

    def restore(self, step: int | None = None, *, mode: Mode = "exact", check: bool = True) -> Restored | None:
        """Load the newest good checkpoint, or that of `step`, into the items; None if nothing was ever saved.

        With `check` every byte is compared with its digest first. A damaged checkpoint is quarantined, and the one
        before is taken. Raises `CheckpointCorruptError` if none is left, `CheckpointNotFoundError` if there is none of
        `step`, and in exact mode `CheckpointMismatchError` naming all that is not as it was saved.
        """
        started = time.perf_counter()
        self.drain()
        line = self._ranks.run_on_first(self._find_lineage)
        self._serial = max((one.manifest.serial for one in line), default=0)
        # The newest first; one that turns out damaged is quarantined, and the next is tried.
        for place, published in enumerate(line):
            if step is not None and published.manifest.step != step:
                continue
            try:
                restored = self._load_checkpoint(published, mode, started, check=check)
            except CheckpointCorruptError as error:
                if self._ranks.first and quarantine(self._layer, published.path, "bad") is not None:
                    self._owner.damaged(published.path, str(error))
                continue
            # Newer ones are damaged, or of another line.
            self._resume_from(restored, line[place:] if step is None else line)
            return restored
        if step is not None:
            steps = ", ".join(str(number) for number in sorted({one.manifest.step for one in line})) or "none"
            raise CheckpointNotFoundError(f"{self._folder}: no good checkpoint of step {step}; there are: {steps}")
        bad = self._ranks.run_on_first(lambda: list_quarantined(self._folder, self._owner.lease))
        if bad:
            raise CheckpointCorruptError(
                f"{self._folder}: every checkpoint is damaged and quarantined, one as {bad[0]}; to train from the "
                "start, remove what is quarantined or give another folder"
            )
        self._resume_from(None, [])
        return None

    def step(self) -> None:
        """Count an optimizer step, and save if it is time to; call it after each, last in the loop.

        After a signal it saves, calls `config.hook`, closes the manager and raises `SystemExit`: all ranks at the same
        step. Within a trial whose allocation ends it saves, and ends the trial.
        """
        self.steps += 1
        if self.save_if_due(leave=self._policy.signal is not None or self._owner.leaves()):
            # A trial that leaves is its driver's to end; signals are for a training alone.
            if self._ranks.any(self._policy.signal is not None):
                self._save_and_exit()
            # At the end of a pass a report is to come; a next run would find no batch, and nothing to report.
            if not any(getattr(item, "pass_ended", False) for item in self._state.values()):
                self.save(wait=True)
                self._owner.leave()

    def save_if_due(self, *, leave: bool) -> bool:
        """Save if it is time to, after a step that was counted; return whether to leave, as one of the ranks wishes.

        All ranks call it after each step, and leave at the same one.
        """
        now = time.perf_counter()
        under_way = self._saver.under_way
        # Steps during a save take longer than usual; the difference is part of what the save costs.
        if self._step_began is not None:
            took = now - self._step_began
            if under_way is None:
                self._usual.append(took)
            elif self._usual:
                under_way.slowdown_seconds += took - statistics.median(self._usual)
        # Whether a save is due by time differs between ranks; by a number of steps it does not.
        due = self.should_save()
        counted = due and isinstance(self.config.interval, int)
        save, leave = self._ranks.due(counted, due or self._saver.redo, end=leave)
        if leave:
            return True
        if save:
            self._saver.redo = False
            self.save()
        else:
            self._settle_saves()
        self._step_began = time.perf_counter()
        return False

    def count(self) -> None:
        """Count an optimizer step and no more: for whoever saves at points of their own, as a trial at its reports."""
        self.steps += 1

    def should_save(self) -> bool:
        """Whether a save is due: so many steps or seconds after the last one as `config.interval` says."""
        return self._policy.is_due(self.steps)

    def drain(self) -> None:
        """Wait for every save under way."""
        self._saver.drain()
        self._settle_saves()

    def close(self) -> None:
        """Wait for every save under way and let go of memory and threads. Saves nothing; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._policy.close()
            self._saver.close()
            self._settle_saves()

    def _save_and_exit(self) -> NoReturn:
        """Save and end this process: its allocation ends."""
        failed = self._ranks.any(self.save(wait=True).committed.exception() is not None)
        status = 0 if self.config.hook is None else self._ranks.run_on_first(self.config.hook)
        self.close()
        self._policy.raise_pending()
        raise SystemExit(status or (FORCED_EXIT if failed else 0))

    def _load_checkpoint(self, published: Published, mode: Mode, started: float, *, check: bool) -> Restored:
        captured = capture_state(self._state)
        what = str(published.path)

        def fitting() -> tuple[dict[str, Any], list[Difference]]:
            tree, found = self._ranks.select_tree(read_tree(published), published.manifest)
            items = {name: value for name, value in tree.items() if name not in RESERVED}
            found += compare_state(self._state, items, records_by_name(published.manifest))
            found += compare_fingerprints(published.manifest.fingerprint, self._read_environment())
            # Refuse before any flag or tensor is changed: a failed restore leaves the process as it was.
            settle_differences(found, mode=mode, what=what)
            exact = mode == "exact"
            found += restore_flags(tree["flags"]) if exact else compare_flags(tree["flags"], capture_flags())
            settle_differences(found, mode=mode, what=what)
            return tree, found

        # Nothing is changed before all fits, on all ranks.
        tree, found = self._ranks.run_together(fitting)
        held = self._saver.buffer.find_tensors(published.manifest.digest)
        tensors = self._ranks.run_together(
            lambda: self._ranks.read(published, self._state, captured, held, check=check)
        )
        items = {name: value for name, value in tree.items() if name not in RESERVED}
        values = load_state(self._state, items, tensors)
        found += restore_rng_state(decode_tree(tree["rng"], tensors))
        self._ranks.reseed_generators(published.manifest)
        self.steps = tree["counters"]["step"]
        return Restored(
            path=published.path,
            manifest=published.manifest,
            differences=settle_differences(found, mode=mode, what=what),
            values=values,
            seconds=time.perf_counter() - started,
        )

    def _resume_from(self, restored: Restored | None, line: list[Published]) -> None:
        """Go on from a checkpoint of the line, or from nothing."""
        self._retained.begin(line)
        manifest = None if restored is None else restored.manifest
        self._parent = None if manifest is None else manifest.digest
        self._policy.note_save(self.steps)
        if self._ranks.first:
            if self._owner.lease:
                self._layer.make_folder(self._home)
                mark_start(self._home, manifest)
            for number, home in list_homes(self._folder, self._owner.lease):
                remove_leftovers(self._layer, home, ended=0 < number < self._owner.lease)
        if restored is not None:
            self._owner.resumed(restored)

    def _find_lineage(self) -> list[Published]:
        return list(read_lineage(self._layer, self._folder, self._owner.lease, self._owner.damaged))

    def _write(self, handle: SaveHandle, job: WriteJob, memory: memoryview) -> Published:
        """Write a checkpoint and apply retention; in the writer's thread."""
        try:
            published = self._retained.publish_with_room(lambda: self._ranks.publish(self._layer, job, memory))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            kind = CheckpointSpaceError if is_disk_full(error) else CheckpointError
            raise kind(
                f"cannot save the checkpoint of step {handle.step} in {self._home}: {reason}; the one before is kept"
            ) from error
        if self._ranks.first:
            self._retained.add(published, handle.blocking_seconds)
        return published

    def _settle_saves(self) -> None:
        """Take note of the saves that ended; warn or raise about those that failed."""
        for handle in self._saver.ended():
            self._ended.append(handle)
            self._policy.note_end(handle)
            error = handle.committed.exception()
            if error is None:
                self._failures = 0
                continue
            refused = handle.verdict.startswith("refused")
            self._failures += not refused
            if refused:
                stops = self.config.on_nonfinite == "raise"
            else:
                stops = self.config.on_error == "raise" or self._failures >= self.config.max_failures
            if stops:
                raise error
            warnings.warn(str(error), stacklevel=3)

    def _read_environment(self) -> dict[str, Any]:
        if self._fingerprint is None:
            self._fingerprint = capture_fingerprint()
        return self._fingerprint

    def _encode_report(self, metrics: Mapping[str, float] | None) -> dict[str, Any]:
        report = dict(self._owner.last_report)
        numbers = report.get("metrics", {}) if metrics is None else metrics
        # JSON has no NaN and no infinities.
        values = {name: float(value) for name, value in numbers.items()}
        report["metrics"] = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
        return report

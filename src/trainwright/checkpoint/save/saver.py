"""Saves asynchronously: takes snapshots, writes them in a background thread with bounded memory, measures the cost."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from trainwright.checkpoint.config import CheckpointConfig
from trainwright.checkpoint.manifest import Manifest
from trainwright.checkpoint.ranks.ranks import Findings, SingleRank
from trainwright.checkpoint.save.publish import Published, WriteJob
from trainwright.checkpoint.save.snapshot import Buffer, Snapshot, find_nonfinite
from trainwright.errors import CheckpointError

__all__ = ["SaveHandle", "Saver"]


@dataclass(slots=True, eq=False)
class SaveHandle:
    """A save: its futures while it is under way, and what it cost once it ended.

    `staged` is done when the snapshot is complete, with whether it is one; `committed` when the checkpoint is there,
    or holds the `CheckpointError` that says why there is none. Training stopped for `blocking_seconds`, the steps
    during the save took `slowdown_seconds` longer, and the commit came after `persist_seconds`. `verdict` is "" until
    then, and "good", "refused: ..." by the health check, or "failed: ..." afterwards.
    """

    step: int
    bytes: int = 0
    staged: "Future[bool]" = field(default_factory=Future)
    committed: "Future[Published]" = field(default_factory=Future)
    blocking_seconds: float = 0.0
    persist_seconds: float = 0.0
    slowdown_seconds: float = 0.0
    verdict: str = ""

    @property
    def manifest(self) -> Manifest:
        """The manifest of the checkpoint; waits for the commit, and raises what went wrong."""
        return self.committed.result().manifest


class Saver:
    """Saves snapshots one after the other, from one buffer: a save waits until the one before is written.

    `write` makes a job durable from memory and returns the checkpoint; what it raises is the save's failure.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        write: Callable[[SaveHandle, WriteJob, memoryview], Published],
        ranks: SingleRank,
        buffer: Buffer | None = None,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._write = write
        self.buffer = buffer or Buffer()
        # Another's is for whoever goes on.
        self._owns_buffer = buffer is None
        self._buffer_free = threading.Semaphore()
        self._stager = ThreadPoolExecutor(1, thread_name_prefix="trainwright staging")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="trainwright writing")
        self._staging: list[tuple[SaveHandle, Snapshot]] = []
        self._hooks: dict[int, Any] = {}
        self._open: list[SaveHandle] = []
        self.eager = config.staging == "eager"
        self.redo = False
        """Whether a snapshot came to nothing because its tensors changed meanwhile."""

    def save(self, job: WriteJob, *, wait: bool, started: float) -> SaveHandle:
        """Take a snapshot and write it; with `wait` it is over when this returns. Training waits since `started`."""
        handle = SaveHandle(job.manifest.step)
        self._open.append(handle)
        self._buffer_free.acquire()
        self.buffer.content = None
        captured, layout = job.captured, job.layout
        handle.bytes = layout.size
        cuda = any(tensor.is_cuda for tensor in captured.tensors.values())
        snapshot = Snapshot(captured, layout, self.buffer.reserve(layout.size, pinned=cuda)[: layout.size])
        # Counters, generators and the like may change at any time, so they are copied before this returns.
        snapshot.copy_small()
        synchronous = self._config.writer == "sync"
        # Without an optimizer whose step a hook could delay, nothing would protect a copy in the background. A step
        # that a CUDA graph replays calls no hooks, and only a `capturable` one can be replayed.
        replayed = any(group.get("capturable") for each in captured.optimizers for group in each.param_groups)
        if wait or synchronous or self.eager or replayed or not captured.optimizers:
            snapshot.copy_rest()
            handle.staged.set_result(True)
            if synchronous:
                self._persist_snapshot(handle, job, started)
            else:
                self._writer.submit(self._persist_snapshot, handle, job, started)
                if wait:
                    handle.committed.exception()
        else:
            # Weights and moments are stable until the next optimizer step: that step is delayed by a hook until they
            # are copied, and the forward and backward pass before it hides the copy.
            self._staging.append((handle, snapshot))
            for optimizer in captured.optimizers:
                if id(optimizer) not in self._hooks:
                    self._hooks[id(optimizer)] = optimizer.register_step_pre_hook(self._before_step)
            self._stager.submit(self._stage_snapshot, handle, snapshot, job, started)
        handle.blocking_seconds = time.perf_counter() - started
        return handle

    @property
    def under_way(self) -> SaveHandle | None:
        """The save that is being staged or written; None between saves."""
        return next((handle for handle in self._open if not handle.committed.done()), None)

    def ended(self) -> list[SaveHandle]:
        """Return the saves that ended since the last call."""
        done = [handle for handle in self._open if handle.committed.done()]
        self._open = [handle for handle in self._open if handle not in done]
        return done

    def drain(self) -> None:
        """Wait until every save so far is over."""
        for handle in self._open:
            handle.committed.exception()

    def close(self) -> None:
        """Finish what is under way and let go of threads, hooks and memory."""
        self._stager.shutdown()
        self._writer.shutdown()
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        if self._owns_buffer:
            self.buffer.release()

    def _before_step(self, *_: object) -> None:
        """Let no optimizer change what is still being copied; a hook of its `step`."""
        while self._staging:
            handle, snapshot = self._staging.pop()
            started = time.perf_counter()
            snapshot.copy_rest()
            # The staging thread may hold the last piece; only its result says that all of the state is copied.
            handle.staged.result()
            handle.blocking_seconds += time.perf_counter() - started

    def _stage_snapshot(self, handle: SaveHandle, snapshot: Snapshot, job: WriteJob, started: float) -> None:
        try:
            snapshot.copy_rest()
            findings = self._check_unchanged(snapshot)
        except Exception as error:  # noqa: BLE001 -- whatever a device may raise: nobody must wait for ever
            findings = Findings(trouble=str(error))
        handle.staged.set_result(not findings.trouble)
        self._writer.submit(self._persist_snapshot, handle, job, started, findings)

    def _check_unchanged(self, snapshot: Snapshot) -> Findings:
        changed = snapshot.changed()
        if not changed:
            return Findings()
        # A training that writes to its weights outside of the step will do it again: copy at once from now on.
        self.eager = self.redo = True
        return Findings(
            trouble=f"{', '.join(changed[:3])} changed outside of the optimizer's step while it was copied; it is "
            "saved again at the next step, and at once from now on: give CheckpointConfig(staging='eager')"
        )

    def _persist_snapshot(
        self, handle: SaveHandle, job: WriteJob, started: float, findings: Findings | None = None
    ) -> None:
        """Write a snapshot, unless there was trouble on this rank or another: all of them get here for each save."""
        memory = self.buffer.reserve(job.layout.size)[: job.layout.size]
        published: Published | None = None
        error: Exception | None = None
        try:
            if findings is None or not findings.trouble:
                findings = self._check_health(handle.step, job, memory)
            # A checkpoint is published by all ranks or by none.
            findings = self._ranks.agree_on_findings(findings)
            if not findings.trouble:
                published = self._write(handle, job, memory)
        except Exception as raised:  # noqa: BLE001 -- told by the handle, and by the manager as the settings say
            error, findings = raised, Findings(trouble=str(raised))
        if published is not None:
            self.buffer.content = published.manifest.digest, job.layout
        handle.persist_seconds = time.perf_counter() - started
        # The bytes are on disk or given up: the next snapshot may overwrite them.
        self._buffer_free.release()
        if published is None:
            handle.verdict = f"{'refused' if findings.refused else 'failed'}: {findings.trouble}"
            told = error if isinstance(error, CheckpointError) else CheckpointError(findings.trouble)
            handle.committed.set_exception(told)
            return
        handle.verdict = "good"
        handle.committed.set_result(published)

    def _check_health(self, step: int, job: WriteJob, memory: memoryview) -> Findings:
        if self._config.on_nonfinite == "save":
            return Findings()
        found = find_nonfinite(job.layout, memory, job.captured.lazy)
        if not found:
            return Findings()
        shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        return Findings(trouble=f"step {step} is not saved: {shown} holds values that are not finite", refused=True)

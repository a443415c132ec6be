"""A pool of worker processes on this machine, one trial in each at a time, and several of them in one trial."""

import os
import sys
import time
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from trainwright.engine.devices import cores
from trainwright.engine.function_reference import FunctionReference
from trainwright.engine.process.gang import Gang
from trainwright.engine.process.worker_process import WorkerProcess
from trainwright.engine.protocol import Block, Handler, TrainFunction
from trainwright.train import Assignment

__all__ = ["WorkerPool"]

_WATCH_SECONDS = 0.25
"""How often time and memory limits are looked at."""


class WorkerPool:
    """Runs trials in spawned processes, each reused for its slot's next trial and replaced after a kill."""

    def __init__(
        self,
        workers: int,
        *,
        gpus: tuple[str, ...],
        timeout_seconds: float | None,
        memory_bytes: int | None,
        grace_seconds: float,
        fresh_process: bool,
        process_per_device: bool,
    ) -> None:
        self.workers = workers
        self.timeout_seconds = timeout_seconds
        self.memory_bytes = memory_bytes
        self.grace_seconds = grace_seconds
        self.fresh_process = fresh_process
        self.process_per_device = process_per_device
        self.gpus = gpus
        self._directory: Path | None = None
        self._reference: FunctionReference | None = None
        self._idle: dict[range, WorkerProcess] = {}
        self._busy: dict[int, Gang[WorkerProcess]] = {}  # by trial

    @property
    def slots(self) -> int:
        """The number of workers."""
        return self.workers

    @property
    def slots_per_node(self) -> int:
        """All slots: there is one node."""
        return self.slots

    @property
    def gone(self) -> frozenset[int]:
        """None: this machine is not lost."""
        return frozenset()

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Find out how workers will find `train`; no process is started before the first launch."""
        self._reference = FunctionReference.of(train)
        self._directory = None if directory is None else directory.resolve()

    def devices(self, block: Block | range) -> tuple[str, ...]:
        """Return the GPUs of the block's slots, or their CPU shares."""
        if not self.gpus:
            return tuple(f"cpu:{slot}" for slot in block)
        return tuple(dict.fromkeys(f"cuda:{self.gpus[slot % len(self.gpus)]}" for slot in block))

    @property
    def holds(self) -> bool:
        """It does: a report is answered when the handler says so."""
        return True

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Hand the assignment to a worker of each slot, or one of the whole block; start those that are not there."""
        if self.process_per_device:
            parts = [range(slot, slot + 1) for slot in block]
        else:
            parts = [range(block[0], block[-1] + 1)]
        workers = {part: self._take_worker(part) for part in parts}
        assignment = replace(assignment, devices_each=len(block) // len(parts))
        self._busy[assignment.trial] = Gang(assignment, workers, self._make_message)

    def _take_worker(self, part: range) -> WorkerProcess:
        worker = self._idle.pop(part, None)
        if worker is not None and not worker.ended:
            return worker
        if worker is not None:
            # Something killed it while it waited: not this trial's doing.
            worker.close(kill=True)
        for other in [other for other in self._idle if set(other).intersection(part)]:
            # A worker for a block of another size: its memory is needed.
            self._idle.pop(other).close(kill=True)
        return WorkerProcess(self._make_environment(part))

    def _make_message(self, assignment: Assignment) -> tuple[Any, ...]:
        log = None
        if self._directory is not None:
            rank = f"-rank-{assignment.rank}" if assignment.rank else ""
            name = f"lease-{assignment.lease}{rank}.log"
            log = str(self._directory / "logs" / f"trial-{assignment.trial:06d}" / name)
        return sys.path, sys.argv, self._reference, assignment, log, bool(self.gpus)

    def _make_environment(self, block: range) -> dict[str, str]:
        threads = str(max(1, cores() * len(block) // self.workers))
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
        gpus = ",".join(name.removeprefix("cuda:") for name in self.devices(block)) if self.gpus else ""
        # Idle threads would spin on the other workers' cores.
        passive = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
        return {**dict.fromkeys(names, threads), "OMP_WAIT_POLICY": passive, "CUDA_VISIBLE_DEVICES": gpus}

    def answer(self, trial: int, goes_on: bool) -> None:
        """Tell a trial that waits at a report whether it goes on."""
        if trial in self._busy:
            self._busy[trial].answer(goes_on)

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Serve the workers that have something to say, and watch the limits of the others."""
        limited = self.timeout_seconds is not None or self.memory_bytes is not None
        deadline = time.monotonic() + timeout_seconds
        while self._busy:
            left = deadline - time.monotonic()
            pause = max(0.0, min(left, _WATCH_SECONDS) if limited else left)
            lines = {line: (n, rank) for n, gang in self._busy.items() for line, rank in gang.connections.items()}
            ready = wait(list(lines), pause)
            for trial, rank in sorted(lines[line] for line in ready):  # type: ignore[index]
                if trial in self._busy:
                    self._busy[trial].serve(rank, handler)
                    self._finish_trial(trial, handler)
            for trial in list(self._busy):
                self._busy[trial].watch(
                    handler,
                    timeout_seconds=self.timeout_seconds,
                    memory_bytes=self.memory_bytes,
                    grace=self.grace_seconds,
                )
                self._finish_trial(trial, handler)
            if ready or left <= 0:
                return

    def _finish_trial(self, trial: int, handler: Handler) -> None:
        """Tell of the trial's end, if it has come, and keep its workers for the next."""
        gang = self._busy[trial]
        if gang.outcome is None:
            return
        del self._busy[trial]
        if not gang.reusable:
            gang.kill()
        elif self.fresh_process:
            for worker in gang.workers.values():
                # Close all first, so that the workers end in parallel.
                worker.connection.close()
            for worker in gang.workers.values():
                worker.close(kill=False)
        else:
            self._idle.update(gang.workers)
        handler.exited(trial, gang.outcome)

    def close(self) -> None:
        """Kill what runs, let idle workers go, leave no process behind."""
        for gang in self._busy.values():
            gang.kill()
        for worker in self._idle.values():
            # Close all first, so that the workers end in parallel.
            worker.connection.close()
        for worker in self._idle.values():
            worker.close(kill=False)
        self._busy.clear()
        self._idle.clear()

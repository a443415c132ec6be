"""A pool of worker processes on this machine, one trial in each at a time."""

import os
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

from trainwright.engine._engine import Block, Handler, TrainFunction
from trainwright.engine._function import FunctionReference
from trainwright.engine._process import WorkerProcess
from trainwright.engine.devices import cores
from trainwright.train import Assignment

__all__ = ["Pool"]

_WATCH_SECONDS = 0.25
"""How often time and memory limits are looked at."""


class Pool:
    """Runs trials in spawned processes, each reused for its block's next trial and replaced after a kill."""

    def __init__(
        self,
        workers: int,
        *,
        gpus: tuple[str, ...],
        timeout_seconds: float | None,
        memory_bytes: int | None,
        grace_seconds: float,
        fresh_process: bool,
    ) -> None:
        self.workers = workers
        self.timeout_seconds = timeout_seconds
        self.memory_bytes = memory_bytes
        self.grace_seconds = grace_seconds
        self.fresh_process = fresh_process
        self.gpus = gpus
        self._directory: Path | None = None
        self._reference: FunctionReference | None = None
        self._idle: dict[Block, WorkerProcess] = {}
        self._busy: dict[Block, tuple[WorkerProcess, int]] = {}

    @property
    def slots(self) -> int:
        """The number of workers."""
        return self.workers

    @property
    def slots_per_node(self) -> int:
        """All slots: there is one node."""
        return self.slots

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Find out how workers will find `train`; no process is started before the first launch."""
        self._reference = FunctionReference.of(train)
        self._directory = None if directory is None else directory.resolve()

    def devices(self, block: Block) -> tuple[str, ...]:
        """Return the GPUs of the block's slots, or their CPU shares."""
        if not self.gpus:
            return tuple(f"cpu:{slot}" for slot in block)
        return tuple(dict.fromkeys(f"cuda:{self.gpus[slot % len(self.gpus)]}" for slot in block))

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Hand the assignment to the block's worker, starting one if there is none."""
        worker = self._idle.pop(block, None)
        if worker is not None and worker.ended:  # something killed it while it waited: not this trial's doing
            worker.close(kill=True)
            worker = None
        if worker is None:
            worker = WorkerProcess(self._environment(block))
        log = None
        if self._directory is not None:
            name = f"lease-{assignment.lease}.log"
            log = str(self._directory / "logs" / f"trial-{assignment.trial:06d}" / name)
        worker.run((sys.path, sys.argv, self._reference, assignment, log, bool(self.gpus)))
        self._busy[block] = worker, assignment.trial

    def _environment(self, block: Block) -> dict[str, str]:
        threads = str(max(1, cores() * len(block) // self.workers))
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
        gpus = ",".join(name.removeprefix("cuda:") for name in self.devices(block)) if self.gpus else ""
        passive = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")  # idle threads would spin on the other workers' cores
        return {**dict.fromkeys(names, threads), "OMP_WAIT_POLICY": passive, "CUDA_VISIBLE_DEVICES": gpus}

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Serve the workers that have something to say, and watch the limits of the others."""
        limited = self.timeout_seconds is not None or self.memory_bytes is not None
        deadline = time.monotonic() + timeout_seconds
        while self._busy:
            left = deadline - time.monotonic()
            pause = max(0.0, min(left, _WATCH_SECONDS) if limited else left)
            by_connection = {worker.connection: block for block, (worker, _) in self._busy.items()}
            ready = wait(list(by_connection), pause)
            for block in sorted(by_connection[connection] for connection in ready):  # type: ignore[index]
                self._serve(block, handler)
            self._watch(handler)
            if ready or left <= 0:
                return

    def _serve(self, block: Block, handler: Handler) -> None:
        worker, trial = self._busy[block]
        try:
            kind, content = worker.connection.recv()
            if kind == "facts":
                worker.connection.send(handler.facts(trial, content))
                return
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._bury(block, handler)
            return
        del self._busy[block]
        if worker.condemned or self.fresh_process:
            worker.close(kill=worker.condemned)
        else:
            self._idle[block] = worker
        handler.exited(trial, content)

    def _bury(self, block: Block, handler: Handler) -> None:
        worker, trial = self._busy[block]
        outcome = worker.outcome()
        worker.close(kill=True)
        del self._busy[block]
        handler.exited(trial, outcome)

    def _watch(self, handler: Handler) -> None:
        for block in [block for block, (worker, _) in self._busy.items() if worker.ended]:
            if not self._busy[block][0].connection.poll():  # no last words are left to read
                self._bury(block, handler)
        for worker, _ in self._busy.values():
            if self.timeout_seconds is not None and worker.seconds > self.timeout_seconds:
                message = f"it ran longer than timeout_seconds={self.timeout_seconds:g}"
                worker.condemn("timeout", message, self.grace_seconds)
            if self.memory_bytes is not None and not worker.condemned:
                resident = worker.resident_bytes()
                if resident > self.memory_bytes:
                    message = f"it held {resident:,} bytes of memory, above memory_bytes={self.memory_bytes:,}"
                    worker.condemn("out_of_memory", message, self.grace_seconds)
            worker.enforce()

    def close(self) -> None:
        """Kill what runs, let idle workers go, leave no process behind."""
        for worker, _ in self._busy.values():
            worker.close(kill=True)
        for worker in self._idle.values():
            worker.connection.close()  # all of them leave at once
        for worker in self._idle.values():
            worker.close(kill=False)
        self._busy.clear()
        self._idle.clear()

"""The Local engine: runs trials on this machine, each in a worker process with its own GPUs, or in this process."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from trainwright.cluster.visible_devices import cores, visible_gpus
from trainwright.engine.process.listener import Worker
from trainwright.engine.process.run_assignment import run_assignment
from trainwright.engine.process.supervisor import Supervisor
from trainwright.engine.process.worker_process import WorkerProcess, worker_environment
from trainwright.engine.protocol import Block, Died, Handler, TrainFunction
from trainwright.errors import EngineError
from trainwright.ledger import Record
from trainwright.train.assignment import Assignment
from trainwright.validators import each, flag, instance_of, integer, optional

__all__ = ["Local"]

_GPUS = optional(each(instance_of(str, int), words="a list of GPUs, such as [0, 1], or () for none"))


@dataclass(eq=False)
class Local(Supervisor):
    """Run up to `workers` trials at once, each alone in a spawned process that its slot's next trial reuses.

    Slots share this machine's processors evenly (OMP_NUM_THREADS) and its GPUs in turn (CUDA_VISIBLE_DEVICES);
    `gpus` names other ones, `gpus=()` none; `speeds={"cuda:1": 0.5}` says which are slower than others. A run longer
    than `timeout_seconds`, or a process with more resident memory than `memory_bytes`, its children included, is asked
    to end and killed `grace_seconds` later: the trial has failed. `fresh_process=True` gives each trial a new process.

    A trial of several devices is as many processes, one a slot, which call the training function as the ranks of a
    group of torch.distributed (see `Trial.prepare`). With `process_per_device=False` it is one process that has them
    all, for functions that see to their devices themselves. `workers=0` runs trials one after another in the calling
    process, where breakpoints work and no limit can be enforced.
    """

    workers: Annotated[int, integer(minimum=0), "trials at once"] = 1
    _: KW_ONLY
    gpus: Annotated[Sequence[str | int] | None, _GPUS, "GPUs to use"] = None
    fresh_process: Annotated[bool, flag(), "a new process for each trial"] = False
    process_per_device: Annotated[bool, flag(), "a process for each device of a trial"] = True

    def check_together(self) -> None:
        """Refuse limits without a process to kill, and GPUs that are not there; find the GPUs if none were named."""
        for name in ("timeout_seconds", "memory_bytes"):
            if self.workers == 0 and (value := getattr(self, name)) is not None:
                raise EngineError(f"Local.{name}: got {value!r} with workers=0; a limit needs a process to kill")
        visible = visible_gpus()
        if self.gpus and not visible:
            raise EngineError(
                f"Local.gpus: got {self.gpus!r}, but CUDA_VISIBLE_DEVICES and /proc/driver/nvidia/gpus show no GPU "
                "here; leave gpus out to run on the CPU, or set CUDA_VISIBLE_DEVICES"
            )
        # Resolved once, so that every slot keeps its GPU.
        self.gpus = visible if self.gpus is None else tuple(map(str, self.gpus))
        self._gpu = bool(self.gpus)
        self._here = _InProcessRunner(gpu=self._gpu)
        self._clear()

    @property
    def slots(self) -> int:
        """The number of workers; one for this process."""
        return max(1, self.workers)

    @property
    def slots_per_node(self) -> int:
        """All slots: there is one node."""
        return self.slots

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Find out how workers will find `train`; no process is started before the first launch."""
        if self.workers == 0:
            self._here.train = train
        else:
            super().open(train, directory)

    def devices(self, block: Block | range) -> tuple[str, ...]:
        """Return the GPUs of the block's slots, or their CPU shares."""
        if not self.gpus:
            return tuple(f"cpu:{slot}" for slot in block)
        return tuple(dict.fromkeys(f"cuda:{self.gpus[slot % len(self.gpus)]}" for slot in block))

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Hand the assignment to a worker of each slot, or one of the whole block; start those that are not there."""
        if self.workers == 0:
            self._here.queue.append(assignment)
            return
        super().launch(assignment, block)

    def _divide_block(self, block: Block) -> list[range]:
        return super()._divide_block(block) if self.process_per_device else [range(block[0], block[-1] + 1)]

    def _start_worker(self, part: range) -> Worker:
        return WorkerProcess(part, self._require_listener(), self._make_environment(part))

    def _make_environment(self, block: range) -> dict[str, str]:
        gpus = ",".join(name.removeprefix("cuda:") for name in self.devices(block)) if self.gpus else ""
        return worker_environment(max(1, cores() * len(block) // self.workers), gpus)

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Serve the workers that have something to say, and watch the limits of the others."""
        if self.workers == 0:
            self._here.run_next(handler)
            return
        super().poll(handler, timeout_seconds)

    def close(self) -> None:
        """Kill what runs, let idle workers go, leave no process behind."""
        super().close()
        self._here.queue.clear()
        self._here.interrupted = None


class _InProcessRunner:
    """Runs trials one after another in the calling process; anything callable will do."""

    def __init__(self, *, gpu: bool) -> None:
        self.train: TrainFunction | None = None
        self.queue: deque[Assignment] = deque()
        self.interrupted: int | None = None  # the trial that Ctrl-C has ended, until a poll tells so
        self._gpu = gpu
        self._since = 0.0

    def run_next(self, handler: Handler) -> None:
        """Run one assignment to its end; of one that Ctrl-C has ended, tell so."""
        if self.interrupted is not None:
            trial, self.interrupted = self.interrupted, None
            why = "the process that ran it was interrupted"
            handler.exited(trial, Died(why=why, blame=False, seconds=time.monotonic() - self._since))
        elif self.queue and self.train is not None:
            assignment = self.queue.popleft()
            # Reports are judged inside the call of the training function itself.
            channel = _InProcessChannel(handler, assignment.trial)
            self._since = time.monotonic()
            try:
                outcome = run_assignment(self.train, assignment, channel, gpu=self._gpu)
            except KeyboardInterrupt:
                self.interrupted = assignment.trial
                raise
            if channel.trouble is not None:
                raise channel.trouble
            handler.exited(assignment.trial, outcome)


class _InProcessChannel:
    """The channel of a trial whose handler is called in the same process."""

    def __init__(self, handler: Handler, trial: int) -> None:
        self._handler = handler
        self._trial = trial
        self.trouble: Exception | None = None

    def exchange(self, records: list[Record]) -> bool:
        try:
            return self._handler.facts(self._trial, records)
        except Exception as error:  # noqa: BLE001 -- the handler's trouble is no failure of the trial: `poll` raises it
            self.trouble = error
            return False

    def leaves(self) -> bool:
        return self._handler.leaves()

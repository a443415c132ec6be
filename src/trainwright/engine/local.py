"""The Local engine: trials on this machine, each alone in a worker process, or in this process for debugging."""

from collections.abc import Sequence
from pathlib import Path

from trainwright.engine.devices import visible_gpus
from trainwright.engine.process.in_process import InProcess
from trainwright.engine.process.pool import WorkerPool
from trainwright.engine.protocol import Block, Engine, Handler, TrainFunction
from trainwright.errors import EngineError
from trainwright.train import Assignment

__all__ = ["Local"]


class Local:
    """Run up to `workers` trials at once, each alone in a spawned process that its slot's next trial reuses.

    Slots share this machine's processors evenly (OMP_NUM_THREADS) and its GPUs in turn (CUDA_VISIBLE_DEVICES);
    `gpus` names other ones, `gpus=()` none. A run longer than `timeout_seconds` or with more resident memory than
    `memory_bytes`, all its processes together, is asked to end and killed `grace_seconds` later: the trial has failed.
    `fresh_process=True` gives each trial a new process.

    A trial of several devices is as many processes, one a slot, which call the training function as the ranks of a
    group of torch.distributed (see `Trial.prepare`). With `process_per_device=False` it is one process that has them
    all, for functions that see to their devices themselves. `workers=0` runs trials one after another in the calling
    process, where breakpoints work and no limit can be enforced.
    """

    def __init__(
        self,
        workers: int = 1,
        *,
        gpus: Sequence[str | int] | None = None,
        timeout_seconds: float | None = None,
        memory_bytes: int | None = None,
        grace_seconds: float = 5.0,
        fresh_process: bool = False,
        process_per_device: bool = True,
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
            raise EngineError(f"Local.workers: got {workers!r}; allowed: a whole number >= 0 (0 runs in this process)")
        for name, value in (("timeout_seconds", timeout_seconds), ("memory_bytes", memory_bytes)):
            if value is not None and not (_is_number(value) and value > 0):
                raise EngineError(f"Local.{name}: got {value!r}; allowed: a number > 0, or None for no limit")
            if value is not None and workers == 0:
                raise EngineError(f"Local.{name}: got {value!r} with workers=0; a limit needs a process to kill")
        if not (_is_number(grace_seconds) and grace_seconds >= 0):
            raise EngineError(f"Local.grace_seconds: got {grace_seconds!r}; allowed: a number >= 0")
        found = visible_gpus()
        if gpus is not None and (isinstance(gpus, str) or not isinstance(gpus, Sequence)):
            raise EngineError(f"Local.gpus: got {gpus!r}; allowed: a list of GPUs, such as [0, 1], or () for none")
        if gpus and not found:
            raise EngineError(
                f"Local.gpus: got {gpus!r}, but CUDA_VISIBLE_DEVICES and /proc/driver/nvidia/gpus tell of no GPU here; "
                "leave gpus out to run on the CPU, or set CUDA_VISIBLE_DEVICES"
            )
        chosen = found if gpus is None else tuple(str(gpu) for gpu in gpus)
        self._engine: Engine = (
            WorkerPool(
                workers,
                gpus=chosen,
                timeout_seconds=timeout_seconds,
                memory_bytes=memory_bytes,
                grace_seconds=grace_seconds,
                fresh_process=fresh_process,
                process_per_device=process_per_device,
            )
            if workers
            else InProcess(chosen)
        )

    @property
    def slots(self) -> int:
        """The number of trials that run at once."""
        return self._engine.slots

    @property
    def slots_per_node(self) -> int:
        """All of them: this machine is one node."""
        return self._engine.slots

    @property
    def gone(self) -> frozenset[int]:
        """None: this machine is not lost."""
        return frozenset()

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Find out how workers will find `train`; no process is started before the first launch."""
        self._engine.open(train, directory)

    def devices(self, block: Block) -> tuple[str, ...]:
        """Return the GPUs of the block's slots, or their CPU shares."""
        return self._engine.devices(block)

    @property
    def holds(self) -> bool:
        """Whether trials run in processes of their own, which can be kept waiting."""
        return self._engine.holds

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Hand the assignment to the block's worker, starting one if there is none."""
        self._engine.launch(assignment, block)

    def answer(self, trial: int, goes_on: bool) -> None:
        """Tell a trial that waits at a report whether it goes on."""
        self._engine.answer(trial, goes_on)

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Serve the workers that have something to say, and watch the limits of the others."""
        self._engine.poll(handler, timeout_seconds)

    def close(self) -> None:
        """Kill what runs, let idle workers go, leave no process behind."""
        self._engine.close()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""The Local engine: trials on this machine, each alone in a worker process, or in this process for debugging."""

from collections.abc import Sequence

from trainwright.engine.devices import visible_gpus
from trainwright.engine.process.in_process import InProcess
from trainwright.engine.process.pool import WorkerPool
from trainwright.engine.wrapper import EngineWrapper
from trainwright.errors import EngineError
from trainwright.validators import check, each, instance_of, integer, number, optional

__all__ = ["Local"]


_GPUS = optional(each(instance_of(str, int), words="a list of GPUs, such as [0, 1], or () for none"))


class Local(EngineWrapper):
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
        limit = optional(number(above=0), words="None for no limit")
        for name, value, validator in (
            ("workers", workers, integer(minimum=0)),
            ("timeout_seconds", timeout_seconds, limit),
            ("memory_bytes", memory_bytes, limit),
            ("grace_seconds", grace_seconds, number(minimum=0)),
            ("gpus", gpus, _GPUS),
        ):
            check(value, validator, f"Local.{name}", EngineError)
            if value is not None and validator is limit and workers == 0:
                raise EngineError(f"Local.{name}: got {value!r} with workers=0; a limit needs a process to kill")
        visible = visible_gpus()
        if gpus and not visible:
            raise EngineError(
                f"Local.gpus: got {gpus!r}, but CUDA_VISIBLE_DEVICES and /proc/driver/nvidia/gpus tell of no GPU here; "
                "leave gpus out to run on the CPU, or set CUDA_VISIBLE_DEVICES"
            )
        chosen = visible if gpus is None else tuple(map(str, gpus))
        super().__init__(
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

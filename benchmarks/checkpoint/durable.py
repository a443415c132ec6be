"""What a save costs until it is durable, beside torch's asynchronous saving (DCP): wall and processor time.

One training of a multi-layer perceptron with Adam. In each round both save the same state once, in turn, while the
training goes on, and steps without a save are timed. A save takes what passes from its call until the checkpoint is on
disk, and the processor time of the process in it beyond that of the steps meanwhile. Each drops its earlier checkpoint
once the next is there.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.checkpoint.blocking import make_training

__all__ = ["compare_durable"]

_ALONE = 5  # steps without a save in each round


def compare_durable(folder: Path, size: int, rounds: int = 20) -> dict[tuple[str, str], list[float]]:
    """Return the seconds of each round, by "ours" or "dcp" and "wall" or "processor"; files go below `folder`."""
    from torch.distributed.checkpoint.state_dict_saver import async_save

    from trainwright.checkpoint import CheckpointConfig, Manager, Retention

    model, optimizer, step = make_training(size)
    step()
    config = CheckpointConfig(interval=10**9, retention=Retention(last=1), on_error="raise")
    found: dict[tuple[str, str], list[float]] = {}
    with Manager(folder / "manager", config=config, model=model, optimizer=optimizer) as manager:

        def ours(_: int) -> Any:
            return manager.save().committed

        def theirs(number: int) -> Any:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            return async_save(state, checkpoint_id=folder / f"dcp-{number}")

        ways = [("ours", ours), ("dcp", theirs)]
        for number in range(rounds + 1):  # the first one allocates and imports
            wall, processor = _timed(lambda: [step() for _ in range(_ALONE)])
            alone = wall / _ALONE, processor / _ALONE
            for name, save in ways if number % 2 else reversed(ways):
                wall, processor, steps = _save_beside(lambda: save(number), step)  # noqa: B023  called at once
                if name == "dcp":
                    shutil.rmtree(folder / f"dcp-{number - 1}", ignore_errors=True)
                if number:
                    found.setdefault((name, "wall"), []).append(wall)
                    found.setdefault((name, "processor"), []).append(processor - steps * alone[1])
    return found


def _save_beside(save: Callable[[], Any], step: Callable[[], None]) -> tuple[float, float, int]:
    """Return wall seconds until a save is durable, processor seconds until the step after, and steps meanwhile."""
    steps, ended = 0, list[float]()
    began, processor = time.perf_counter(), time.process_time()
    future = save()
    future.add_done_callback(lambda _: ended.append(time.perf_counter()))
    while not future.done():
        step()
        steps += 1
    future.result()
    return ended[0] - began, time.process_time() - processor, steps


def _timed(act: Callable[[], object]) -> tuple[float, float]:
    """Return wall and processor seconds."""
    began = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - began[0], time.process_time() - began[1]

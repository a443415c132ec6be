"""Adapts the batch size of a trial before each epoch to the largest goodput: progress a second, as measured so far."""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from trainwright.schedule.allocator.estimates import Goodput, StepShape
from trainwright.train.batching import Batching, BatchStep

if TYPE_CHECKING:
    from trainwright.train.trial import Trial

__all__ = ["GoodputBatch"]


class GoodputBatch:
    """The batch of each epoch by goodput, on `devices`, and the step times by which it is chosen.

    `model` knows what the study has measured; `agree` returns what rank 0 says.
    """

    def __init__(self, model: Goodput, devices: int, agree: Callable[[int], int], reference_steps: int) -> None:
        self._model, self._devices, self._agree = model, devices, agree
        # Of an epoch with the batch of the user's loader.
        self._reference_steps = reference_steps
        self._unit: float | None = None
        # Ends of the first and the last step of the epoch in work, and the steps between them.
        self._first, self._last, self._count = 0.0, 0.0, 0

    @classmethod
    def of(cls, trial: "Trial", batches: Any, batching: Batching, micro_batch: int | None) -> Self:
        """Return the batch of a trial whose study may have measured steps before."""
        reference = batching.reference
        batches.arrange(reference)
        steps = len(batches)
        limit = micro_batch or -(-reference // trial.assignment.start_devices)
        # An epoch has a few steps at least.
        model = Goodput(reference=reference, micro_batch=limit, largest=max(reference, steps * reference // 4))
        for key, shape, seconds in trial.assignment.step_times:
            if key == (reference, limit):
                model.times[StepShape(*shape)] = seconds
        return cls(model, trial.devices, _agreed if trial.world_size > 1 else int, steps)

    def choose_batch(self, noise: float | None) -> int:
        """Return the batch of the epoch that comes; that of the loader until the noise is measured."""
        return self._agree(self._model.reference if noise is None else self._model.choose_batch(self._devices, noise))

    def length(self, gain: float) -> int:
        """Return the steps of an epoch of equal progress, each worth `gain` steps of the loader's batch."""
        return math.ceil(self._reference_steps / gain)

    def note_step(self) -> None:
        """Take note that a step has ended."""
        self._last = time.perf_counter()
        if self._count == 0:
            # The first step of an epoch waits for its data.
            self._first = self._last
        self._count += 1

    def end_epoch(self, step: BatchStep, noise: float | None) -> dict[str, Any] | None:
        """Return what the epoch has told of its steps, for the study; None after fewer than two."""
        count, self._count = self._count, 0
        if count < 2:
            return None
        seconds = (self._last - self._first) / (count - 1)
        shape = self._model.shape(self._devices, step.batch)
        self._unit = self._model.observe(shape, seconds, self._unit)
        return {
            "shape": list(shape),
            "step_seconds": seconds,
            "noise": noise,
            "reference": self._model.reference,
            "limit": self._model.micro_batch,
            "largest": self._model.largest,
        }


def _agreed(value: int) -> int:
    """Return rank 0's value."""
    import torch

    values = [value]
    torch.distributed.broadcast_object_list(values, 0, device=torch.device("cpu"))
    return values[0]

"""Generates learning curves of simulated trials: losses by epoch and seconds of each epoch, from counted draws."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np

from trainwright.errors import EngineError
from trainwright.randomness import rng
from trainwright.settings import Settings
from trainwright.validators import number

__all__ = ["Draws", "LearningCurve", "LearningCurves", "Parametric", "Task"]

_CHUNK = 1024  # draws at a time: one generator per draw would cost more than the event itself
_KEPT = 64  # chunks
_AT_ONCE = 1e-6  # seconds of an epoch that cannot be


class Draws:
    """Standard draws by number, each a function of (seed, purpose, series, number) alone."""

    def __init__(self, seed: int, purpose: str, kind: str = "normal") -> None:
        self._seed = seed
        self._purpose = purpose
        self._kind = kind
        self._chunks: dict[tuple[int, int], list[float]] = {}

    def at(self, number: int, series: int = 0) -> float:
        """Return the draw of `number` in a `series`."""
        # A chunk's generator depends on its number alone, so draws do not depend on the order of asking.
        key = series, number // _CHUNK
        chunk = self._chunks.get(key)
        if chunk is None:
            if len(self._chunks) >= _KEPT:
                del self._chunks[next(iter(self._chunks))]
            generator = rng(self._seed, self._purpose, key[1], series)
            draw: Callable[[int], np.ndarray] = (
                generator.standard_normal if self._kind == "normal" else generator.standard_exponential
            )
            chunk = self._chunks[key] = draw(_CHUNK).tolist()
        return chunk[number % _CHUNK]


class LearningCurve(Protocol):
    """One trial's training on `task_devices` devices."""

    def losses(self, epoch: int) -> tuple[float, ...]:
        """Return the losses, one per objective, reported at `epoch` (from 1)."""

    def seconds(self, epoch: int) -> float:
        """Return the seconds of the first `epoch` epochs."""


class LearningCurves(Protocol):
    """All trials of one simulated study."""

    @property
    def substitutions(self) -> int:
        """For how many of them something had to be put in the place of what was asked."""

    def of(self, trial: int, params: Mapping[str, Any] | None) -> LearningCurve:
        """Return the course of a trial of these parameters; without a searcher there are none."""


class Task(Protocol):
    """A kind of training."""

    def learning_curves(self, seed: int) -> LearningCurves:
        """Return the learning curves of the study with this seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parametric(Settings, error=EngineError):
    """Loss = quality + amplitude * epoch^-decay + noise; qualities are drawn from a normal distribution.

    An epoch takes `epoch_seconds`, times a factor of the trial's own (lognormal, `speed_jitter` its spread). What the
    loss is at the same epoch on other devices is not modelled: it is the same. With `seconds_of`, an epoch takes what
    that says of the trial's parameters; where it is None the trial ends at once with an infinite loss.
    """

    epoch_seconds: Annotated[float, number(above=0), "mean seconds of an epoch"] = 60.0
    quality_mean: Annotated[float, number(), "mean of the loss that a trial approaches"] = 0.5
    quality_spread: Annotated[float, number(minimum=0), "its spread over trials"] = 0.1
    amplitude: Annotated[float, number(minimum=0), "loss of the first epoch above it"] = 1.0
    decay: Annotated[float, number(minimum=0), "exponent of the epoch"] = 0.5
    noise: Annotated[float, number(minimum=0), "spread of each report"] = 0.03
    speed_jitter: Annotated[float, number(minimum=0), "spread of the seconds of an epoch over trials"] = 0.05
    seconds_of: Callable[[Mapping[str, Any]], float | None] | None = None

    def learning_curves(self, seed: int) -> LearningCurves:
        """Return curves that depend on the seed, the trial's number and the epoch alone."""
        return _Curves(self, seed)


class _Curves:
    substitutions = 0

    def __init__(self, task: Parametric, seed: int) -> None:
        self._task = task
        self._quality = Draws(seed, "simulated quality")
        self._speed = Draws(seed, "simulated speed")
        self._noise = Draws(seed, "simulated noise")

    def of(self, trial: int, params: Mapping[str, Any] | None) -> "_Curve":
        task = self._task
        quality = task.quality_mean + task.quality_spread * self._quality.at(trial)
        if task.seconds_of is None:
            epoch_seconds = task.epoch_seconds * math.exp(task.speed_jitter * self._speed.at(trial))
        else:
            known = task.seconds_of(params or {})
            quality, epoch_seconds = (math.inf, _AT_ONCE) if known is None else (quality, known)
        return _Curve(trial, quality, epoch_seconds, task, self._noise)


@dataclass(slots=True)
class _Curve:
    trial: int
    quality: float
    epoch_seconds: float
    task: Parametric
    noise: Draws

    def losses(self, epoch: int) -> tuple[float, ...]:
        task = self.task
        # By trial and epoch, so that the same report is the same under every scheduler.
        noise = task.noise * self.noise.at(self.trial, epoch) if task.noise else 0.0
        return (self.quality + task.amplitude * epoch**-task.decay + noise,)

    def seconds(self, epoch: int) -> float:
        return self.epoch_seconds * epoch

"""The settings of checkpointing."""

import math
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal, Self

from trainwright.checkpoint.policy.hooks import Hook
from trainwright.checkpoint.policy.signals import check_signals
from trainwright.errors import CheckpointConfigError

__all__ = ["CheckpointConfig", "HealthCheck", "Retention", "Tier"]


_MEMORY = Path("/dev/shm")  # noqa: S108 -- to be shared with no one: folders in it have names of their own


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Which checkpoints are kept: the `last` newest, the `best` by `metric`, every n-th step, and all that are pinned.

    The newest good one is always kept.
    """

    last: int = 2
    best: int = 0
    metric: str = ""  # of `save(metrics=...)`; "-accuracy" for one that should be high
    every_steps: int = 0  # 0: none

    def __post_init__(self) -> None:
        for name, least in (("last", 1), ("best", 0), ("every_steps", 0)):
            _whole(f"Retention.{name}", getattr(self, name), least)
        if self.best and not self.metric:
            raise CheckpointConfigError(
                f"Retention.best: got {self.best} without a metric; give metric='val_loss', or '-accuracy' for one "
                "that should be high"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthCheck:
    """What is looked at before a checkpoint is published."""

    on_nonfinite: Literal["refuse", "raise"] = "refuse"  # NaN or infinity in weights or optimizer: skip it, or stop
    deviations: float = 8.0  # a norm that is further from its running median, in robust deviations, makes it suspect
    history: int = 20  # saves over which norms are followed

    def __post_init__(self) -> None:
        _one_of("Screen.on_nonfinite", self.on_nonfinite, ("refuse", "raise"))
        _positive("Screen.deviations", self.deviations)
        _whole("Screen.history", self.history, 3)


@dataclass(frozen=True, slots=True)
class Tier:
    """A folder nearer than that of the checkpoints and lost with its node, such as a disk of the node or its memory.

    A save is over when it is there. A drain carries it on in the background, the newest first, and `Manager.save` waits
    for that with `wait`. What is dropped here by `retention` before its turn is never carried on, unless it is pinned.
    """

    folder: Path | str
    _: KW_ONLY
    retention: Retention = field(default_factory=lambda: Retention(last=1))
    drain_every: int = 1  # of so many saves one is carried on; those with `wait` or a pin always are
    drain_bytes_per_second: float | None = None  # of reading here, at most

    def __post_init__(self) -> None:
        if not str(self.folder):
            raise CheckpointConfigError("Tier.folder: got ''; allowed: a folder of this node, such as '/local/scratch'")
        _whole("Tier.drain_every", self.drain_every, 1)
        if self.drain_bytes_per_second is not None:
            _positive("Tier.drain_bytes_per_second", self.drain_bytes_per_second)

    @classmethod
    def memory(cls, *, drain_every: int = 1) -> Self:
        """Return the node's memory: a file system in it, which outlives this process. Raises where there is none."""
        if not _MEMORY.is_dir():
            raise CheckpointConfigError(
                f"Tier.memory: this system has no {_MEMORY}; give Tier(folder) with a file system in memory"
            )
        return cls(_MEMORY, drain_every=drain_every)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """How a `Manager` saves.

    `interval`: "auto" (from what saves cost and how often runs are lost), a float for seconds, an int for steps.
    `staging`: "lazy" copies weights and optimizer state beside the next forward and backward pass, "eager" at once.
    `writer`: "auto" is a thread, and a process from 1 GiB on. `buffers` bound the memory: so often the state.
    `when_busy`: "wait" for a free buffer or "skip" the save. `on_error`: "warn" and train on, until `max_failures` in
    a row, or "raise". `tiers`: where saves go first, nearest first, on their way to the folder of the checkpoints; all
    ranks must be on one node. `budget_bytes` bounds what all kept checkpoints take in that folder. After one of
    `signals` `Manager.step` saves, calls `hook` and leaves; None: SIGTERM and SIGUSR1, or nothing in a trial, for its
    engine ends it.
    """

    interval: Literal["auto"] | float | int = "auto"
    mtbf_seconds: float = 86_400.0  # mean time between losses of the run, for interval="auto"
    staging: Literal["lazy", "eager"] = "lazy"
    writer: Literal["auto", "thread", "process", "sync"] = "auto"
    buffers: int = 1
    when_busy: Literal["wait", "skip"] = "wait"
    retention: Retention = field(default_factory=Retention)
    budget_bytes: int | None = None
    tiers: tuple[Tier, ...] = ()
    screen: HealthCheck | None = field(default_factory=HealthCheck)
    on_error: Literal["warn", "raise"] = "warn"
    max_failures: int = 3
    timeout_seconds: float = 600.0  # for which ranks wait for each other
    agree_every: int = 8  # steps after which ranks hear of each other's signals
    signals: tuple[str, ...] | None = None  # such as ("SIGUSR2",)
    grace_seconds: float | None = 30.0  # from a signal until the batch system kills; None: it does not
    margin_seconds: float = 30.0  # from the last commit that is planned until the end of the allocation
    hook: Hook | None = None  # such as SlurmRequeue()

    def __post_init__(self) -> None:
        interval = self.interval
        if interval != "auto" and (isinstance(interval, bool | str) or not math.isfinite(interval) or interval <= 0):
            raise CheckpointConfigError(
                f"CheckpointConfig.interval: got {interval!r}; allowed: 'auto', seconds > 0 as a float such as 600.0, "
                "or steps >= 1 as an int"
            )
        _positive("CheckpointConfig.mtbf_seconds", self.mtbf_seconds)
        _one_of("CheckpointConfig.staging", self.staging, ("lazy", "eager"))
        _one_of("CheckpointConfig.writer", self.writer, ("auto", "thread", "process", "sync"))
        _whole("CheckpointConfig.buffers", self.buffers, 1)
        _one_of("CheckpointConfig.when_busy", self.when_busy, ("wait", "skip"))
        if self.budget_bytes is not None:
            _whole("CheckpointConfig.budget_bytes", self.budget_bytes, 1)
        if not (isinstance(self.tiers, tuple) and all(isinstance(tier, Tier) for tier in self.tiers)):
            raise CheckpointConfigError(
                f"CheckpointConfig.tiers: got {self.tiers!r}; allowed: a tuple of tiers, nearest first, such as "
                "(Tier.memory(), Tier('/local/scratch'))"
            )
        _one_of("CheckpointConfig.on_error", self.on_error, ("warn", "raise"))
        _whole("CheckpointConfig.max_failures", self.max_failures, 1)
        _positive("CheckpointConfig.timeout_seconds", self.timeout_seconds)
        _whole("CheckpointConfig.agree_every", self.agree_every, 1)
        check_signals(self.signals or (), self.grace_seconds)
        if not (math.isfinite(self.margin_seconds) and self.margin_seconds >= 0):
            raise CheckpointConfigError(
                f"CheckpointConfig.margin_seconds: got {self.margin_seconds!r}; allowed: a finite number >= 0"
            )
        if self.hook is not None and not callable(self.hook):
            raise CheckpointConfigError(
                f"CheckpointConfig.hook: got {self.hook!r}; allowed: None, SlurmRequeue(), CommandHook([...]) or a "
                "function that returns an exit status"
            )


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise CheckpointConfigError(f"{name}: got {value!r}; allowed: {', '.join(map(repr, allowed))}")


def _whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CheckpointConfigError(f"{name}: got {value!r}; allowed: a whole number >= {least}")


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise CheckpointConfigError(f"{name}: got {value!r}; allowed: a finite number > 0")

"""The settings of checkpointing: when to save, how, what is retained, and what happens at the end of an allocation."""

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

from trainwright.checkpoint.policy.hooks import Hook
from trainwright.checkpoint.policy.signals import check_signals
from trainwright.errors import CheckpointConfigError
from trainwright.settings import Settings
from trainwright.validators import Validator, each, instance_of, integer, number, one_of, optional

__all__ = ["CheckpointConfig", "HealthCheck", "Retention", "Tier"]


_MEMORY = Path("/dev/shm")  # noqa: S108 -- to be shared with no one: folders in it have names of their own


_INTERVAL = Validator(
    # The type tells the unit: an int counts optimizer steps, a float counts seconds.
    lambda value: (
        (isinstance(value, str) and value == "auto")
        or integer(minimum=1).accepts(value)
        or (isinstance(value, float) and number(above=0).accepts(value))
    ),
    "'auto', seconds > 0 as a float such as 600.0, or steps >= 1 as an int",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention(Settings, error=CheckpointConfigError):
    """Which checkpoints are retained: the `last` newest, the `best` by `metric`, every n-th step, and all pinned ones.

    The newest good one is always retained.
    """

    last: Annotated[int, integer(minimum=1), "the newest checkpoints"] = 2
    best: Annotated[int, integer(minimum=0), "the best checkpoints by the metric"] = 0
    # Of `save(metrics=...)`; "-accuracy" for one that should be high.
    metric: str = ""
    every_steps: Annotated[int, integer(minimum=0), "the checkpoints of every n-th step; 0: none"] = 0

    def check_together(self) -> None:
        """Refuse to retain the best checkpoints without a metric."""
        if self.best and not self.metric:
            raise CheckpointConfigError(
                f"Retention.best: got {self.best} without a metric; give metric='val_loss', or '-accuracy' for one "
                "that should be high"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthCheck(Settings, error=CheckpointConfigError):
    """What is checked in the values of a checkpoint before it is published."""

    on_nonfinite: Annotated[
        Literal["refuse", "raise"],
        one_of("refuse", "raise"),
        "NaN or infinity in weights or optimizer state: skip the save, or raise",
    ] = "refuse"
    deviations: Annotated[
        float, number(above=0), "robust deviations of a norm from its running median that make a checkpoint suspect"
    ] = 8.0
    history: Annotated[int, integer(minimum=3), "saves over which norms are followed"] = 20


@dataclass(frozen=True, slots=True)
class Tier(Settings, error=CheckpointConfigError):
    """A folder that is faster than that of the checkpoints and lost with its node: a node's disk, or its memory.

    A save ends when it is in the tier. A background thread copies it to the next tier, the newest first, and
    `Manager.save` with `wait` waits for that. What `retention` drops here before it was copied is never copied, unless
    it is pinned.
    """

    folder: Annotated[
        Path | str,
        Validator(
            lambda value: isinstance(value, Path | str) and bool(str(value)),
            "a folder of this node, such as '/local/scratch'",
        ),
    ]
    _: KW_ONLY
    retention: Retention = field(default_factory=lambda: Retention(last=1))
    drain_every: Annotated[
        int, integer(minimum=1), "of so many saves one is copied on; those with `wait` or a pin always are"
    ] = 1
    drain_bytes_per_second: Annotated[
        float | None, optional(number(above=0)), "bytes a second read here at most while copying"
    ] = None

    @classmethod
    def memory(cls, *, drain_every: int = 1) -> Self:
        """Return a tier in the node's memory: a file system that outlives this process. Raises where there is none."""
        if not _MEMORY.is_dir():
            raise CheckpointConfigError(
                f"Tier.memory: this system has no {_MEMORY}; give Tier(folder) with a file system in memory"
            )
        return cls(_MEMORY, drain_every=drain_every)


_TIERS = Validator(
    lambda value: isinstance(value, tuple) and each(instance_of(Tier)).accepts(value),
    "a tuple of tiers, nearest first, such as (Tier.memory(), Tier('/local/scratch'))",
)
_HOOK = Validator(
    lambda value: value is None or callable(value),
    "None, SlurmRequeue(), CommandHook([...]) or a function that returns an exit status",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig(Settings, error=CheckpointConfigError):
    """How a `Manager` saves.

    `staging`: "lazy" copies weights and optimizer state during the next forward and backward pass, "eager" at once.
    `writer`: "auto" is a thread, and a process from 1 GiB on. `on_error`: "warn" and train on, until `max_failures`
    saves failed in a row, or "raise". `tiers`: where saves go first, fastest first, on their way to the folder of the
    checkpoints; all ranks must then be on one node. After one of `signals`, `Manager.step` saves, calls `hook` and
    leaves; None: SIGTERM and SIGUSR1, or no signal within a trial, whose engine ends it.
    """

    interval: Annotated[
        Literal["auto"] | float | int,
        _INTERVAL,
        "'auto': from what saves cost and how often runs fail; a float: seconds; an int: optimizer steps",
    ] = "auto"
    mtbf_seconds: Annotated[float, number(above=0), "mean time between failures of the run, for interval='auto'"] = (
        86_400.0
    )
    staging: Annotated[Literal["lazy", "eager"], one_of("lazy", "eager"), "when the state is copied"] = "lazy"
    writer: Annotated[
        Literal["auto", "thread", "process", "sync"], one_of("auto", "thread", "process", "sync"), "what writes files"
    ] = "auto"
    buffers: Annotated[int, integer(minimum=1), "snapshots in memory at most, each as large as the state"] = 1
    when_busy: Annotated[
        Literal["wait", "skip"], one_of("wait", "skip"), "wait for a free buffer, or skip the save"
    ] = "wait"
    retention: Retention = field(default_factory=Retention)
    budget_bytes: Annotated[
        int | None, optional(integer(minimum=1)), "bytes of all retained checkpoints in their folder at most"
    ] = None
    tiers: Annotated[tuple[Tier, ...], _TIERS, "faster folders on the way, fastest first"] = ()
    health_check: HealthCheck | None = field(default_factory=HealthCheck)
    on_error: Annotated[Literal["warn", "raise"], one_of("warn", "raise"), "what a failed save does"] = "warn"
    max_failures: Annotated[int, integer(minimum=1), "failed saves in a row that stop the training"] = 3
    timeout_seconds: Annotated[float, number(above=0), "how long ranks wait for each other"] = 600.0
    agree_every: Annotated[int, integer(minimum=1), "steps after which ranks exchange their signals"] = 8
    # Such as ("SIGUSR2",).
    signals: tuple[str, ...] | None = None
    # From a signal until the batch system kills; None: it does not.
    grace_seconds: float | None = 30.0
    margin_seconds: Annotated[
        float, number(minimum=0), "from the last planned commit until the end of the allocation"
    ] = 30.0
    hook: Annotated[Hook | None, _HOOK, "called before leaving, such as SlurmRequeue()"] = None

    def check_together(self) -> None:
        """Refuse unknown signals, and a grace that is too short to save within."""
        check_signals(self.signals or (), self.grace_seconds)

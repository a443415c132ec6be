"""The settings of checkpointing: when to save, how, what is retained, and what happens at the end of an allocation."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from trainwright.checkpoint.policy.signals import Hook, check_signals
from trainwright.errors import CheckpointConfigError
from trainwright.settings import Settings
from trainwright.validators import Validator, integer, number, one_of

__all__ = ["CheckpointConfig", "Retention"]

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
    epoch_ends: Annotated[int, integer(minimum=0), "the first checkpoints of the newest epochs"] = 0

    def check_together(self) -> None:
        """Refuse to retain the best checkpoints without a metric."""
        if self.best and not self.metric:
            raise CheckpointConfigError(
                f"Retention.best: got {self.best} without a metric; give metric='val_loss', or '-accuracy' for one "
                "that should be high"
            )


_HOOK = Validator(
    lambda value: value is None or callable(value),
    "None, SlurmRequeue() or a function that returns an exit status",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig(Settings, error=CheckpointConfigError):
    """How a `Manager` saves.

    `staging`: "lazy" copies weights and optimizer state during the next forward and backward pass, "eager" at once.
    `writer`: "thread" writes in the background, "sync" while training waits. `on_error`: "warn" and train on, until
    `max_failures` saves failed in a row, or "raise". After one of `signals`, `Manager.step` saves, calls `hook` and
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
    writer: Annotated[Literal["thread", "sync"], one_of("thread", "sync"), "what writes files"] = "thread"
    retention: Retention = field(default_factory=Retention)
    on_nonfinite: Annotated[
        Literal["refuse", "raise", "save"],
        one_of("refuse", "raise", "save"),
        "NaN or infinity in weights or optimizer state: skip the save and warn, raise, or save all the same",
    ] = "refuse"
    on_error: Annotated[Literal["warn", "raise"], one_of("warn", "raise"), "what a failed save does"] = "warn"
    max_failures: Annotated[int, integer(minimum=1), "failed saves in a row that stop the training"] = 3
    timeout_seconds: Annotated[float, number(above=0), "how long ranks wait for each other"] = 600.0
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

"""The interface of engine and trial: the assignment, the channel to the ledger, and how early stopping ends a trial."""

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trainwright.errors import TrialError, TrialMisuse, closest
from trainwright.ledger import Record

__all__ = ["Assignment", "Channel", "TrialEnd", "as_number", "check_metrics", "is_pruning", "select_metrics"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """One lease of one trial, as an engine is asked to run it.

    `directory` is the study's folder (None: nothing is kept), `reported_epoch` the last epoch that the ledger knows,
    `saved_step` the last step of which it knows a checkpoint. A clone `begins_after` the epoch of its parent's.
    A trial of several processes has one for each, of its own `rank`; `address` is "host:port" where rank 0 is met, new
    for each launch. Each of them has `devices_each` devices; `start_devices` are those of a new trial in this study, to
    which others may be added later if it `may_grow`.
    """

    trial: int
    lease: int
    params: Mapping[str, Any]
    seed: int
    max_epochs: int | None = None
    metrics: tuple[str, ...] = ()
    directory: str | None = None
    reported_epoch: int = 0
    saved_step: int = 0
    begins_after: int = 0
    rank: int = 0
    world_size: int = 1
    address: str = ""
    devices_each: int = 1
    start_devices: int = 1
    may_grow: bool = False
    step_times: tuple[tuple[tuple[int, int], tuple[int, ...], float], ...] = ()


class Channel(Protocol):
    """How a trial speaks with whoever keeps the ledger."""

    def exchange(self, records: list[Record]) -> bool:
        """Hand over records for the ledger; return whether to continue."""

    def leaves(self) -> bool:
        """Whether the trial is to save at its next step and end there: its allocation ends."""


class TrialEnd(BaseException):
    """Ends a training function quietly. No `Exception`, so that a user's `except Exception` lets it pass.

    `preempted` says that the trial is to go on later, from the checkpoint that it has just saved.
    """

    def __init__(self, *, preempted: bool = False) -> None:
        super().__init__()
        self.preempted = preempted


def is_pruning(error: BaseException) -> bool:
    """Whether an error is Optuna's `TrialPruned`, by name, as Optuna itself need not be there."""
    return any(kind.__name__ == "TrialPruned" for kind in type(error).__mro__)


def as_number(value: Any) -> float | None:
    """Return a number of any library, such as a tensor of one element, as a float; None if it is no number."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value.detach() if hasattr(value, "requires_grad") else value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's word for more than one element
        return None


def check_metrics(trial: int, metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return what a trial reports as numbers. Raises `TrialError` if there is nothing, or something else."""
    if not metrics:
        raise TrialError(f"trial {trial}: report needs at least one metric, such as trial.report(val_loss=0.3)")
    numbers = {}
    for name, value in metrics.items():
        number = as_number(value)
        if number is None:
            shown = f"{reprlib.repr(value)} ({type(value).__name__})"
            raise TrialError(f"trial {trial}: {name} must be a number, got {shown}")
        numbers[name] = number
    return numbers


_TIMINGS = re.compile(r"epoch|.*_(runtime|per_second|compilation_time)")
"""What Hugging Face's Trainer puts among its metrics, though it measures the machine."""


def select_metrics(objectives: Sequence[str], measured: Mapping[str, Any], where: str, mend: str) -> dict[str, float]:
    """Return what a framework measured, as numbers. Raises `TrialMisuse` if an objective is not among them."""
    numbers = {name: number for name, value in measured.items() if (number := as_number(value)) is not None}
    metrics = {name: number for name, number in numbers.items() if not _TIMINGS.fullmatch(name)}
    missing = [name for name in objectives if name not in metrics]
    if missing:
        raise TrialMisuse(
            f"TrialCallback: {where} measured {', '.join(sorted(metrics)) or 'nothing'}, and the study's objective "
            f"{missing[0]} is not among them; {mend}{closest(missing[0], sorted(metrics))}"
        )
    return metrics

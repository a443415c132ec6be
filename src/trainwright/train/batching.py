"""How many samples make an optimizer step, and how devices share them: apart from how many devices there are.

The batch B = micro-batch x processes x accumulation. What is called its ratio is B over the batch of the user's loader.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, Literal

from trainwright.errors import TrialError
from trainwright.validators import Validator, check, integer, one_of, optional

__all__ = ["BatchRule", "BatchStep", "Batching", "portion"]

BatchRule = Literal["constant", "grow"] | Sequence[tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchStep:
    """One optimizer step: `batch` samples, of which a process takes at most `micro_batch` up to `accumulate` times."""

    batch: int
    micro_batch: int
    accumulate: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Batching:
    """The batch of every epoch, by a rule.

    What a new trial's devices cannot share evenly is refused. A trial that a policy has moved to such a number of them
    goes on all the same: shares then differ by one sample, and gradients are weighted by them.

    "constant": that of the user's loader, on any number of devices. "grow": in proportion to the devices, as a batch
    per device would have it (RASDA, arXiv 2412.02729). Pairs (epoch, batch): from those epochs on, on any number of
    devices. `micro_batch` bounds what a process takes at a time; by default what it takes at the start of a new trial.
    """

    rule: BatchRule = "constant"
    reference: int
    """The batch of the user's loader."""
    processes: int = 1
    devices: int = 1
    start_devices: int = 1
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        check(self.rule, _RULE, "prepare: batch", TrialError)
        check(self.micro_batch, optional(integer(minimum=1)), "prepare: micro_batch", TrialError)
        for batch in {self.at(epoch).batch for epoch in self._epochs}:
            if batch % self.processes and self.devices == self.start_devices:
                raise TrialError(
                    f"prepare: a batch of {batch} samples cannot be shared evenly by {self.processes} processes; "
                    f"allowed: {_shown(batch)}; give such a number of devices, or a batch that {self.processes} divides"
                )

    def at(self, epoch: int) -> BatchStep:
        """Return the step of an epoch."""
        batch = self._batch(epoch)
        # The largest share of a rank, in micro-batches of one size if the batch divides evenly.
        share = -(-batch // self.processes)
        # By default as many as a device took when the trial was new.
        most = self.micro_batch or max(1, -(-self.reference // self.start_devices))
        # If the batch divides evenly, micro-batches are of one size.
        even = batch % self.processes == 0
        times = share // _largest_divisor(share, most) if even else -(-share // most)
        return BatchStep(batch=batch, micro_batch=-(-share // times), accumulate=times)

    def ratio(self, epoch: int) -> float:
        """Return the batch of an epoch over that of the user's loader."""
        return self._batch(epoch) / self.reference

    @property
    def _epochs(self) -> list[int]:
        """The epochs from which on the batch is another."""
        return [1] if isinstance(self.rule, str) else [1, *(epoch for epoch, _ in self.rule)]

    def _batch(self, epoch: int) -> int:
        if self.rule == "constant":
            return self.reference
        if isinstance(self.rule, str):
            batch, rest = divmod(self.reference * self.devices, self.start_devices)
            if rest:
                raise TrialError(
                    f"prepare: batch='grow': {self.reference} samples on {self.start_devices} devices are no whole "
                    f"number on {self.devices}; give a batch that {self.start_devices} divides"
                )
            return batch
        # The last pair that has begun counts; before the first it is the batch of the loader.
        return next((batch for first, batch in reversed(self.rule) if first <= epoch), self.reference)


def portion(count: int, rank: int, world: int) -> range:
    """Return which of `count` samples are a rank's: a run of them; the first ranks have one more if it is uneven."""
    # Both ends are rounded up in the same way, so that each part begins where the one before ends.
    return range(-(-count * rank // world), -(-count * (rank + 1) // world))


def _is_schedule(rule: Any) -> bool:
    if not isinstance(rule, Sequence) or not rule:
        return False
    whole = integer(minimum=1).accepts
    if not all(isinstance(pair, Sequence) and len(pair) == 2 and all(map(whole, pair)) for pair in rule):
        return False
    epochs = [epoch for epoch, _ in rule]
    return epochs == sorted(set(epochs))


_RULE = one_of("constant", "grow") | Validator(
    _is_schedule, "pairs of epoch and batch with rising epochs from 1, such as [(1, 64), (10, 128)]"
)


def _divisors(number: int) -> list[int]:
    # Divisors come in pairs around the square root.
    low = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*low, *(number // divisor for divisor in low)})


def _largest_divisor(number: int, most: int) -> int:
    return max(divisor for divisor in _divisors(number) if divisor <= most)


def _shown(batch: int) -> str:
    numbers = [str(number) for number in _divisors(batch)]
    return ", ".join(numbers if len(numbers) <= 8 else [*numbers[:6], "...", numbers[-1]])

"""How many samples make an optimizer step, how devices share them, and the learning rate that goes with the batch.

The batch B = micro-batch x processes x accumulation, apart from how many devices there are. What is called its ratio q
is B over the batch of the user's loader. The learning rate depends on q, never on devices: q times for SGD (Goyal et
al., arXiv 1706.02677), sqrt(q) times for adaptive methods (Malladi et al., arXiv 2205.10287), or by AdaScale as many
times as one step is worth of the loader's batch, from 1 to q (arXiv 2007.05105). The schedule and the checkpoint know
the unscaled rate only, so that nothing can compound over restarts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt, sqrt
from typing import TYPE_CHECKING, Any, Literal, get_args

from trainwright.errors import TrialError
from trainwright.validators import Validator, check, integer, one_of, optional

if TYPE_CHECKING:
    from trainwright.train.gradient_noise import GradientNoise

__all__ = ["BatchRule", "BatchStep", "Batching", "LearningRateRescaling", "RateRule", "rank_share"]


BatchRule = Literal["constant", "grow", "goodput"] | Sequence[tuple[int, int]]


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
    per device would have it (RASDA, arXiv 2412.02729). "goodput": what `GoodputBatch` chooses, at first the loader's.
    Pairs (epoch, batch): from those epochs on, on any number of devices. `micro_batch` bounds what a process takes at a
    time; by default what it takes at the start of a new trial.
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

    def at(self, epoch: int, batch: int | None = None) -> BatchStep:
        """Return the step of an epoch; with `batch` one of so many samples, whatever the rule says."""
        batch = batch or self._batch(epoch)
        # The largest share of a rank, in micro-batches of one size if the batch divides evenly.
        share = -(-batch // self.processes)
        # By default as many as a device took when the trial was new.
        most = self.micro_batch or max(1, -(-self.reference // self.start_devices))
        # If the batch divides evenly, micro-batches are of one size.
        if batch % self.processes:
            times = -(-share // most)
        else:
            times = share // max(divisor for divisor in _divisors(share) if divisor <= most)
        return BatchStep(batch=batch, micro_batch=-(-share // times), accumulate=times)

    @property
    def _epochs(self) -> list[int]:
        """The epochs from which on the batch is another."""
        return [1] if isinstance(self.rule, str) else [1, *(epoch for epoch, _ in self.rule)]

    def _batch(self, epoch: int) -> int:
        if self.rule == "grow":
            batch, rest = divmod(self.reference * self.devices, self.start_devices)
            if rest:
                raise TrialError(
                    f"prepare: batch='grow': {self.reference} samples on {self.start_devices} devices are no whole "
                    f"number on {self.devices}; give a batch that {self.start_devices} divides"
                )
            return batch
        if isinstance(self.rule, str):
            return self.reference
        # The last pair that has begun counts; before the first it is the batch of the loader.
        return next((batch for first, batch in reversed(self.rule) if first <= epoch), self.reference)


def rank_share(count: int, rank: int, world: int) -> range:
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


_RULE = one_of("constant", "grow", "goodput") | Validator(
    _is_schedule, "pairs of epoch and batch with rising epochs from 1, such as [(1, 64), (10, 128)]"
)


def _divisors(number: int) -> list[int]:
    # Divisors come in pairs around the square root.
    low = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*low, *(number // divisor for divisor in low)})


def _shown(batch: int) -> str:
    numbers = [str(number) for number in _divisors(batch)]
    return ", ".join(numbers if len(numbers) <= 8 else [*numbers[:6], "...", numbers[-1]])


RateRule = Literal["auto", "linear", "sqrt", "adascale", "none"]

_LINEAR = frozenset({"SGD", "ASGD", "LARS"})
_SQRT = frozenset(
    {"LAMB", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam", "Adagrad", "RMSprop", "Adafactor"}
)


@dataclass(kw_only=True, slots=True)
class LearningRateRescaling:
    """Rescales the learning rate of each group of `optimizer` by one factor while it steps.

    When the factor grows it is approached in a straight line over `warmup_steps` optimizer steps, from what it was, and
    never exceeded; when it falls it falls at once. `rule` "auto" goes by the optimizer's class.
    """

    optimizer: Any
    rule: RateRule = "auto"
    warmup_steps: int | None = None
    """None: as many as an epoch has."""
    target: float = 1.0
    start: float = 1.0
    step: int = 0
    """The steps done since `start`."""
    length: int = 0
    noise: "GradientNoise | None" = None
    """Says what a step of AdaScale is worth."""
    ratio: float = 1.0
    _plain: list[Any] = field(default_factory=list)

    def follow(self, noise: "GradientNoise") -> None:
        """Go by a noise scale where one has to do with it: by AdaScale, too, where "auto" would be linear."""
        self.noise = noise
        if self.rule == "auto" and _rule_of(self.optimizer) == "linear":
            self.rule = "adascale"

    def __post_init__(self) -> None:
        check(self.rule, one_of(*get_args(RateRule)), "prepare: learning_rate", TrialError)
        check(self.warmup_steps, optional(integer(minimum=0)), "prepare: warmup_steps", TrialError)

    @property
    def scale(self) -> float:
        """The factor of the next step."""
        if self.rule == "adascale" and self.noise is not None:
            return self.noise.gain(self.ratio)
        if self.step >= self.length:
            return self.target
        # Rounding may bring the line above its end.
        return min(self.target, self.start + (self.target - self.start) * self.step / self.length)

    def rescale_lr(self, ratio: float, epoch_steps: int) -> None:
        """Go to the factor of a batch ratio."""
        self.ratio = ratio
        target = self._factor(ratio)
        if target != self.target:
            # Never above the new target: a smaller batch takes its smaller rate at once.
            self.start, self.target, self.step = min(self.scale, target), target, 0
            self.length = epoch_steps if self.warmup_steps is None else self.warmup_steps

    def scale_rates(self) -> None:
        """Scale the rates: the optimizer is about to step."""
        scale = self.scale
        if scale != 1.0:
            self._plain = [group["lr"] for group in self.optimizer.param_groups]
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * scale

    def restore_rates(self) -> None:
        """Put the rates back as the schedule knows them, and count the step."""
        # Nothing was kept where the factor was 1, and nothing is put back.
        for group, rate in zip(self.optimizer.param_groups, self._plain, strict=bool(self._plain)):
            group["lr"] = rate
        self._plain = []
        self.step += 1

    def state_dict(self) -> dict[str, Any]:
        """Return where on its way the factor is."""
        return {"target": self.target, "start": self.start, "step": self.step, "length": self.length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on on that way."""
        self.target, self.start, self.step, self.length = (state[key] for key in ("target", "start", "step", "length"))

    def _factor(self, ratio: float) -> float:
        if ratio == 1.0 or self.rule in {"none", "adascale"}:
            return 1.0
        rule = self.rule if self.rule != "auto" else _rule_of(self.optimizer)
        return ratio if rule == "linear" else sqrt(ratio)


def _rule_of(optimizer: Any) -> str:
    # Subclasses follow the rule of the class that they derive from.
    names = {kind.__name__ for kind in type(optimizer).__mro__}
    if names & _LINEAR:
        return "linear"
    if names & _SQRT:
        return "sqrt"
    raise TrialError(
        f"prepare: learning_rate: 'auto' knows no rule for {type(optimizer).__name__} when the batch changes; give "
        "'linear', 'sqrt', 'adascale' or 'none'"
    )

"""Rescale the learning rate for a batch that is not the one that it was chosen for.

It depends on the ratio q of the batches, never on devices: q times for SGD (Goyal et al., arXiv 1706.02677), sqrt(q)
times for adaptive methods (Malladi et al., arXiv 2205.10287). The schedule and the checkpoint know the unscaled rate
only, so that nothing can compound over restarts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Literal, get_args

from trainwright.errors import TrialError
from trainwright.validators import check, integer, one_of, optional

__all__ = ["RateRule", "Rescaling"]

RateRule = Literal["auto", "linear", "sqrt", "none"]

_LINEAR = frozenset({"SGD", "ASGD"})
_SQRT = frozenset({"Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam", "Adagrad", "RMSprop", "Adafactor"})


@dataclass(kw_only=True, slots=True)
class Rescaling:
    """The factor of all learning rates of `optimizer`, applied while it steps.

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
    _plain: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        check(self.rule, one_of(*get_args(RateRule)), "prepare: learning_rate", TrialError)
        check(self.warmup_steps, optional(integer(minimum=0)), "prepare: warmup_steps", TrialError)

    @property
    def scale(self) -> float:
        """The factor of the next step."""
        if self.step >= self.length:
            return self.target
        # Rounding may bring the line above its end.
        return min(self.target, self.start + (self.target - self.start) * self.step / self.length)

    def rescale(self, ratio: float, epoch_steps: int) -> None:
        """Go to the factor of a batch ratio."""
        target = self._factor(ratio)
        if target != self.target:
            # Never above the new target: a smaller batch takes its smaller rate at once.
            self.start, self.target, self.step = min(self.scale, target), target, 0
            self.length = epoch_steps if self.warmup_steps is None else self.warmup_steps

    def before(self) -> None:
        """Scale the rates: the optimizer is about to step."""
        scale = self.scale
        if scale != 1.0:
            self._plain = [group["lr"] for group in self.optimizer.param_groups]
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * scale

    def after(self) -> None:
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
        if ratio == 1.0 or self.rule == "none":
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
        "'linear', 'sqrt' or 'none'"
    )

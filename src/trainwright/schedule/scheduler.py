"""A scheduler is a promotion rule times an allocation policy; RASDA is one (Aach et al., arXiv 2412.02729)."""

from dataclasses import dataclass, field
from fractions import Fraction

from trainwright.errors import ScheduleError
from trainwright.schedule.policies.allocation_policy import AllocationPolicy
from trainwright.schedule.policies.doubling import Doubling, DoublingAsPublished
from trainwright.schedule.policies.static import Fixed
from trainwright.schedule.rules.epochs import FixedEpochs
from trainwright.schedule.rules.halving import ASHA
from trainwright.schedule.rules.promotion_rule import PromotionRule

__all__ = ["RASDA", "Scheduler"]


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Who goes on (`rule`) and with how much (`policy`): independent choices."""

    rule: PromotionRule = field(default_factory=FixedEpochs)
    policy: AllocationPolicy = field(default_factory=Fixed)

    def __post_init__(self) -> None:
        if isinstance(self.rule, type) or not isinstance(self.rule, PromotionRule):
            raise ScheduleError(f"Scheduler.rule: got {self.rule!r}; allowed: a rule such as ASHA(max_epochs=27)")
        if isinstance(self.policy, type) or not isinstance(self.policy, AllocationPolicy):
            raise ScheduleError(f"Scheduler.policy: got {self.policy!r}; allowed: a policy such as Fixed(2)")

    @classmethod
    def of(cls, choice: "Scheduler | PromotionRule | AllocationPolicy | None") -> "Scheduler":
        """Return `given` as a scheduler: a rule alone runs on one slot a trial, a policy alone stops nobody."""
        if choice is None:
            return cls()
        if isinstance(choice, Scheduler):
            return choice
        if isinstance(choice, PromotionRule) and not isinstance(choice, type):
            return cls(rule=choice)
        if isinstance(choice, AllocationPolicy) and not isinstance(choice, type):
            return cls(policy=choice)
        raise ScheduleError(
            f"scheduler: got {choice!r}; allowed: a rule such as ASHA(max_epochs=27), a policy such as Fixed(2), "
            "or Scheduler(rule, policy)"
        )


def RASDA(  # noqa: N802 -- it stands where the classes of rules stand
    *,
    max_epochs: int,
    start: int = 1,
    min_epochs: int = 1,
    eta: float | Fraction = 2,
    factor: int = 2,
    cap: int | None = None,
    as_published: bool = False,
) -> Scheduler:
    """Return ASHA by quantiles times `Doubling`: who passes a rung goes on with `factor` times the devices.

    `as_published=True` keeps the faults of the published allocation: no cap, growth at a loss, and a wait for devices
    that may never end (see `DoublingAsPublished`).
    """
    policy = Doubling(start=start, factor=factor, cap=cap)
    if as_published:
        policy = DoublingAsPublished(start=start, factor=factor)
    return Scheduler(ASHA(max_epochs=max_epochs, min_epochs=min_epochs, eta=eta, cutoff="quantile"), policy)

"""RASDA: successive doubling of devices on ASHA (Aach et al., arXiv 2412.02729)."""

from fractions import Fraction

from trainwright.schedule.policies.doubling import Doubling, DoublingAsPublished
from trainwright.schedule.rules.asha import ASHA
from trainwright.schedule.scheduler import Scheduler

__all__ = ["RASDA"]


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

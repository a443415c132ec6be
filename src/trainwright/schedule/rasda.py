"""RASDA: successive doubling of devices on ASHA (Aach et al., arXiv 2412.02729)."""

from fractions import Fraction

from trainwright.schedule._policy import AllocationPolicy
from trainwright.schedule.asha import ASHA
from trainwright.schedule.doubling import Doubling
from trainwright.schedule.doubling_as_published import DoublingAsPublished
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
    """Return ASHA by quantiles times doubling: who passes a rung goes on with `factor` times the devices.

    `as_published=True` keeps the faults of the published allocation: no cap, and a wait for devices that may never end
    (see `DoublingAsPublished`).
    """
    policy: AllocationPolicy = (
        DoublingAsPublished(start=start, factor=factor)
        if as_published
        else Doubling(start=start, factor=factor, cap=cap)
    )
    return Scheduler(ASHA(max_epochs=max_epochs, min_epochs=min_epochs, eta=eta, cutoff="quantile"), policy)

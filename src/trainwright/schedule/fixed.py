"""Fixed: one size for all trials, first come, first served."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.errors import ScheduleError
from trainwright.schedule._policy import Desk, Grant

__all__ = ["Fixed"]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Give every trial `devices` slots of the engine. O(grants) per event."""

    devices: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.devices, bool) or not isinstance(self.devices, int) or self.devices < 1:
            raise ScheduleError(f"Fixed.devices: got {self.devices!r}; allowed: a whole number >= 1")

    def check(self, slots: int) -> None:
        """Refuse an engine that is too small for one trial."""
        if self.devices > slots:
            raise ScheduleError(
                f"Fixed.devices: got {self.devices}, the engine has {slots} slots; allowed: 1 to {slots}, "
                "or a larger engine"
            )

    def plan(self, desk: Desk) -> Sequence[Grant]:
        """Fill the free slots, lowest first, while work waits."""
        free = list(desk.free)
        grants = []
        while len(free) >= self.devices and (work := desk.next_work()) is not None:
            grants.append(Grant(work, tuple(free[: self.devices])))
            del free[: self.devices]
        return grants

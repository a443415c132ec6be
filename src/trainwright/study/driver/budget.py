"""Budget: when a run of a study ends."""

from dataclasses import dataclass

from trainwright.errors import InputError
from trainwright.search import ExpectedGain

__all__ = ["Budget"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """When a run ends; None is no limit.

    `trials` with a result and `device_seconds` count over the whole life of the study, `wall_seconds` over this run;
    `stop_when` ends the search for new trials. `max_failures` None: 100, or as many as run at once if that is more.
    What runs at the end, or when a signal comes, has `grace_seconds` to end its epoch.
    """

    trials: int | None = None
    wall_seconds: float | None = None
    device_seconds: float | None = None
    max_failures: int | None = None
    stop_when: ExpectedGain | None = None
    grace_seconds: float = 25.0

    def __post_init__(self) -> None:
        for name in ("trials", "wall_seconds", "device_seconds", "max_failures"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise InputError(f"run: {name} must be a number > 0, got {value!r}")
        if self.trials is not None and self.trials % 1 != 0:
            raise InputError(f"run: trials must be a whole number, got {self.trials!r}")
        grace = self.grace_seconds
        if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace < float("inf"):
            raise InputError(f"run: grace_seconds must be a number >= 0, got {grace!r}")
        if self.stop_when is not None and not isinstance(self.stop_when, ExpectedGain):
            raise InputError(f"run: stop_when must be tw.ExpectedGain(...), got {self.stop_when!r}")

    @property
    def endless(self) -> bool:
        """Whether nothing is sure to end the run, short of the space's last configuration."""
        return self.trials is None and self.wall_seconds is None and self.device_seconds is None

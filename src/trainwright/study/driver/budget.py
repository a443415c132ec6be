"""When a run of a study ends; settings of a run that is one worker of a team, and its result."""

from dataclasses import dataclass
from typing import Annotated

from trainwright.search import ExpectedGain
from trainwright.settings import Settings
from trainwright.validators import instance_of, integer, number, optional

__all__ = ["Budget", "TeamSettings", "WorkerResult"]


_LIMIT = optional(number(above=0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget(Settings, label="run"):
    """When a run ends; None is no limit.

    `trials` with a result and `device_seconds` count over the whole life of the study, `wall_seconds` over this run;
    `stop_when` ends the search for new trials. `max_failures` None: 100, or as many as run at once if that is more.
    What runs at the end, or when a signal comes, has `grace_seconds` to end its epoch.
    """

    trials: Annotated[int | None, optional(integer(minimum=1)), "trials with a result"] = None
    wall_seconds: Annotated[float | None, _LIMIT, "seconds of this run"] = None
    device_seconds: Annotated[float | None, _LIMIT, "seconds times devices, over the whole study"] = None
    max_failures: Annotated[int | None, optional(integer(minimum=1)), "failures that end the run"] = None
    stop_when: Annotated[
        ExpectedGain | None, optional(instance_of(ExpectedGain, words="tw.ExpectedGain(...)")), "end of the search"
    ] = None
    grace_seconds: Annotated[float, number(minimum=0), "seconds for the epoch in work at the end"] = 25.0

    @property
    def endless(self) -> bool:
        """Whether nothing is sure to end the run, short of the space's last configuration."""
        return self.trials is None and self.wall_seconds is None and self.device_seconds is None


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamSettings:
    """A worker has a slot of its own; it waits for what others run, to take it over if they die.

    A full ledger ends it after `give_up_seconds`.
    """

    slot: int = 0
    wait: bool = True
    give_up_seconds: float = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerResult:
    """How many results are this member's, and whether its wall time was over before the study had all its trials."""

    results: int
    out_of_time: bool

"""The budget of a run: trials, wall time, deadline and device hours that end it; settings and result of one worker."""

import math
import re
import time as clock
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Annotated

from trainwright.errors import InputError
from trainwright.settings import Settings
from trainwright.validators import instance_of, integer, number, optional

__all__ = ["Budget", "TeamSettings", "WorkerResult", "as_datetime"]


_LIMIT = optional(number(above=0))
_WHEN = optional(instance_of(str, datetime, time, words="a time such as '18:00', or '2026-11-28T06:00'"))
_HOUR = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget(Settings, label="run"):
    """When a run ends; None is no limit.

    `trials` with a result and `device_seconds` count over the whole life of the study, `wall_seconds` over this run;
    `max_failures` None: 100, or as many as run at once or have a result if that is more.
    What runs at the end, or when a signal comes, has `grace_seconds` to end its epoch. `deadline` ends this run, too,
    but other runs do not go on: the best trial that is complete by then is the aim (see `FinalPhase`). It is an hour of
    today, a time in ISO 8601 or a datetime; without a time zone that of this host.
    """

    trials: Annotated[int | None, optional(integer(minimum=1)), "trials with a result"] = None
    wall_seconds: Annotated[float | None, _LIMIT, "seconds of this run"] = None
    device_seconds: Annotated[float | None, _LIMIT, "seconds times devices, over the whole study"] = None
    deadline: Annotated[str | datetime | time | None, _WHEN, "when the best complete trial counts, such as 18:00"] = (
        None
    )
    max_failures: Annotated[int | None, optional(integer(minimum=1)), "failures that end the run"] = None
    grace_seconds: Annotated[float, number(minimum=0), "seconds for the epoch in work at the end"] = 25.0

    def check_together(self) -> None:
        """Refuse a deadline that is over; an hour is one of today from now on."""
        if self.deadline is None:
            return
        when = as_datetime(self.deadline)
        late = clock.time() - when.timestamp()
        if late >= 0:
            raise InputError(
                f"run: deadline: got {self.deadline!s}, which was {late:.0f} s ago; allowed: a later time, with its "
                f"date if it is not today, such as {datetime.now().astimezone():%Y}-12-31T18:00"
            )
        object.__setattr__(self, "deadline", when)

    @property
    def endless(self) -> bool:
        """Whether nothing is sure to end the run, short of the space's last configuration."""
        return all(limit is None for limit in (self.trials, self.wall_seconds, self.device_seconds, self.deadline))

    @property
    def clock_seconds(self) -> float:
        """The seconds from now until time ends the run, inf if it does not."""
        left = math.inf if self.deadline is None else as_datetime(self.deadline).timestamp() - clock.time()
        return min(left, math.inf if self.wall_seconds is None else self.wall_seconds)


def as_datetime(deadline: str | datetime | time) -> datetime:
    """Return a deadline with its date and time zone; raises `InputError` for a text that is no time."""
    if isinstance(deadline, str):
        # An hour alone may have one digit, which ISO 8601 does not know.
        text = deadline.strip().zfill(5) if _HOUR.fullmatch(deadline.strip()) else deadline.strip()
        try:
            deadline = time.fromisoformat(text) if _HOUR.fullmatch(text) else datetime.fromisoformat(text)
        except ValueError:
            raise InputError(f"run: deadline: got {deadline!r}; allowed: {_WHEN.allowed}") from None
    if isinstance(deadline, time):
        deadline = datetime.combine(date.today(), deadline)  # noqa: DTZ011 -- the host's own day is meant
    return deadline if deadline.tzinfo is not None else deadline.astimezone()


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

"""Settings of a driver that is one worker of a team, and the result of its work."""

from dataclasses import dataclass

__all__ = ["TeamSettings", "WorkerResult"]


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

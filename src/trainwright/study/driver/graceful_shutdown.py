"""Graceful shutdown: decides when a driver leaves (signal, leave file, wall time), and the grace of running trials.

A launcher's signal (SIGTERM, SIGINT, SIGUSR1) or the leave file gives them the grace; the end of the wall time, or of
the allocation if the batch system tells it, is known before, so they have the grace until then. A further signal ends
the driver at once. Trials that save within their epochs are told to do so at their next step, and end there.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trainwright.checkpoint.policy.signals import end_of_allocation
from trainwright.ledger import Record, TrialState
from trainwright.schedule.allocator.estimates import seconds_left
from trainwright.signals import StopSignals
from trainwright.study.driver.budget import Budget
from trainwright.study.driver.trial_run import TrialRun
from trainwright.study.projections import DeviceSecondsProjection
from trainwright.study.study_log import StudyLog

__all__ = ["LEAVE_FILE", "GracefulShutdown", "LeaveFile", "TimeLeft"]

_OUT_OF_TIME = "wall seconds"
"""Why a driver leaves whose time is over."""
_DEADLINE = "deadline"
_END_OF_ALLOCATION = "end of the allocation"
LEAVE_FILE = "leave"
"""In the study's directory: when it is written or touched, drivers that run leave as after a signal.

`leave-JOB` is for the drivers of one job of the batch system.
"""
_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")

_LATE_SECONDS = 1.0
"""For which a driver may look late at its clock before it is interrupted."""

_EARLY_SHARE = 0.1
"""A run leaves before its end by the grace, but by no more than this share of its time."""
_SPARE_SHARE = 0.1
"""By how much longer an epoch may take than the trial's last ones."""
_KNOWN = 3
"""The last epochs of a trial from which the next one is estimated."""


class TimeLeft:
    """The wall time of one run, and how long epochs take: a projection of reports.

    A trial's next epoch is expected to take the median of its last three and a tenth. Of a trial without a report only
    a bound is known: the shortest epoch of the study. One that saves within epochs needs no whole one.
    """

    kinds = frozenset({"reported", "checkpointed"})
    """The records that it is told of."""

    def __init__(self, wall_seconds: float | None, grace_seconds: float, trials: Mapping[int, TrialState]) -> None:
        self.end = math.inf if wall_seconds is None else time.monotonic() + wall_seconds
        """When the time is over, by the monotonic clock."""
        # A short run must not spend most of its time on leaving.
        early = 0.0 if wall_seconds is None else min(grace_seconds, _EARLY_SHARE * wall_seconds)
        self._leave_at = self.end - early
        self._last: dict[int, tuple[int, float]] = {}  # of each trial: lease and seconds of its last report
        self._epochs: dict[int, tuple[float, ...]] = {}  # seconds of its last epochs
        self._shortest = 0.0
        self._trials = trials
        # One function trains all trials: what the last one could the next one can.
        self._all_within = any(trial.saves_within for trial in trials.values())
        for number, trial in trials.items() if wall_seconds is not None else ():
            for _, report in sorted(trial.reports.items()):
                self._add_report(number, report.lease, report.wall_seconds)

    @property
    def over(self) -> bool:
        """Whether to leave now: what runs has the grace for its epoch."""
        return time.monotonic() >= self._leave_at

    @property
    def working(self) -> float:
        """The seconds until it is time to leave."""
        return max(0.0, self._leave_at - time.monotonic())

    def fits(self, number: int | None = None) -> bool:
        """Whether an epoch of a trial (None: of any) that begins now can end in time, as far as that is known."""
        if math.isinf(self.end):
            return True
        trial = None if number is None else self._trials.get(number)
        if self._all_within if trial is None else trial.saves_within:
            return time.monotonic() < self._leave_at
        known = self._epochs.get(number) if number is not None else None
        seconds = (1 + _SPARE_SHARE) * statistics.median(known) if known else self._shortest
        return time.monotonic() + seconds <= self.end

    def fold(self, record: Record, trial: TrialState | None) -> None:
        """Measure the epoch that has ended with a report."""
        if trial is not None and record.kind == "checkpointed":
            self._all_within = trial.saves_within
        elif trial is not None:
            self._add_report(trial.number, record.lease or 1, record.body["wall_seconds"])

    def _add_report(self, number: int, lease: int, seconds: float) -> None:
        """Take a report made so many seconds after the start of its lease; 0 is one told after the death of a run."""
        before_lease, before = self._last.get(number, (0, 0.0))
        self._last[number] = lease, seconds
        # Seconds count from the start of a lease: the first report of another begins anew.
        took = seconds - before if lease == before_lease else seconds
        if took > 0.0:
            self._epochs[number] = (*self._epochs.get(number, ()), took)[-_KNOWN:]
            self._shortest = min(self._shortest or math.inf, took)


class LeaveFile:
    """The files by which an epilog, or anybody, asks drivers to leave; those of before are none of theirs."""

    def __init__(self, directory: Path | None, environment: Mapping[str, str] = os.environ) -> None:
        jobs = [environment[name] for name in _JOB if name in environment][:1]
        names = [LEAVE_FILE, *(f"{LEAVE_FILE}-{job}" for job in jobs)]
        self._paths = [] if directory is None else [directory / name for name in names]
        self._before = self._written()

    @property
    def touched(self) -> bool:
        """Whether one was written since this was made."""
        return self._written() != self._before

    def _written(self) -> list[int | None]:
        # Compared with what it was at the start: the clocks of a file server and of this host may differ.
        found: list[int | None] = []
        for path in self._paths:
            try:
                found.append(path.stat().st_mtime_ns)
            except OSError:
                found.append(None)
        return found


class GracefulShutdown:
    """Watches signals and budgets of time for a driver whose trials are `running`; entered while it works."""

    def __init__(
        self,
        log: StudyLog,
        budget: Budget,
        running: Mapping[int, TrialRun],
        say: Callable[[str], None],
    ) -> None:
        self.signals = StopSignals(budget.grace_seconds)
        self._wall_seconds, self._out_of_time = _limit_of(budget, os.environ)
        self.time = TimeLeft(self._wall_seconds, budget.grace_seconds, log.state.trials)
        self._file = LeaveFile(log.directory)
        self.begun = ""
        """Why the driver leaves, once it does."""
        self._log = log
        self._budget = budget
        self._running = running
        self._say = say
        self._until = float("inf")
        self._spent = None if budget.device_seconds is None else DeviceSecondsProjection(log.state)
        if self._spent is not None:
            log.add_projection(self._spent)
        if self._wall_seconds is not None:
            log.add_projection(self.time)

    @property
    def why(self) -> str:
        """Why the driver leaves, or is about to; "" if it works."""
        return self.begun or self.signals.received or (self._out_of_time if self.time.over else "")

    @property
    def signalled(self) -> bool:
        """Whether a signal came."""
        return self.signals.received is not None

    @property
    def out_of_time(self) -> bool:
        """Whether the driver left because its wall time was over."""
        return self.begun in {_OUT_OF_TIME, _DEADLINE, _END_OF_ALLOCATION, LEAVE_FILE}

    @property
    def seconds(self) -> float:
        """For how long running trials may go on, once the driver leaves."""
        return max(0.0, min(self._until, self.signals.until) - time.monotonic())

    def limit(self) -> None:
        """See to it that the driver is interrupted at the end: an engine may run a trial in its very thread."""
        if self._wall_seconds is not None:
            self.signals.set_time_limit(self.time.end - time.monotonic() + _LATE_SECONDS)

    def begin(self, why: str) -> None:
        """Leave from now on."""
        self.signals.lift()
        self.begun = why
        # The end of the wall time is fixed; after a signal the grace counts from now.
        ends = self.time.end if why == self._out_of_time else math.inf
        self._until = ends if ends < math.inf else time.monotonic() + self._budget.grace_seconds
        if self._running:
            trials = "1 trial has" if len(self._running) == 1 else f"{len(self._running)} trials have"
            self._say(f"leaving ({why}): {trials} {self.seconds:.3g} s for the epoch in work")

    def warn_of_lost_work(self) -> None:
        """Say which of the trials that still run, and are ended now, begin anew in the next run."""
        for number, run in self._running.items():
            trial = self._log.state.trials[number]
            # Its next run would begin where this one began, and end there again.
            if not trial.reports and not trial.leases[run.lease].step:
                self._say(
                    f"trial {number} has not ended its first epoch in {time.monotonic() - run.since:.3g} s and saves "
                    "nothing within epochs, so it begins anew; train by run.step with trial.prepare(..., loss=f), or "
                    "give a longer allocation"
                )

    def cut_short(self) -> bool:
        """Whether a KeyboardInterrupt was the end of the time, a further signal or the end of the grace."""
        if self.signals.urgent and not self.signalled:
            self.begun = self._out_of_time
        return self.signals.urgent

    def due(self) -> str:
        """Return why to leave now; "" while there is time for work."""
        if self.signalled:
            return self.why
        # With nothing running, leave as soon as no further epoch could end in time.
        if self.time.over or not (self._running or self.time.fits()):
            used = f"the budget of {self._budget.wall_seconds or 0:g} wall seconds is used"
            said = {_END_OF_ALLOCATION: "the allocation ends", _DEADLINE: "the deadline is here"}
            self._say(said.get(self._out_of_time, used))
            return self._out_of_time
        if self._file.touched:
            self._say(f"the file {LEAVE_FILE} says that the allocation ends")
            return LEAVE_FILE
        if self._budget.device_seconds is not None and self._device_seconds() >= self._budget.device_seconds:
            self._say(f"the budget of {self._budget.device_seconds:g} device seconds is used")
            return "device seconds"
        return ""

    def time_left(self, devices: int) -> float:
        """Return the seconds until the budget of time is used, if `devices` are busy from now on; inf without one."""
        wall = None if self._wall_seconds is None else self.time.working
        return seconds_left(wall, self._budget.device_seconds, at=0.0, spent=self._device_seconds(), devices=devices)

    def _device_seconds(self) -> float:
        """Return what the study has used of its budget of device seconds."""
        if self._spent is None:
            return 0.0
        now = time.monotonic()
        return self._spent.device_seconds + sum(self._unrecorded_seconds(number, now) for number in self._running)

    def _unrecorded_seconds(self, number: int, now: float) -> float:
        """Return the device seconds of a running trial beyond those that its reports have recorded."""
        lease = self._log.state.trials[number].leases[self._running[number].lease]
        return max(0.0, now - self._running[number].since - lease.seconds) * max(1, len(lease.devices))


def _limit_of(budget: Budget, environment: Mapping[str, str]) -> tuple[float | None, str]:
    """Return the seconds that a run has, None if nobody says so, and why it then ends."""
    end = end_of_allocation(environment)
    left = math.inf if end is None else max(0.0, end - time.time())
    if (own := budget.clock_seconds) < math.inf and own <= left:
        return own, _OUT_OF_TIME if own == budget.wall_seconds else _DEADLINE
    return (None if end is None else left), _END_OF_ALLOCATION

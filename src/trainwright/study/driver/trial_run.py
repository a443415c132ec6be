"""One run of a trial as the driver sees it, and the record of its end: completed, stopped, failed or preempted."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from trainwright.engine import Died, Outcome, Raised, Returned, StoppedEarly
from trainwright.engine.protocol import Block
from trainwright.ledger import Objective, Record, TrialState, facts
from trainwright.ledger.objectives import Outcome as Judged
from trainwright.ledger.objectives import refusal
from trainwright.schedule import Continue, Pause, Stop
from trainwright.schedule.rules.promotion_rule import CONTINUE, Verdict

__all__ = ["NO_ROOM", "TrialRun", "end_record", "preemption_record"]

NO_ROOM = "no_room"
"""The failure of a run whose checkpoint found no room: no fault of the trial, so it is only paused."""


_DISTURBED = frozenset({"exception", "killed"})
"""Failures that a signal to all processes of a job causes, by what it does to processes that the trial has started."""


@dataclass(slots=True)
class TrialRun:
    """What the driver knows of a run, and what it has decided about it."""

    lease: int
    block: Block
    since: float  # when it was launched, by the monotonic clock
    verdict: Verdict = CONTINUE
    refusal: str | None = None  # why its last report fails it
    before: int | None = None  # how many devices it had, until its first report on these
    leaves: bool = False  # it was told to continue on other devices
    preempted: bool = False  # it ends with its epoch, and resumes later or elsewhere
    superseded: bool = False  # another holder has a higher lease, or has ended the trial


def end_record(
    trial: TrialState, run: TrialRun, outcome: Outcome, judged: tuple[Judged, ...], *, leaving: str = ""
) -> Record:
    """Return the record of the end of this run of `trial`; `leaving` says why its driver leaves, if it does.

    While it leaves, a death or an exception is a preemption: the trial fails again elsewhere if it is its own fault.
    """
    number, lease, seconds = trial.number, run.lease, outcome.seconds
    # Another holder goes on with it: this run's end says nothing of the trial.
    if isinstance(outcome, StoppedEarly) and run.superseded:
        return facts.finished(number, lease, reason="cancelled", values={}, wall_seconds=seconds)
    goes_on = isinstance(outcome, StoppedEarly) and isinstance(run.verdict, Continue) and run.refusal is None
    if goes_on and run.leaves and not leaving:
        return preemption_record(trial, lease, seconds, reason="resized")
    within = isinstance(outcome, StoppedEarly) and outcome.preempted
    if goes_on and (run.preempted or run.leaves or within):
        return preemption_record(trial, lease, max(seconds, time.monotonic() - run.since), why=leaving)
    if isinstance(outcome, Raised) and outcome.failure == NO_ROOM:
        return preemption_record(trial, lease, seconds, why="no room for its checkpoint")
    if run.refusal is not None:
        return facts.failed(number, lease, failure="bad_objective", message=run.refusal, wall_seconds=seconds)
    # A signal to the whole job reaches the trial's own processes as well: what they die of is not its fault.
    if leaving and (isinstance(outcome, Died) or (isinstance(outcome, Raised) and outcome.failure in _DISTURBED)):
        what = outcome.why if isinstance(outcome, Died) else outcome.message
        return preemption_record(trial, lease, seconds, why=f"{leaving}; {what}")
    if isinstance(outcome, Died):
        return facts.lost(number, lease, why=outcome.why, blame=outcome.blame)
    if isinstance(run.verdict, Pause):
        return facts.paused(
            number, lease, reason="rung", epoch=outcome.epoch, values=outcome.metrics, wall_seconds=seconds
        )
    if isinstance(run.verdict, Stop):
        values = trial.reports[trial.epoch].metrics
        return facts.finished(number, lease, reason="stopped", values=values, wall_seconds=seconds)
    if isinstance(outcome, Raised):
        return facts.failed(
            number,
            lease,
            failure=outcome.failure,
            message=outcome.message,
            traceback=outcome.traceback,
            raised=None if outcome.raised is None else asdict(outcome.raised),
            wall_seconds=seconds,
        )
    values, message = _final_values(outcome, judged)
    if message is None:
        message = refusal(judged, values, "in the result")
    if message is not None:
        return facts.failed(number, lease, failure="bad_objective", message=message, wall_seconds=seconds)
    return facts.finished(number, lease, reason="completed", values=values, wall_seconds=seconds)


def preemption_record(
    trial: TrialState, lease: int, seconds: float, reason: str = "preempted", why: str = ""
) -> Record:
    """Return the record of a run that was interrupted: whoever has room goes on from its last checkpoint."""
    return facts.paused(
        trial.number, lease, reason=reason, epoch=trial.saved_epoch, values={}, wall_seconds=seconds, why=why
    )


def _final_values(
    outcome: Returned | StoppedEarly, judged: tuple[Judged, ...]
) -> tuple[Mapping[str, float], str | None]:
    """Return the final metrics: the last reported, overridden by what the function returned.

    A trial that nobody stopped ends quietly when it reports beyond its full length: it is complete.
    """
    value = outcome.value if isinstance(outcome, Returned) else None
    if value is None:
        return outcome.metrics, None
    if not isinstance(value, Mapping):
        goals = [one.metric for one in judged if isinstance(one, Objective)]
        if len(goals) != 1:
            return {}, f"train returned {value!r}; return a dict of metrics, or report them"
        value = {goals[0]: value}
    return {**outcome.metrics, **value}, None

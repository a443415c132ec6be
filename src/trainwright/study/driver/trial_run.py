"""One run of a trial on an engine, from its launch to its end, as the driver sees it."""

from dataclasses import dataclass

from trainwright.engine.protocol import Block
from trainwright.schedule.rules.promotion_rule import CONTINUE, Verdict

__all__ = ["TrialRun"]


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

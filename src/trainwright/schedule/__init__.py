"""Who goes on, and with how much: promotion rules times allocation policies, pure decisions without clock or I/O."""

from trainwright.schedule._policy import AllocationPolicy, Block, Desk, Grant, Work
from trainwright.schedule._rule import (
    CONTINUE,
    WAIT,
    Continue,
    Ended,
    Event,
    Index,
    New,
    Pause,
    Promote,
    PromotionRule,
    Reason,
    Reported,
    Rule,
    Stop,
    TrialView,
    Verdict,
    View,
    Wait,
)
from trainwright.schedule.any_of import AnyOf
from trainwright.schedule.asha import ASHA
from trainwright.schedule.fixed import Fixed
from trainwright.schedule.fixed_epochs import FixedEpochs
from trainwright.schedule.median import Median
from trainwright.schedule.scheduler import Scheduler

__all__ = [
    "ASHA",
    "CONTINUE",
    "WAIT",
    "AllocationPolicy",
    "AnyOf",
    "Block",
    "Continue",
    "Desk",
    "Ended",
    "Event",
    "Fixed",
    "FixedEpochs",
    "Grant",
    "Index",
    "Median",
    "New",
    "Pause",
    "Promote",
    "PromotionRule",
    "Reason",
    "Reported",
    "Rule",
    "Scheduler",
    "Stop",
    "TrialView",
    "Verdict",
    "View",
    "Wait",
    "Work",
]

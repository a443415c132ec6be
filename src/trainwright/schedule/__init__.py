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
    Opened,
    Pause,
    Promote,
    Promoted,
    PromotionRule,
    Reason,
    Reported,
    Rule,
    Started,
    Stop,
    TrialView,
    Verdict,
    View,
    Wait,
)
from trainwright.schedule.any_of import AnyOf
from trainwright.schedule.asha import ASHA
from trainwright.schedule.extrapolate import Extrapolate
from trainwright.schedule.fixed import Fixed
from trainwright.schedule.fixed_epochs import FixedEpochs
from trainwright.schedule.hyperband import Hyperband
from trainwright.schedule.iepoch import IEpoch
from trainwright.schedule.median import Median
from trainwright.schedule.multi_objective_asha import MultiObjectiveASHA
from trainwright.schedule.pasha import PASHA
from trainwright.schedule.patience import Patience
from trainwright.schedule.plateau import Plateau
from trainwright.schedule.scheduler import Scheduler
from trainwright.schedule.successive_halving import SuccessiveHalving

__all__ = [
    "ASHA",
    "CONTINUE",
    "PASHA",
    "WAIT",
    "AllocationPolicy",
    "AnyOf",
    "Block",
    "Continue",
    "Desk",
    "Ended",
    "Event",
    "Extrapolate",
    "Fixed",
    "FixedEpochs",
    "Grant",
    "Hyperband",
    "IEpoch",
    "Index",
    "Median",
    "MultiObjectiveASHA",
    "New",
    "Opened",
    "Patience",
    "Pause",
    "Plateau",
    "Promote",
    "Promoted",
    "PromotionRule",
    "Reason",
    "Reported",
    "Rule",
    "Scheduler",
    "Started",
    "Stop",
    "SuccessiveHalving",
    "TrialView",
    "Verdict",
    "View",
    "Wait",
    "Work",
]

"""Who goes on, and with how much: promotion rules times allocation policies, pure decisions without clock or I/O."""

from trainwright.schedule._policy import (
    Action,
    AllocationPolicy,
    Block,
    Go,
    Hold,
    Look,
    Move,
    Planner,
    Rest,
    Start,
    Work,
)
from trainwright.schedule._rule import (
    CONTINUE,
    WAIT,
    Continue,
    Ended,
    Event,
    Index,
    Judged,
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
from trainwright.schedule.best_static import BestStatic
from trainwright.schedule.desk import Desk, Seat, Source
from trainwright.schedule.doubling import Doubling, DoublingAsPublished
from trainwright.schedule.estimates import Estimates
from trainwright.schedule.extrapolate import Extrapolate
from trainwright.schedule.fixed import Fixed
from trainwright.schedule.fixed_epochs import FixedEpochs
from trainwright.schedule.hyperband import Hyperband
from trainwright.schedule.iepoch import IEpoch
from trainwright.schedule.marginal_gain import MarginalGain
from trainwright.schedule.median import Median
from trainwright.schedule.multi_objective_asha import MultiObjectiveASHA
from trainwright.schedule.pasha import PASHA
from trainwright.schedule.patience import Patience
from trainwright.schedule.plateau import Plateau
from trainwright.schedule.rasda import RASDA
from trainwright.schedule.room import Nodes, Room, Tiles
from trainwright.schedule.scheduler import Scheduler
from trainwright.schedule.successive_halving import SuccessiveHalving

__all__ = [
    "ASHA",
    "CONTINUE",
    "PASHA",
    "RASDA",
    "WAIT",
    "Action",
    "AllocationPolicy",
    "AnyOf",
    "BestStatic",
    "Block",
    "Continue",
    "Desk",
    "Doubling",
    "DoublingAsPublished",
    "Ended",
    "Estimates",
    "Event",
    "Extrapolate",
    "Fixed",
    "FixedEpochs",
    "Go",
    "Hold",
    "Hyperband",
    "IEpoch",
    "Index",
    "Judged",
    "Look",
    "MarginalGain",
    "Median",
    "Move",
    "MultiObjectiveASHA",
    "New",
    "Nodes",
    "Opened",
    "Patience",
    "Pause",
    "Planner",
    "Plateau",
    "Promote",
    "Promoted",
    "PromotionRule",
    "Reason",
    "Reported",
    "Rest",
    "Room",
    "Rule",
    "Scheduler",
    "Seat",
    "Source",
    "Start",
    "Started",
    "Stop",
    "SuccessiveHalving",
    "Tiles",
    "TrialView",
    "Verdict",
    "View",
    "Wait",
    "Work",
]

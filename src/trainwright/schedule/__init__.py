"""Who goes on, and with how much: promotion rules times allocation policies, pure decisions without clock or I/O."""

from trainwright.schedule.allocator.device_allocator import DeviceAllocator, RunningTrial, TrialSource
from trainwright.schedule.allocator.estimates import Estimates
from trainwright.schedule.allocator.free_slots import BuddyAllocator, FixedBlocks, FreeSlots
from trainwright.schedule.policies.allocation_policy import (
    Action,
    AllocationPolicy,
    Block,
    Hold,
    PendingTrial,
    Planner,
    Preempt,
    Replan,
    Resize,
    Resume,
    Start,
)
from trainwright.schedule.policies.best_static import BestStatic
from trainwright.schedule.policies.doubling import Doubling, DoublingAsPublished
from trainwright.schedule.policies.fixed import Fixed
from trainwright.schedule.policies.marginal_gain import MarginalGain
from trainwright.schedule.rasda import RASDA
from trainwright.schedule.rules.any_of import AnyOf
from trainwright.schedule.rules.asha import ASHA
from trainwright.schedule.rules.extrapolate import Extrapolate
from trainwright.schedule.rules.fixed_epochs import FixedEpochs
from trainwright.schedule.rules.hyperband import Hyperband
from trainwright.schedule.rules.iepoch import IEpoch
from trainwright.schedule.rules.median import Median
from trainwright.schedule.rules.multi_objective_asha import MultiObjectiveASHA
from trainwright.schedule.rules.pasha import PASHA
from trainwright.schedule.rules.patience import Patience
from trainwright.schedule.rules.plateau import Plateau
from trainwright.schedule.rules.promotion_rule import (
    CONTINUE,
    WAIT,
    BaseRule,
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
    RuleView,
    Started,
    Stop,
    TrialView,
    Verdict,
    Wait,
)
from trainwright.schedule.rules.successive_halving import SuccessiveHalving
from trainwright.schedule.scheduler import Scheduler

__all__ = [
    "ASHA",
    "CONTINUE",
    "PASHA",
    "RASDA",
    "WAIT",
    "Action",
    "AllocationPolicy",
    "AnyOf",
    "BaseRule",
    "BestStatic",
    "Block",
    "BuddyAllocator",
    "Continue",
    "DeviceAllocator",
    "Doubling",
    "DoublingAsPublished",
    "Ended",
    "Estimates",
    "Event",
    "Extrapolate",
    "Fixed",
    "FixedBlocks",
    "FixedEpochs",
    "FreeSlots",
    "Hold",
    "Hyperband",
    "IEpoch",
    "Index",
    "Judged",
    "MarginalGain",
    "Median",
    "MultiObjectiveASHA",
    "New",
    "Opened",
    "Patience",
    "Pause",
    "PendingTrial",
    "Planner",
    "Plateau",
    "Preempt",
    "Promote",
    "Promoted",
    "PromotionRule",
    "Reason",
    "Replan",
    "Reported",
    "Resize",
    "Resume",
    "RuleView",
    "RunningTrial",
    "Scheduler",
    "Start",
    "Started",
    "Stop",
    "SuccessiveHalving",
    "TrialSource",
    "TrialView",
    "Verdict",
    "Wait",
]

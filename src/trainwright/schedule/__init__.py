"""Scheduling: promotion rules (which trials continue) and allocation policies (on how many devices), all pure."""

from trainwright.schedule.allocator.device_allocator import DeviceAllocator
from trainwright.schedule.allocator.free_slots import BuddyAllocator, FreeSlots
from trainwright.schedule.policies.allocation_policy import AllocationPolicy
from trainwright.schedule.policies.doubling import Doubling, DoublingAsPublished
from trainwright.schedule.policies.marginal_gain import MarginalGain
from trainwright.schedule.policies.static import BestStatic, Fixed
from trainwright.schedule.rules.any_of import AnyOf
from trainwright.schedule.rules.curves import Median, Patience, Plateau
from trainwright.schedule.rules.epochs import FixedEpochs, IEpoch
from trainwright.schedule.rules.halving import ASHA, Hyperband, SuccessiveHalving
from trainwright.schedule.rules.multi_objective_asha import MultiObjectiveASHA
from trainwright.schedule.rules.pasha import PASHA
from trainwright.schedule.rules.population import PopulationBasedTraining
from trainwright.schedule.rules.promotion_rule import (
    Continue,
    Event,
    Pause,
    Promote,
    Promoted,
    PromotionRule,
    Reason,
    Reported,
    RuleView,
    Stop,
    TrialView,
)
from trainwright.schedule.scheduler import RASDA, Scheduler

__all__ = [
    "ASHA",
    "PASHA",
    "RASDA",
    "AllocationPolicy",
    "AnyOf",
    "BestStatic",
    "BuddyAllocator",
    "Continue",
    "DeviceAllocator",
    "Doubling",
    "DoublingAsPublished",
    "Event",
    "Fixed",
    "FixedEpochs",
    "FreeSlots",
    "Hyperband",
    "IEpoch",
    "MarginalGain",
    "Median",
    "MultiObjectiveASHA",
    "Patience",
    "Pause",
    "Plateau",
    "PopulationBasedTraining",
    "Promote",
    "Promoted",
    "PromotionRule",
    "Reason",
    "Reported",
    "RuleView",
    "Scheduler",
    "Stop",
    "SuccessiveHalving",
    "TrialView",
]

"""The oracle: which parallel strategy, how fast, how much memory, and what limits it, before a job is submitted."""

from trainwright.plan.collective import Collective
from trainwright.plan.parallel_plan import Bottleneck, Breakdown, Degrees, ParallelPlan, Rejection

__all__ = ["Bottleneck", "Breakdown", "Collective", "Degrees", "ParallelPlan", "Rejection"]

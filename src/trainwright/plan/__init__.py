"""The oracle: which parallel strategy, how fast, how much memory, and what limits it, before a job is submitted."""

from trainwright.plan.assumptions import Assumptions
from trainwright.plan.collective import Collective
from trainwright.plan.oracle import Oracle, Ranking
from trainwright.plan.parallel_plan import Bottleneck, Breakdown, Degrees, ParallelPlan, Rejection

__all__ = [
    "Assumptions",
    "Bottleneck",
    "Breakdown",
    "Collective",
    "Degrees",
    "Oracle",
    "ParallelPlan",
    "Ranking",
    "Rejection",
]

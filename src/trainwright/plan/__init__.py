"""The oracle: which parallel strategy, how fast, how much memory, and what limits it, before a job is submitted."""

from trainwright.plan.assumptions import Assumptions
from trainwright.plan.collective import Collective
from trainwright.plan.oracle import NoPlan, Oracle
from trainwright.plan.parallel_plan import Bottleneck, Breakdown, Degrees, ParallelPlan, Rejection
from trainwright.plan.ranking import Ranking
from trainwright.plan.scaling_curve import ScalingCurve
from trainwright.plan.step_overheads import Input, Saving
from trainwright.plan.verdict import Verdict, judge, verdicts

__all__ = [
    "Assumptions",
    "Bottleneck",
    "Breakdown",
    "Collective",
    "Degrees",
    "Input",
    "NoPlan",
    "Oracle",
    "ParallelPlan",
    "Ranking",
    "Rejection",
    "Saving",
    "ScalingCurve",
    "Verdict",
    "judge",
    "verdicts",
]

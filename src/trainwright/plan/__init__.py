"""The oracle: which parallel strategy, how fast, how much memory, and what limits it, before a job is submitted."""

from trainwright.plan.assumptions import Assumptions
from trainwright.plan.calibration import MeasuredRun
from trainwright.plan.forecast import Forecast
from trainwright.plan.layout import Degrees, Layout
from trainwright.plan.oracle import NoPlan, Oracle
from trainwright.plan.scaling_curve import ScalingCurve
from trainwright.plan.step_overheads import Input, Saving
from trainwright.plan.verdict import Verdict, judge, verdicts

ParallelPlan = Layout
"""The name of a layout in scripts."""

__all__ = [
    "Assumptions",
    "Degrees",
    "Forecast",
    "Input",
    "Layout",
    "MeasuredRun",
    "NoPlan",
    "Oracle",
    "ParallelPlan",
    "Saving",
    "ScalingCurve",
    "Verdict",
    "judge",
    "verdicts",
]

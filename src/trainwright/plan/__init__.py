"""The oracle: which parallel strategy, how fast, how much memory, and what limits it, before a job is submitted."""

from trainwright.plan.fit.measured_run import MeasuredRun
from trainwright.plan.forecast import Forecast
from trainwright.plan.layout import Degrees, Layout
from trainwright.plan.oracle import Oracle
from trainwright.plan.plan_query import Input, Saving
from trainwright.plan.verdict import judge, verdicts

ParallelPlan = Layout
"""The name of a layout in scripts."""

__all__ = [
    "Degrees",
    "Forecast",
    "Input",
    "Layout",
    "MeasuredRun",
    "Oracle",
    "ParallelPlan",
    "Saving",
    "judge",
    "verdicts",
]

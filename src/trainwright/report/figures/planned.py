"""All figures of what was planned for a study: the search's forecast, memory plans, strategies of the oracle."""

from trainwright.report.figures.figure import Figure
from trainwright.report.figures.forecast import forecast_figure
from trainwright.report.figures.memory_plan import memory_plan_figure
from trainwright.report.figures.strategies import strategies_figures
from trainwright.report.overview import Overview
from trainwright.report.study_plans import Plans

__all__ = ["planned_figures"]


def planned_figures(overview: Overview, plans: Plans) -> list[Figure | None]:
    """Return the forecast beside what came of it, a figure for each memory plan, and the strategies; None for none."""
    return [
        forecast_figure(overview, plans.search),
        *(memory_plan_figure(plan, name) for name, plan in plans.memory),
        *(figure for name, told in plans.strategies for figure in strategies_figures(told, name)),
    ]

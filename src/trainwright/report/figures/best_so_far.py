"""Draws the best value so far (optimisation history), over the number of results and over the working time."""

import numpy as np
from numpy.typing import NDArray

from trainwright.ledger import Status
from trainwright.report.figures.figure import (
    Figure,
    Json,
    axis,
    draw_lines,
    draw_marks,
    layout,
    rounded,
    thinned,
    value_axis,
)
from trainwright.report.formatting import count, duration, escape, number, time_unit
from trainwright.report.overview import Overview

__all__ = ["best_so_far", "draw_results"]

_MOST_POINTS = 1500


def best_so_far(overview: Overview, objective: int = 0) -> tuple[Figure, Figure] | None:
    """Return the figures over results and over time, or None without results."""
    if not len(overview.results):
        return None
    goal = overview.objectives[objective]
    order = overview.results
    values, feasible = overview.values[order, objective], overview.within[order]
    # The best is a feasible result wherever there is one.
    losses = np.where(feasible | ~feasible.any(), overview.losses[order, objective], np.inf)
    # A record is a result below all before it.
    records = np.flatnonzero(losses < np.concatenate([[np.inf], np.minimum.accumulate(losses)[:-1]]))
    ended = np.array([end.at if (end := overview.trials[at].end) is not None else np.nan for at in order])
    seconds = overview.clock.seconds(ended)
    steps = np.arange(1, len(order) + 1)
    metric = escape(goal.metric, 40)
    y, remark = value_axis(metric, values, low_is_good=goal.direction == "min")
    last = int(records[-1])
    best = f"{number(values[last])} by trial {overview.trials[order[last]].number}"
    # Records are never thinned away: the line goes through them.
    thin = thinned(len(order), _MOST_POINTS, records.tolist())
    if len(thin) < len(order):
        remark = f"{remark} {len(thin):,} of {len(order):,} results are drawn.".strip()
    unit, per = time_unit(overview.clock.total)

    def figure(name: str, title: str, caption: str, x: NDArray[np.float64], x_axis: Json) -> Figure:
        return Figure(
            name=f"{name}-{objective}",
            title=title,
            caption=f"{caption} {remark}".strip(),
            data=[*draw_results(overview, order[thin], x[thin], values[thin]), _draw_line(values, x, records)],
            layout=layout(xaxis=x_axis, yaxis=y),
        )

    return (
        figure(
            "best-results",
            f"Best {metric} over results",
            f"The best of {count(len(order), 'result')}, {best}, came as result {last + 1:,}, "
            f"after {count(len(records) - 1, 'improvement')}.",
            steps.astype(np.float64),
            axis("results", rangemode="tozero", dtick=1),
        ),
        figure(
            "best-time",
            f"Best {metric} over time",
            f"The best came after {duration(float(seconds[last]))} of {duration(overview.clock.total)} of work.",
            seconds / per,
            axis(f"time of work ({unit})", rangemode="tozero"),
        ),
    )


def draw_results(
    overview: Overview, results: NDArray[np.int64], x: NDArray[np.float64], y: NDArray[np.float64]
) -> list[Json]:
    """Return points [results] as traces by how the trials ended: stopped early, infeasible or complete."""
    # What was stopped early has a value, but not of its full length.
    stopped = np.array([overview.trials[at].status is not Status.COMPLETE for at in results])
    feasible = overview.within[results]
    size, opacity = (6, 0.9) if len(results) <= 300 else (4, 0.5)
    traces = []
    for name, mask, colour, symbol in (
        ("stopped early", stopped, "--muted", "x-thin-open"),
        ("infeasible", ~stopped & ~feasible, "--red", "circle-open"),
        ("complete", ~stopped & feasible, "--blue", "circle"),
    ):
        if mask.any():
            style: Json = {"size": size, "symbol": symbol, "opacity": opacity}
            numbers = [overview.trials[at].number for at in results[mask]]
            tip = "trial %{customdata}: %{y:.4g}"
            marks = draw_marks(name, rounded(x[mask]), rounded(y[mask]), colour, tip, **style)
            traces.append({**marks, "customdata": numbers})
    return traces


def _draw_line(values: NDArray[np.float64], x: NDArray[np.float64], records: NDArray[np.int64]) -> Json:
    # To the right end of the axis: the best is still the best after the last record.
    ends, best = [*x[records], x.max()], [*values[records], values[records[-1]]]
    tip = "best so far: %{y:.4g}"
    return draw_lines("best so far", rounded(ends), rounded(best), "--orange", tip, width=2.5, shape="hv")

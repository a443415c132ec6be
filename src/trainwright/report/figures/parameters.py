"""Draws scatter and contour plots (results by two of their columns, a metric over two parameters), and importance."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from trainwright.ledger import TrialState
from trainwright.report.figures.best_so_far import draw_results
from trainwright.report.figures.figure import (
    Figure,
    Json,
    axis,
    check_known,
    draw_lines,
    draw_marks,
    draw_trace,
    layout,
    rounded,
    value_axis,
)
from trainwright.report.figures.parallel_coordinates import parameter_axis
from trainwright.report.formatting import count, escape
from trainwright.report.overview import Overview
from trainwright.search.importance import Importance
from trainwright.space import Choice, Space

__all__ = ["axis_names", "contour", "importance_figure", "nothing_known", "scatter"]

_CELLS = 40
_BANDWIDTH = 0.12
"""Of the smoothing, in units of a parameter's range: about as far as twenty results tell of each other."""
_CUTOFF = 2.0
"""In bandwidths: a cell without a result this near is left blank."""
_NUMBERS: Mapping[str, Callable[[TrialState], float]] = {
    "epochs": lambda trial: trial.epoch,
    "seconds": lambda trial: trial.seconds,
}


def scatter(overview: Overview, space: Space, across: str, up: str) -> Figure | None:
    """Return the results by any two of: parameters, metrics, epochs, seconds; None without results that have both."""
    x, x_axis, x_remark = _read_column(overview, space, across)
    y, y_axis, y_remark = _read_column(overview, space, up)
    active = np.isfinite(x) & np.isfinite(y)
    if not active.any():
        return None
    return Figure(
        name="scatter",
        title=f"{escape(up, 40)} against {escape(across, 40)}",
        caption=f"{count(int(active.sum()), 'result')}. {x_remark} {y_remark}".strip(),
        data=draw_results(overview, overview.results[active], x[active], y[active]),
        layout=layout(xaxis=x_axis, yaxis=y_axis),
    )


def contour(overview: Overview, space: Space, first: str, second: str, objective: int = 0) -> Figure | None:
    """Return a smoothed map of the results over two parameters, or None with fewer than three results."""
    x, x_axis = _read_parameter(overview, space, first)
    y, y_axis = _read_parameter(overview, space, second)
    active = np.isfinite(x) & np.isfinite(y)
    if active.sum() < 3:
        return None
    goal = overview.objectives[objective]
    values = overview.values[overview.results, objective][active]
    x, y = x[active], y[active]
    grid_x, grid_y = _split_axis(space, first), _split_axis(space, second)
    far_x = _measure_distance(space, first, grid_x, x)
    far_y = _measure_distance(space, second, grid_y, y)
    # Results far worse than the rest would leave one colour for all others.
    best, median, worst = np.quantile(values, [0.05, 0.5, 0.95] if goal.direction == "min" else [0.95, 0.5, 0.05])
    worst = median + np.sign(worst - median) * min(abs(worst - median), 3 * abs(median - best))
    smooth = _smooth_map(far_x, far_y, np.clip(values, min(best, worst), max(best, worst)))
    metric = escape(goal.metric, 40)
    return Figure(
        name=f"contour-{first}-{second}",
        title=f"{metric} over {escape(first, 30)} and {escape(second, 30)}",
        caption=f"A mean of {count(int(active.sum()), 'result')} (dots), by distance; blank where none is near.",
        data=[
            draw_trace(
                "heatmap",
                metric,
                rounded(grid_x),
                rounded(grid_y),
                "%{z:.4g}",
                z=[rounded(row) for row in smooth],
                zmin=float(min(best, worst)),
                zmax=float(max(best, worst)),
                colorscale=[[0, "--ramp-4"], [1, "--ramp-1"]] if goal.direction == "min" else _TO_GOOD,
                showscale=True,
            ),
            draw_marks("result", rounded(x), rounded(y), "--ink", size=3, showlegend=False),
        ],
        layout=layout(xaxis=x_axis, yaxis=y_axis),
    )


_TO_GOOD = [[0, "--ramp-1"], [1, "--ramp-4"]]


def axis_names(overview: Overview, space: Space) -> list[str]:
    """Return what results can be drawn by: the parameters, the metrics of a result, epochs and seconds."""
    metrics = dict.fromkeys(name for at in overview.results for name in overview.trials[at].values)
    return list(dict.fromkeys([*_parameter_names(space), *metrics, *_NUMBERS]))


def _read_column(overview: Overview, space: Space, name: str) -> tuple[NDArray[np.float64], Json, str]:
    """Return the places of all results on an axis, NaN without one; the axis; and a remark on what it leaves out."""
    check_known(name, axis_names(overview, space))
    if name in _parameter_names(space):
        return *_read_parameter(overview, space, name), ""
    read = _NUMBERS.get(name, lambda trial: trial.values.get(name, math.nan))
    values = np.array([read(overview.trials[at]) for at in overview.results], dtype=np.float64)
    directions = {goal.metric: goal.direction for goal in overview.objectives}
    item, remark = value_axis(escape(name, 40), values, low_is_good=directions.get(name, "min") == "min")
    return values, item, remark


def _read_parameter(overview: Overview, space: Space, name: str) -> tuple[NDArray[np.float64], Json]:
    """Return the places in [0, 1] of all results on a parameter's axis, NaN where it is inactive, and the axis."""
    names = _parameter_names(space)
    check_known(name, names)
    at = names.index(name)
    rows = np.array([space.encode(overview.trials[place].params)[at] for place in overview.results])
    item = parameter_axis(space, space.columns[at], rows)
    margin = _margin(space, name)
    ticks: Json = {
        "tickvals": [place for place, _ in item.ticks],
        "ticktext": [text for _, text in item.ticks],
        "range": [-margin, 1 + margin],
    }
    return item.places, axis(escape(name, 30), **ticks)


def _parameter_names(space: Space) -> list[str]:
    return [column.name for column in space.columns]


def _margin(space: Space, name: str) -> float:
    """Return how far an axis reaches beyond its first and last value: a choice has as much room on each side of it."""
    parameter = space.parameters[name]
    return 0.5 / max(len(parameter.values) - 1, 1) if isinstance(parameter, Choice) else 0.04


def _split_axis(space: Space, name: str) -> NDArray[np.float64]:
    """Return the centres of the cells of a parameter's axis."""
    margin = _margin(space, name)
    return (np.arange(_CELLS) + 0.5) / _CELLS * (1 + 2 * margin) - margin


def _measure_distance(
    space: Space, name: str, grid: NDArray[np.float64], places: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the distances [cells, results] along a parameter in bandwidths; choices are equal or infinitely far."""
    parameter = space.parameters[name]
    if not isinstance(parameter, Choice):
        return np.asarray(np.abs(grid[:, None] - places) / _BANDWIDTH)
    steps = max(len(parameter.values) - 1, 1)
    return np.where(np.rint(grid[:, None] * steps) == np.rint(places * steps), 0.0, np.inf)


def _smooth_map(
    across: NDArray[np.float64], up: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return [cells, cells] means of the values by a Gaussian kernel; NaN where no result is near."""
    distance = up[:, None, :] ** 2 + across[None, :, :] ** 2
    weights = np.exp(-0.5 * distance)
    means = (weights * values).sum(axis=2) / np.maximum(weights.sum(axis=2), 1e-300)
    return np.asarray(np.where(distance.min(axis=2) < _CUTOFF**2, means, np.nan))


_MOST = 25


def importance_figure(importance: Importance, metric: str, objective: int = 0) -> Figure | None:
    """Return the shares of the parameters that are known to matter as bars, the greatest first; None if none is."""
    known = importance.known[:_MOST]
    if not known:
        return None
    at = [importance.names.index(name) for name in known]
    names = [escape(name, 30) for name in known]
    shares = [importance.shares[place] for place in at]
    # Half-samples differ by what chance gave them: that is the interval.
    intervals = [rounded([importance.low[place], importance.high[place]], 4) for place in at]
    first = ", then ".join(f"{name} ({share:.0%})" for name, share in list(zip(names, shares, strict=True))[:2])
    others = len(importance.names) - len(importance.known)
    cut = f" The {_MOST} greatest of {len(importance.known)} are drawn." if len(importance.known) > _MOST else ""
    rest = f" It is not known whether {count(others, 'other parameter')} had an effect." if others else ""
    return Figure(
        name=f"importance-{objective}",
        title=f"What moves {escape(metric, 40)}{_when(importance)}",
        caption=(
            f"The most important is {first}; lines are 90 % intervals, from half-samples of "
            f"{count(importance.results, 'result')}. Half of them predict {importance.explained:.0%} of the variance "
            f"of the others.{rest}{cut}"
        ),
        data=[
            draw_trace(
                "bar",
                "share",
                rounded(shares[::-1], 4),
                names[::-1],
                "%{y}: %{x:.1%} (%{customdata[0]:.1%} to %{customdata[1]:.1%})",
                marker={"color": "--blue"},
                showlegend=False,
                customdata=intervals[::-1],
            ),
            *(
                draw_lines("90 % interval", interval, [name, name], "--ink", showlegend=False)
                for name, interval in zip(names, intervals, strict=True)
            ),
        ],
        layout=layout(
            xaxis=axis("share", tickformat=".0%", rangemode="tozero", nticks=6),
            yaxis=axis(type="category", showgrid=False),
            bargap=0.35,
        ),
        height=90 + 28 * len(known),
    )


def nothing_known(importance: Importance, metric: str) -> str:
    """Return the sentence for a study of which no parameter is known to matter."""
    results = count(importance.results, "result")
    return f"{results}{_when(importance)} do not tell yet which parameters move {metric}."


def _when(importance: Importance) -> str:
    return "" if importance.epoch is None else f" at epoch {importance.epoch:,}"

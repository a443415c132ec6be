"""Results by any two of their columns (scatter), and a metric over two parameters (contour)."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InputError, closest
from trainwright.ledger import TrialState
from trainwright.report.figures.figure import Figure, Json, axis, draw_marks, draw_trace, layout, rounded, value_axis
from trainwright.report.figures.parallel_coordinates import parameter_axis
from trainwright.report.formatting import count, escape
from trainwright.report.overview import Overview
from trainwright.space import Space

__all__ = ["axis_names", "contour", "scatter"]

_CELLS = 40
_BANDWIDTH = 0.12
"""Of the smoothing, in units of a parameter's range: about as far as twenty results tell of each other."""
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
    numbers = np.array([overview.trials[at].number for at in overview.results])
    return Figure(
        name="scatter",
        title=f"{escape(up, 40)} against {escape(across, 40)}",
        caption=f"{count(int(active.sum()), 'result')}. {x_remark} {y_remark}".strip(),
        data=[
            draw_marks(
                "result",
                rounded(x[active]),
                rounded(y[active]),
                "--blue",
                "trial %{customdata}",
                size=5,
                customdata=numbers[active].tolist(),
                showlegend=False,
            )
        ],
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
    grid = np.linspace(0.0, 1.0, _CELLS)
    smooth = _smooth_map(x, y, values, grid)
    metric = escape(goal.metric, 40)
    return Figure(
        name=f"contour-{first}-{second}",
        title=f"{metric} over {escape(first, 30)} and {escape(second, 30)}",
        caption=f"A mean of {count(int(active.sum()), 'result')} (dots), by distance; blank where none is near.",
        data=[
            draw_trace(
                "heatmap",
                metric,
                rounded(grid),
                rounded(grid),
                "%{z:.4g}",
                z=[rounded(row) for row in smooth],
                # Results far off the rest would leave one colour for all others.
                zmin=float(np.quantile(values, 0.05)),
                zmax=float(np.quantile(values, 0.95)),
                colorscale=[[0, "--blue"], [1, "--surface"]] if goal.direction == "min" else _TO_GOOD,
                showscale=True,
            ),
            draw_marks("result", rounded(x), rounded(y), "--ink", size=3, showlegend=False),
        ],
        layout=layout(xaxis=x_axis, yaxis=y_axis),
    )


_TO_GOOD = [[0, "--surface"], [1, "--blue"]]


def axis_names(overview: Overview, space: Space) -> list[str]:
    """Return what results can be drawn by: the parameters, the metrics of a result, epochs and seconds."""
    metrics = dict.fromkeys(name for at in overview.results for name in overview.trials[at].values)
    return list(dict.fromkeys([*_parameter_names(space), *metrics, *_NUMBERS]))


def _read_column(overview: Overview, space: Space, name: str) -> tuple[NDArray[np.float64], Json, str]:
    """Return the places of all results on an axis, NaN without one; the axis; and a remark on what it leaves out."""
    _check_name(name, axis_names(overview, space))
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
    _check_name(name, names)
    at = names.index(name)
    rows = np.array([space.encode(overview.trials[place].params)[at] for place in overview.results])
    item = parameter_axis(space, space.columns[at], rows)
    ticks: Json = {
        "tickvals": [place for place, _ in item.ticks],
        "ticktext": [text for _, text in item.ticks],
        "range": [-0.04, 1.04],
    }
    return item.places, axis(escape(name, 30), **ticks)


def _parameter_names(space: Space) -> list[str]:
    return [column.name for column in space.columns]


def _check_name(name: str, names: list[str]) -> None:
    if name not in names:
        raise InputError(f"figure: nothing is named {name!r}; there are: {', '.join(names)}{closest(name, names)}")


def _smooth_map(
    x: NDArray[np.float64], y: NDArray[np.float64], values: NDArray[np.float64], grid: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return [cells, cells] means of the values by a Gaussian kernel; NaN where no result is within two bandwidths."""
    near_x = ((grid[:, None] - x) / _BANDWIDTH) ** 2
    near_y = ((grid[:, None] - y) / _BANDWIDTH) ** 2
    distance = near_y[:, None, :] + near_x[None, :, :]
    weights = np.exp(-0.5 * distance)
    means = (weights * values).sum(axis=2) / np.maximum(weights.sum(axis=2), 1e-300)
    return np.asarray(np.where(distance.min(axis=2) < 4.0, means, np.nan))

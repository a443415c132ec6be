"""A result against one parameter (slice) or two (contour)."""

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InputError, closest
from trainwright.report.figures.figure import Figure, Json, axis, draw_marks, draw_trace, layout, rounded, value_axis
from trainwright.report.figures.parallel_coordinates import parameter_axis
from trainwright.report.formatting import count, escape
from trainwright.report.overview import Overview
from trainwright.space import Space

__all__ = ["contour", "parameter_slice"]

_CELLS = 40
_BANDWIDTH = 0.12
"""Of the smoothing, in units of a parameter's range: about as far as twenty results tell of each other."""


def parameter_slice(overview: Overview, space: Space, name: str, objective: int = 0) -> Figure | None:
    """Return the results against one parameter, or None without results that have it."""
    places, x_axis, active = _read_axis(overview, space, name)
    if not active.any():
        return None
    goal = overview.objectives[objective]
    values = overview.values[overview.results, objective]
    y_axis, remark = value_axis(escape(goal.metric, 40), values[active], low_is_good=goal.direction == "min")
    numbers = np.array([overview.trials[at].number for at in overview.results])
    return Figure(
        name=f"slice-{name}",
        title=f"{escape(goal.metric, 40)} against {escape(name, 30)}",
        caption=f"{count(int(active.sum()), 'result')}. {remark}".strip(),
        data=[
            draw_marks(
                "result",
                rounded(places[active]),
                rounded(values[active]),
                "--blue",
                "trial %{customdata}: %{y:.4g}",
                size=5,
                customdata=numbers[active].tolist(),
                showlegend=False,
            )
        ],
        layout=layout(xaxis=x_axis, yaxis=y_axis),
    )


def contour(overview: Overview, space: Space, first: str, second: str, objective: int = 0) -> Figure | None:
    """Return a smoothed map of the results over two parameters, or None with fewer than three results."""
    x, x_axis, x_active = _read_axis(overview, space, first)
    y, y_axis, y_active = _read_axis(overview, space, second)
    active = x_active & y_active
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


def _read_axis(overview: Overview, space: Space, name: str) -> tuple[NDArray[np.float64], Json, NDArray[np.bool_]]:
    """Return the places of all results on a parameter's axis, the axis, and which of them have the parameter."""
    names = [column.name for column in space.columns]
    if name not in names:
        raise InputError(f"figure: no parameter {name!r}; there are: {', '.join(names)}{closest(name, names)}")
    at = names.index(name)
    rows = np.array([space.encode(overview.trials[place].params)[at] for place in overview.results])
    item = parameter_axis(space, space.columns[at], rows)
    ticks: Json = {
        "tickvals": [place for place, _ in item.ticks],
        "ticktext": [text for _, text in item.ticks],
        "range": [-0.04, 1.04],
    }
    return item.places, axis(escape(name, 30), **ticks), np.isfinite(item.places)


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

"""Draws parallel coordinates: a line a trial through its parameters and its result, the best on top.

Drawn as plain lines, which needs no WebGL: reports are read over remote desktops too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.report.figures.figure import Figure, Json, axis, check_known, draw_lines, layout, rounded, thinned
from trainwright.report.formatting import count, escape, number, shown
from trainwright.report.overview import Overview
from trainwright.space import Choice, Float, Space
from trainwright.space.columns import Column

__all__ = ["parallel_coordinates", "parameter_axis"]

_MOST_LINES, _MOST_AXES, _MOST_TICKS = 250, 12, 8
_INACTIVE = -0.13
_AXIS_LINE: Json = {"type": "line", "y0": 0, "y1": 1, "line": {"color": "--line", "width": 1.5}}
_GROUPS = (  # shares by rank, from the worst to the best, so that the best lie on top
    ("the rest", 0.5, 1.0, "--ramp-1", 0.35, 1.0),
    ("best half", 0.25, 0.5, "--ramp-2", 0.6, 1.0),
    ("best quarter", 0.1, 0.25, "--ramp-3", 0.8, 1.3),
    ("best tenth", 0.0, 0.1, "--ramp-4", 1.0, 2.0),
)


@dataclass(frozen=True, slots=True)
class _Axis:
    name: str
    places: NDArray[np.float64]  # [lines] in [0, 1]; NaN where inactive
    ticks: Sequence[tuple[float, str]]  # place and text


def parallel_coordinates(overview: Overview, space: Space, names: Sequence[str] = ()) -> Figure | None:
    """Return the figure, of `names` or at most 12 parameters, or None with fewer than two results."""
    if len(overview.results) < 2:
        return None
    # Thinned along the ranking, so that good and bad results keep their proportion.
    lines = overview.ranking[thinned(len(overview.ranking), _MOST_LINES)].tolist()
    # Unit coordinates: logarithmic parameters are spread as the search saw them.
    rows = np.array([space.encode(overview.trials[at].params) for at in lines])
    order = [column.name for column in space.columns]
    for name in names:
        check_known(name, order)
    chosen = [order.index(name) for name in names] or range(min(len(order), _MOST_AXES))
    axes = [parameter_axis(space, space.columns[at], rows[:, at]) for at in chosen]
    axes += [_result_axis(overview, objective, lines) for objective in range(min(len(overview.objectives), 3))]
    # Strength of a line by rank: the best are drawn strong and last, on top of the others.
    rank = np.empty(len(overview.trials))
    rank[overview.ranking] = (np.arange(len(overview.ranking)) + 0.5) / len(overview.ranking)
    drawn = (
        f"{len(lines):,} of {len(overview.results):,} results are drawn, evenly from the best to the worst."
        if len(lines) < len(overview.results)
        else f"{count(len(lines), 'result')}, one line each."
    )
    hidden = f" {len(chosen)} of {space.dimension} parameters are shown." if len(chosen) < space.dimension else ""
    inactive = " Below an axis, at “none”, pass trials without that parameter." if np.isnan(rows).any() else ""
    return Figure(
        name="parallel",
        title="Parallel coordinates",
        caption=f"{drawn} Where the strong lines run together, good trials agree; "
        f"where they fan out, the parameter matters little.{inactive}{hidden}",
        data=_draw_lines(overview, lines, axes, rank[lines]),
        layout=layout(
            xaxis=axis(range=[-0.3, len(axes) - 0.7], visible=False, fixedrange=True),
            yaxis=axis(range=[_INACTIVE - 0.1 if inactive else -0.05, 1.1], visible=False, fixedrange=True),
            shapes=[{**_AXIS_LINE, "x0": x, "x1": x} for x in range(len(axes))],
            annotations=[label for x, item in enumerate(axes) for label in _label_axis(x, item)],
            margin={"l": 16, "r": 16},
        ),
        height=420,
        least_width=95 * len(axes),
    )


def parameter_axis(space: Space, column: Column, units: NDArray[np.float64]) -> _Axis:
    """Return a parameter's axis in [0, 1], with the places of trials at their `units` and ticks at its values."""
    parameter = space.parameters[column.name]
    if column.kind == "choice":
        values = parameter.values if isinstance(parameter, Choice) else ()
        # Choices are spread evenly, whatever their values are.
        span = max(len(values) - 1, 1)
        ticks = [(code / span, escape(shown(value), 14)) for code, value in enumerate(values)]
        return _Axis(column.name, units / span, ticks)
    # Between marks and values, through a space of this parameter alone, without its condition.
    [entry] = [dict(entry) for entry in space.to_json()["parameters"] if entry["name"] == column.name]
    entry.pop("when", None)
    alone = Space.from_json({"parameters": [entry]})
    marks = np.linspace(0.0, 1.0, 5)
    if column.points is not None and column.points <= _MOST_TICKS:
        marks = (np.arange(column.points) + 0.5) / column.points
    elif isinstance(parameter, Float) and parameter.log:
        low, high = math.log10(parameter.low), math.log10(parameter.high)
        powers = [float(f"1e{power}") for power in range(math.ceil(low), math.floor(high) + 1)]
        if len(powers) >= 3:
            marks = np.concatenate([alone.encode({column.name: power}) for power in powers])
    decoded = alone.decode(marks[:, None])
    texts = [escape(shown(params[column.name]), 14) for params in decoded]
    return _Axis(column.name, units, list(zip(marks.tolist(), texts, strict=True)))


def _result_axis(overview: Overview, objective: int, lines: Sequence[int]) -> _Axis:
    """Return the result's axis, by rank: values crowd at one end, and what counts is their order."""
    values = overview.values[lines, objective]
    ordered = np.sort(values)
    low_is_good = overview.objectives[objective].direction == "min"
    # Equal results share the mean of their ranks.
    places = (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right") - 1) / 2
    places = places / max(len(values) - 1, 1)
    marks = np.linspace(0.0, 1.0, 5)
    ticks = [(float(mark), number(float(np.quantile(ordered, mark)), 3)) for mark in marks]
    if low_is_good:
        places, ticks = 1.0 - places, [(1.0 - mark, text) for mark, text in ticks]
    return _Axis(f"{overview.objectives[objective].metric} (by rank)", places, ticks)


def _draw_lines(
    overview: Overview, lines: Sequence[int], axes: Sequence[_Axis], rank: NDArray[np.float64]
) -> list[Json]:
    places = np.nan_to_num(np.column_stack([item.places for item in axes]), nan=_INACTIVE)
    numbers = [overview.trials[at].number for at in lines]
    traces: list[Json] = []
    for name, least, most, colour, opacity, width in _GROUPS:
        chosen = np.flatnonzero((rank <= most) & (rank > least))
        if not len(chosen):
            continue
        x: list[int | None] = [*range(len(axes)), None] * len(chosen)
        y = rounded(np.column_stack([places[chosen], np.full(len(chosen), np.nan)]).ravel(), 4)
        line = draw_lines(name, x, y, colour, "trial %{customdata}", width=width, opacity=opacity)
        who = np.repeat([numbers[at] for at in chosen.tolist()], len(axes) + 1).tolist()
        traces.append({**line, "customdata": who})
    return traces


def _label_axis(x: int, item: _Axis) -> list[Json]:
    plain = {"x": x, "font": {"color": "--ink", "size": 11}}
    name = {**plain, "y": 1.04, "yanchor": "bottom", "text": f"<b>{escape(item.name, 22)}</b>"}
    beside = {**plain, "xanchor": "left", "xshift": 4, "bgcolor": "--halo"}
    few = len(item.ticks) <= _MOST_TICKS
    shown_ticks = item.ticks if few else [*item.ticks[:: len(item.ticks) // _MOST_TICKS + 1], item.ticks[-1]]
    ticks = [{**beside, "y": place, "text": text} for place, text in shown_ticks]
    if np.isnan(item.places).any():
        ticks.append({**ticks[0], "y": _INACTIVE, "text": "none"})
    return [name, *ticks]

"""Draws the Pareto front: several objectives against each other, with the results that no other dominates."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.report.figures.figure import Figure, Json, draw_marks, layout, rounded, thinned, value_axis
from trainwright.report.formatting import count, escape
from trainwright.report.overview import Overview

__all__ = ["trade_offs"]

_MOST_POINTS, _MOST_FIGURES = 2000, 3


def trade_offs(overview: Overview) -> list[Figure]:
    """Return the first objective against each other one, at most three figures; none for one objective."""
    if not len(overview.results):
        return []
    return [_trade_off(overview, other) for other in range(1, min(len(overview.objectives), _MOST_FIGURES + 1))]


def _trade_off(overview: Overview, other: int) -> Figure:
    goals = overview.objectives[0], overview.objectives[other]
    # The front is drawn whole; of the others an even choice is enough.
    plain = np.setdiff1d(overview.results, overview.front)
    plain = plain[thinned(len(plain), _MOST_POINTS)]
    points = overview.values[overview.results][:, [0, other]]
    axes, remarks = zip(
        *(
            value_axis(escape(goal.metric, 40), points[:, side], low_is_good=goal.direction == "min")
            for side, goal in enumerate(goals)
        ),
        strict=True,
    )
    bounds = [
        {"type": "line", **_draw_bound(side, goal.bound), "line": {"color": "--red", "width": 1, "dash": "dash"}}
        for side, goal in enumerate(goals)
        if goal.bound is not None
    ]
    # With more than two objectives the front is no line in the plane of two.
    line: Json = {"mode": "lines+markers", "line": {"color": "--orange", "width": 1.5, "shape": "hv"}}
    steps = line if len(overview.objectives) == 2 else {}
    wanted = " and ".join(f"{'low' if goal.direction == 'min' else 'high'} {escape(goal.metric, 40)}" for goal in goals)
    # How many results keep all bounds.
    holding = int(overview.within[overview.results].sum())
    bound = (
        f" Dashed red: the bounds, which {count(holding, 'result')} of {len(overview.results):,} keep."
        if bounds
        else ""
    )
    return Figure(
        name=f"front-{other}",
        title=f"{escape(goals[0].metric, 40)} against {escape(goals[1].metric, 40)}",
        caption=f"Wanted: {wanted}. {count(len(overview.front), 'result')} of {len(overview.results):,} "
        f"{'is' if len(overview.front) == 1 else 'are'} on the front: no other is as good in everything and better in "
        f"something.{bound} {' '.join(dict.fromkeys(filter(None, remarks)))}".strip(),
        data=[
            _draw_points("others", overview, plain, other, "--muted", opacity=0.7),
            _draw_points("front", overview, overview.front, other, "--orange", size=10, symbol="diamond", **steps),
        ],
        layout=layout(xaxis=axes[0], yaxis=axes[1], shapes=bounds),
        height=400,
    )


def _draw_bound(side: int, bound: float) -> Json:
    if side == 0:
        return {"x0": bound, "x1": bound, "y0": 0, "y1": 1, "yref": "paper"}
    return {"y0": bound, "y1": bound, "x0": 0, "x1": 1, "xref": "paper"}


def _draw_points(name: str, overview: Overview, at: NDArray[np.int64], other: int, colour: str, **style: Any) -> Json:
    x, y = rounded(overview.values[at, 0]), rounded(overview.values[at, other])
    numbers = [overview.trials[place].number for place in at]
    return draw_marks(name, x, y, colour, "trial %{customdata}: %{x:.4g}, %{y:.4g}", customdata=numbers, **style)

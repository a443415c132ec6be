"""Draws studies against each other, or one alone: the best so far, and the empirical distribution (EDF) of results."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainwright.errors import InputError
from trainwright.report.figures.figure import Figure, axis, draw_lines, layout, rounded, value_axis
from trainwright.report.formatting import count, escape
from trainwright.report.overview import Overview

__all__ = ["comparison", "distribution"]

_COLOURS = ("--blue", "--orange", "--green", "--red", "--muted", "--sky")
_DASHES = ("solid", "dash", "dot")


def comparison(overviews: Mapping[str, Overview]) -> Figure | None:
    """Return the best result so far of each study over its results, or None without any."""
    found = _read_losses(overviews)
    if not found:
        return None
    goal = next(iter(overviews.values())).objectives[0]
    sign = 1.0 if goal.direction == "min" else -1.0
    bests = {name: sign * np.minimum.accumulate(losses) for name, losses in found.items()}
    # Each improvement counts once: a study that found its best at once would leave all others outside of the axis.
    steps = np.concatenate([np.unique(best) for best in bests.values()])
    y_axis, remark = value_axis(f"best {escape(goal.metric, 40)}", steps, low_is_good=sign > 0)
    return Figure(
        name="comparison",
        title=f"Best {escape(goal.metric, 40)} so far",
        caption=f"{count(len(bests), 'study', 'studies')}, in the order in which results came. {remark}".strip(),
        data=[
            # The line begins half a result early, so that one result alone is a line too.
            draw_lines(name, [0.5, *range(1, len(best) + 1)], rounded([best[0], *best]), **_style(place), shape="hv")
            for place, (name, best) in enumerate(bests.items())
        ],
        layout=layout(xaxis=axis("results", rangemode="tozero", dtick=1), yaxis=y_axis),
    )


def distribution(overviews: Mapping[str, Overview]) -> Figure | None:
    """Return for each study the share of results that are at least as good as a value, or None without any."""
    found = _read_losses(overviews)
    if not found:
        return None
    goal = next(iter(overviews.values())).objectives[0]
    sign = 1.0 if goal.direction == "min" else -1.0
    values = {name: sign * np.sort(losses) for name, losses in found.items()}
    every = np.concatenate([*values.values()])
    x_axis, remark = value_axis(escape(goal.metric, 40), every, low_is_good=sign > 0)
    # Each line rises from 0 at its study's best result, and stays at 1 up to the worst of all studies.
    worst = sign * (sign * every).max()
    return Figure(
        name="edf",
        title="Empirical distribution of results",
        caption=f"The share of results as good as a value or better. {remark}".strip(),
        data=[
            draw_lines(
                name,
                rounded([x[0], *x, worst]),
                rounded([*np.arange(len(x) + 1) / len(x), 1.0]),
                **_style(place),
                shape="hv",
            )
            for place, (name, x) in enumerate(values.items())
        ],
        layout=layout(xaxis=x_axis, yaxis=axis("share of results", range=[0, 1.02])),
    )


def _read_losses(overviews: Mapping[str, Overview]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return the losses of each study's results, in the order in which they came; all by one objective."""
    goals = {name: str(overview.objectives[0]) for name, overview in overviews.items()}
    first = next(iter(goals.values()))
    for name, goal in goals.items():
        if goal != first:
            raise InputError(
                f"figure: {name} has the objective {goal!r}, the first study {first!r}; compare studies of one"
            )
    return {name: one.losses[one.results, 0] for name, one in overviews.items() if len(one.results)}


def _style(place: int) -> dict[str, Any]:
    """Return a colour and a dash; no two of 18 studies are alike, in grey neither for three."""
    return {"colour": _COLOURS[place % len(_COLOURS)], "dash": _DASHES[place % len(_DASHES)]}

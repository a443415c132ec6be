"""Ensembles: loss against cost of the front and of members alone; how sure the pick is; how its members differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainwright.ensemble import Front
from trainwright.ensemble.ensemble_settings import ChosenEnsemble
from trainwright.ensemble.selection.candidates import make_scorer
from trainwright.report.figures.figure import (
    Figure,
    Json,
    axis,
    draw_marks,
    layout,
    rounded,
    value_axis,
)
from trainwright.report.formatting import count, escape, number

__all__ = ["ensemble_front"]

_WORDS = {"cross_entropy": "cross-entropy", "squared_error": "squared error"}


def ensemble_front(selection: ChosenEnsemble) -> Figure:
    """Return the figure; where seconds were not measured, the number of members stands for the cost."""
    front, pick = selection.front, selection.ensemble
    trials, single_losses, seconds = _score_singles(front)
    timed = all(cost is not None for cost in seconds)
    unit, per = _choose_unit([cost or 0.0 for cost in seconds]) if timed else ("", 1.0)
    chosen = tuple(member.trial for member in pick.members)
    points = sorted(front.points, key=lambda point: (point.seconds_per_row or len(point.members), point.loss))
    costs = [(point.seconds_per_row or 0.0) * per if timed else float(len(point.members)) for point in points]
    # A point belongs to the line where it is the least so far.
    losses = np.minimum.accumulate([point.loss for point in points])
    # The front has three axes; points that are on it for their few bytes only lie above the line of the other two.
    line = [at for at, point in enumerate(points) if at == 0 or point.loss < losses[at - 1]]
    small = [at for at in range(len(points)) if at not in line]
    alone = [(cost or 0.0) * per if timed else 1.0 for cost in seconds]
    # Single models first, so that the front is drawn on top of them.
    traces = [_mark_models("one model", alone, single_losses, [(trial,) for trial in trials], "--muted")]
    for name, places, symbol in (("front", line, "circle"), ("front, for its size", small, "circle-open")):
        if places:
            place_losses, who = [points[at].loss for at in places], [points[at].members for at in places]
            x = [costs[at] for at in places]
            traces.append(_mark_models(name, x, place_losses, who, "--blue", symbol=symbol))
    traces[1] |= {"mode": "lines+markers", "line": {"color": "--blue", "width": 1.5, "shape": "hv"}}
    for point, cost in zip(points, costs, strict=True):
        if point.members == chosen and point.weights == pick.weights:
            traces.append(draw_marks("pick", [cost], rounded([point.loss]), "--orange", size=16, symbol="star"))
        if point is front.points[0]:
            best = rounded([point.loss])
            traces.append(draw_marks("least loss", [cost], best, "--orange", size=16, symbol="circle-open"))
    loss = _WORDS.get(front.metric, front.metric)
    every = np.array([*single_losses, *(point.loss for point in points)])
    y, remark = value_axis(f"{loss} on {escape(front.split, 30)} rows", every, low_is_good=True)
    return Figure(
        name="ensembles",
        title="Ensembles: loss against cost",
        caption=_write_caption(selection, len(trials), remark),
        data=traces,
        layout=layout(xaxis=axis(f"{unit} per row" if timed else "members", rangemode="tozero"), yaxis=y),
        height=400,
    )


def _score_singles(front: Front) -> tuple[list[int], list[float], Sequence[float | None]]:
    """Return the models that selection looked at: trials, losses of each alone, and seconds per row if measured."""
    candidates = front.candidates
    losses = make_scorer(candidates, front.scored_by).losses((), np.arange(len(candidates)))
    seconds = [None] * len(candidates) if candidates.seconds is None else candidates.seconds.tolist()
    return candidates.trials.tolist(), losses.tolist(), seconds


def _write_caption(selection: ChosenEnsemble, singles: int, remark: str) -> str:
    front, pick = selection.front, selection.ensemble
    best, single = front.points[0].loss, front.baselines["single best"].loss
    gain = f"{(single - best) / abs(single):.0%} below" if single > best and single else "no better than"
    left_out = selection.models - len(selection.library.members)
    cut = f" {left_out:,} further models were left out." if left_out else ""
    return (
        f"{count(singles, 'model')} alone, and {count(len(front.points), 'ensemble')} on the front, "
        f"of which none is beaten in loss, time and size together. The least loss, {number(best)}, is {gain} the best "
        f"single model's {number(single)}. The pick has {count(len(pick.members), 'member')}. "
        f"Losses here are of the rows that were selected on, and so too good.{cut} {remark}"
    ).strip()


def _choose_unit(seconds: Sequence[float]) -> tuple[str, float]:
    greatest = max(seconds, default=0.0)
    for name, factor in (("seconds", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if greatest * factor >= 1:
            return name, factor
    return "ns", 1e9


def _mark_models(
    name: str, x: Sequence[float], y: Sequence[float], trials: Sequence[Sequence[int]], colour: str, **style: Any
) -> Json:
    words = [f"trial{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}" for members in trials]
    return draw_marks(
        name, rounded(x), rounded(y), colour, "%{customdata}: %{y:.4g}", size=8, customdata=words, **style
    )

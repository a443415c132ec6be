"""Ensembles: loss against cost of the front and of members alone; how sure the pick is; how its members differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainwright.ensemble import Front
from trainwright.ensemble.ensemble_settings import ChosenEnsemble
from trainwright.ensemble.selection.candidates import make_scorer
from trainwright.report.figures.figure import Figure, Json, axis, draw_lines, draw_marks, layout, rounded, value_axis
from trainwright.report.formatting import count, escape, number

__all__ = ["ensemble_front"]

_WORDS = {"cross_entropy": "cross-entropy", "squared_error": "squared error"}


def ensemble_front(selection: ChosenEnsemble) -> Figure:
    """Return the figure; where seconds were not measured, the number of members stands for the cost."""
    front, pick = selection.front, selection.ensemble
    trials, single_losses, seconds = _score_singles(front)
    timed = all(cost is not None for cost in seconds)
    # Seconds of a row are so few that they are told as microseconds.
    per = 1e6 if timed else 1.0
    chosen = tuple(member.trial for member in pick.members)
    points = sorted(front.points, key=lambda point: (point.seconds_per_row or len(point.members), point.loss))
    costs = [(point.seconds_per_row or 0.0) * per if timed else float(len(point.members)) for point in points]
    alone = [(cost or 0.0) * per if timed else 1.0 for cost in seconds]
    # Single models first, so that the front is drawn on top of them.
    traces = [
        _mark_models("one model", alone, single_losses, [(trial,) for trial in trials], "--muted"),
        _mark_models("front", costs, [point.loss for point in points], [point.members for point in points], "--blue"),
    ]
    # The front has three axes: the line joins what is least in loss for its cost, others are on it for their few bytes.
    least = np.minimum.accumulate([point.loss for point in points]).tolist()
    traces.append(draw_lines("least loss for the cost", rounded(costs), rounded(least), "--blue", shape="hv"))
    for point, cost in zip(points, costs, strict=True):
        if point.members == chosen and point.weights == pick.weights:
            traces.append(draw_marks("pick", [cost], rounded([point.loss]), "--orange", size=16, symbol="star"))
    loss = _WORDS.get(front.metric, front.metric)
    every = np.array([*single_losses, *(point.loss for point in points)])
    y, remark = value_axis(f"{loss} on {escape(front.split, 30)} rows", every, low_is_good=True)
    return Figure(
        name="ensembles",
        title="Ensembles: loss against cost",
        caption=_write_caption(selection, len(trials), remark),
        data=traces,
        layout=layout(xaxis=axis("µs per row" if timed else "members", rangemode="tozero"), yaxis=y),
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
    gain = f"{number(100 * (single - best) / abs(single), 2)} % below" if single > best and single else "no better than"
    left_out = selection.models - len(selection.library.members)
    cut = f" {left_out:,} further models were left out." if left_out else ""
    return (
        f"{count(singles, 'model')} alone, and {count(len(front.points), 'ensemble')} on the front, "
        f"of which none is beaten in loss, time and size together. The least loss, {number(best)}, is {gain} the best "
        f"single model's {number(single)}. The pick has {count(len(pick.members), 'member')}, combination rule: "
        f"{pick.rule.name}. "
        f"Losses here are of the rows that were selected on, and so too good.{cut} {remark}"
    ).strip()


def _mark_models(
    name: str, x: Sequence[float], y: Sequence[float], trials: Sequence[Sequence[int]], colour: str, **style: Any
) -> Json:
    words = [f"trial{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}" for members in trials]
    return draw_marks(
        name, rounded(x), rounded(y), colour, "%{customdata}: %{y:.4g}", size=8, customdata=words, **style
    )

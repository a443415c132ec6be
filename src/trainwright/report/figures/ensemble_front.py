"""Ensembles: loss against seconds per row, of members alone and of the ensembles on the front, with the pick."""

from collections.abc import Sequence

import numpy as np

from trainwright.report.figures.figure import Figure, Json, axis, layout, rounded, value_axis
from trainwright.report.formatting import count, escape, number
from trainwright.report.study_ensemble import StudyEnsemble

__all__ = ["ensemble_front"]

_WORDS = {"cross_entropy": "cross-entropy", "squared_error": "squared error"}


def ensemble_front(ensembles: StudyEnsemble) -> Figure:
    """Return the figure; where seconds were not measured, the number of members stands for the cost."""
    front, singles, pick = ensembles.front, ensembles.singles, ensembles.pick
    timed = all(single.seconds_per_row is not None for single in singles)
    unit, per = _choose_unit([single.seconds_per_row or 0.0 for single in singles]) if timed else ("", 1.0)
    chosen = tuple(member.trial for member in pick.members)
    points = sorted(front.points, key=lambda point: (point.seconds_per_row or len(point.members), point.loss))
    costs = [(point.seconds_per_row or 0.0) * per if timed else float(len(point.members)) for point in points]
    losses = np.minimum.accumulate([point.loss for point in points])
    # The front has three axes; points that are on it for their few bytes only lie above the line of the other two.
    line = [at for at, point in enumerate(points) if at == 0 or point.loss < losses[at - 1]]
    small = [at for at in range(len(points)) if at not in line]
    alone = [(single.seconds_per_row or 0.0) * per if timed else 1.0 for single in singles]
    # Single models first, so that the front is drawn on top of them.
    traces = [
        _draw_points("one model", alone, [s.loss for s in singles], [f"trial {s.trial}" for s in singles], "--muted"),
        *(
            _draw_points(
                name,
                [costs[at] for at in chosen_points],
                [points[at].loss for at in chosen_points],
                [_list_members(points[at].members) for at in chosen_points],
                "--blue",
            )
            | style
            for name, chosen_points, style in (
                ("front", line, {"mode": "lines+markers", "line": {"color": "--blue", "width": 1.5, "shape": "hv"}}),
                ("front, for its size", small, {}),
            )
            if chosen_points
        ),
        *(
            _draw_mark(name, cost, point.loss, symbol, size)
            for point, cost in zip(points, costs, strict=True)
            for name, symbol, size, wanted in (
                ("pick", "star", 16, point.members == chosen and point.weights == pick.weights),
                ("least loss", "circle-open", 16, point is front.points[0]),
            )
            if wanted
        ),
    ]
    loss = _WORDS.get(front.metric, front.metric)
    every = np.array([*(single.loss for single in singles), *(point.loss for point in points)])
    y, remark = value_axis(f"{loss} on {escape(front.split, 30)} rows", every, low_is_good=True)
    return Figure(
        name="ensembles",
        title="Ensembles: loss against cost",
        caption=_write_caption(ensembles, remark),
        data=traces,
        layout=layout(xaxis=axis(f"{unit} per row" if timed else "members", rangemode="tozero"), yaxis=y),
        height=400,
    )


def _write_caption(ensembles: StudyEnsemble, remark: str) -> str:
    front, pick = ensembles.front, ensembles.pick
    best, single = front.points[0].loss, front.baselines["single best"].loss
    gain = f"{(single - best) / abs(single):.0%} below" if single > best and single else "no better than"
    cut = f" {ensembles.left_out:,} further models were left out." if ensembles.left_out else ""
    return (
        f"{count(len(ensembles.singles), 'model')} alone, and {count(len(front.points), 'ensemble')} on the front, "
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


def _list_members(trials: Sequence[int]) -> str:
    listed = ", ".join(map(str, trials))
    return f"trial{'s' if len(trials) > 1 else ''} {listed}"


def _draw_points(name: str, x: Sequence[float], y: Sequence[float], who: Sequence[str], colour: str) -> Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": rounded(x),
        "y": rounded(y),
        "customdata": list(who),
        "marker": {"color": colour, "size": 8, "symbol": "circle-open" if "size" in name else "circle"},
        "hovertemplate": "%{customdata}: %{y:.4g}<extra></extra>",
    }


def _draw_mark(name: str, x: float, y: float, symbol: str, size: int) -> Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": rounded([x]),
        "y": rounded([y]),
        "marker": {"color": "--orange", "size": size, "symbol": symbol, "line": {"color": "--orange", "width": 2}},
        "hoverinfo": "skip",
    }

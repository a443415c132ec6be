"""Draws learning curves: one line a trial over its epochs, with the rungs at which rules decided."""

import math
from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from trainwright.ledger import Objective, Status, TrialState
from trainwright.report.figures.figure import Figure, Json, axis, draw_lines, draw_marks, layout, rounded, value_axis
from trainwright.report.formatting import count, escape, number
from trainwright.report.overview import Overview

__all__ = ["learning_curves"]

_MOST_CURVES, _MOST_FAILED, _MOST_POINTS, _MOST_RUNGS = 150, 30, 300, 12


def learning_curves(overview: Overview, objective: int = 0) -> Figure | None:
    """Return the curves of at most 150 results and what has no result yet, or None if nothing has two epochs."""
    goal = overview.objectives[objective]
    if overview.epochs < 2:
        return None
    # The best third and an even choice of the rest.
    results = [overview.trials[at] for at in overview.drawn(_MOST_CURVES)]
    best = _single_best(overview)
    others = [t for t in overview.trials if not t.has_result and goal.metric in _last_metrics(t)]
    open_ = [t for t in others if not t.status.ended]
    groups = (
        ("stopped early", "--muted", 0.55, [t for t in results if t.status in {Status.STOPPED, Status.PAUSED}]),
        ("complete", "--blue", 0.6, [t for t in results if t.status is Status.COMPLETE]),
        ("running", "--green", 0.8, [t for t in open_ if overview.word(t) == "running"][-_MOST_FAILED:]),
        ("interrupted", "--sky", 0.8, [t for t in open_ if overview.word(t) != "running"][-_MOST_FAILED:]),
        ("failed", "--red", 0.8, [t for t in others if t.status.ended][-_MOST_FAILED:]),
        ("best", "--orange", 1.0, [best] if best is not None else []),
    )
    traces: list[Json] = []
    values: list[float] = []
    drawn = 0
    for name, colour, opacity, trials in groups:
        # The best trial has a group of its own, drawn last on top.
        shown = [t for t in trials if goal.metric in _last_metrics(t) and (t is not best or name == "best")]
        if shown:
            traces.append(_draw_curves(name, (colour, opacity), shown, goal))
            values += [value for value in traces[-1]["y"] if value is not None]
            drawn += len(shown)
    if not traces:
        return None
    # A cross where a rule stopped a trial: its curve alone could be one that runs.
    stopped = [t for t in results if t.status is Status.STOPPED and t is not best and goal.metric in _last_metrics(t)]
    if stopped:
        traces.insert(1, _draw_crosses(stopped, goal))
    metric = escape(goal.metric, 40)
    y, remark = value_axis(metric, np.array(values), low_is_good=goal.direction == "min")
    return Figure(
        name=f"curves-{objective}",
        title=f"Learning curves: {metric}",
        caption=f"{_write_caption(overview, objective, drawn)} {remark}".strip(),
        data=traces,
        layout=layout(xaxis=_epoch_axis(overview), yaxis=y, shapes=_rung_lines(overview)),
        height=420,
    )


def _single_best(overview: Overview) -> TrialState | None:
    """Return the best trial; of several objectives none is the best in all."""
    return overview.best if len(overview.objectives) == 1 else None


def _last_metrics(trial: TrialState) -> Iterable[str]:
    last = trial.reports.get(trial.epoch)
    return last.metrics if last is not None else ()


def _curve_points(trial: TrialState, goal: Objective) -> tuple[list[int], list[float]]:
    epochs = sorted(trial.reports)
    if len(epochs) > _MOST_POINTS:
        epochs = [epochs[at] for at in np.linspace(0, len(epochs) - 1, _MOST_POINTS).astype(int)]
    return epochs, [trial.reports[epoch].metrics.get(goal.metric, math.nan) for epoch in epochs]


def _draw_curves(name: str, style: tuple[str, float], trials: list[TrialState], goal: Objective) -> Json:
    """Return all curves of a group as one trace, parted by gaps: a trace for each would make the page slow."""
    x: list[int | None] = []
    y: list[float] = []
    numbers: list[int | None] = []
    for trial in trials:
        epochs, metrics = _curve_points(trial, goal)
        x += [*epochs, None]
        y += [*metrics, math.nan]
        numbers += [trial.number] * len(epochs) + [None]
    colour, opacity = style
    # A curve of one epoch has no length.
    lone = any(len(trial.reports) == 1 for trial in trials)
    tip = "trial %{customdata}, epoch %{x}: %{y:.4g}"
    best = name == "best"
    curves = draw_lines(name, x, rounded(y), colour, tip, width=3 if best else 1.2, opacity=opacity)
    # A curve of one epoch is a point, which a line alone would not show.
    mode = "lines+markers" if lone or best else "lines"
    return {**curves, "mode": mode, "marker": {"color": colour, "size": 6 if best else 3}, "customdata": numbers}


def _draw_crosses(stopped: list[TrialState], goal: Objective) -> Json:
    x = [trial.epoch for trial in stopped]
    y = rounded([trial.reports[trial.epoch].metrics[goal.metric] for trial in stopped])
    tip = "trial %{customdata} stopped after epoch %{x}: %{y:.4g}"
    marks = draw_marks("stopped here", x, y, "--muted", tip, size=7, symbol="x-thin-open")
    return {**marks, "customdata": [trial.number for trial in stopped]}


def _epoch_axis(overview: Overview) -> Json:
    """Return a logarithmic axis where rungs grow by factors, else most trials would fill its first inch."""
    rungs = overview.rungs
    if len(rungs) < 2 or any(later < 2 * earlier for earlier, later in pairwise(rungs)):
        return axis("epoch", rangemode="tozero", dtick=1)
    ticks = sorted({1, *rungs, overview.epochs})
    # A little room at both ends, so that the first and last ticks are whole.
    ends = [-0.03, math.log10(overview.epochs) + 0.03]
    return axis("epoch (logarithmic)", type="log", tickvals=ticks, ticktext=[f"{t:,}" for t in ticks], range=ends)


def _rung_lines(overview: Overview) -> list[Json]:
    if len(overview.rungs) > _MOST_RUNGS:
        return []
    style = {"color": "--muted", "width": 1, "dash": "dash"}
    return [
        {"type": "line", "x0": rung, "x1": rung, "y0": 0, "y1": 1, "yref": "paper", "line": style, "layer": "below"}
        for rung in overview.rungs
    ]


def _write_caption(overview: Overview, objective: int, drawn: int) -> str:
    with_reports = sum(bool(trial.reports) for trial in overview.trials)
    if drawn == with_reports:
        parts = [f"{count(drawn, 'trial')}, one line each."]
    else:
        parts = [
            f"{drawn:,} of {count(with_reports, 'trial')} are drawn: the best ones and an even choice of the others."
        ]
    stopped = overview.count(Status.STOPPED)
    if overview.rungs:
        drawn_rungs = len(overview.rungs) <= _MOST_RUNGS
        lines = "Dashed lines are rungs" if drawn_rungs else f"There are {len(overview.rungs)} rungs"
        stops = f"{count(stopped, 'trial')} {'was' if stopped == 1 else 'were'} stopped"
        parts.append(f"{lines}, at which a rule chose who goes on; {stops}.")
    best = _single_best(overview)
    if best is not None and best.reports:
        value = overview.values[overview.ranking[0], objective]
        parts.append(f"The best, trial {best.number}, reached {number(value)} in {count(best.epoch, 'epoch')}.")
    return " ".join(parts)

"""The forecast of a search against what happened: device-hours over the number of results."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.report.figures.figure import Figure, Json, axis, draw_lines, layout, rounded, thinned
from trainwright.report.formatting import count, duration, number
from trainwright.report.overview import Overview

__all__ = ["forecast_figure", "read_search_plan"]

_MOST_POINTS = 600
_TIP = "after %{x} results: %{y:.3g} device-hours"


def read_search_plan(directory: Path) -> Mapping[str, Any] | None:
    """Return what the plan stage of the workflow in a study's folder forecast; None without a readable one."""
    try:
        record = json.loads((directory / "stages" / "plan.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    content = record.get("content") if isinstance(record, dict) else None
    return content if isinstance(content, dict) else None


def forecast_figure(overview: Overview, plan: Mapping[str, Any] | None) -> Figure | None:
    """Return the figure of a plan stage's `cost` and `trials`; None without them."""
    cost, trials = (plan or {}).get("cost"), (plan or {}).get("trials")
    if not isinstance(cost, Mapping) or not isinstance(trials, int) or trials < 1:
        return None
    content = [cost.get(name) for name in ("device_hours", "device_hours_90", "wall_seconds", "wall_seconds_90")]
    hours, most, wall, wall_most = (float(item) if isinstance(item, int | float) else math.nan for item in content)
    if not math.isfinite(hours) or not math.isfinite(most):
        return None
    # Device-hours add up in the order in which results came.
    spent = np.cumsum([overview.trials[at].device_seconds / 3600 for at in overview.results])
    thin = thinned(len(spent), _MOST_POINTS)
    traces: list[Json] = [
        draw_lines("forecast, nine of ten below", [0, trials], rounded([0.0, most]), "--muted", _TIP, dash="dot"),
        draw_lines("forecast, median", [0, trials], rounded([0.0, hours]), "--blue", _TIP, dash="dash"),
    ]
    # Before the first result there is only the forecast.
    if len(spent):
        x, y = [0, *(thin + 1).tolist()], rounded([0.0, *spent[thin]])
        traces.append(draw_lines("happened", x, y, "--orange", _TIP, width=2.5))
    return Figure(
        name="forecast",
        title="Forecast against what happened",
        caption=_write_caption(overview, trials, (hours, most), (wall, wall_most)),
        data=traces,
        layout=layout(xaxis=axis("results", rangemode="tozero"), yaxis=axis("device-hours", rangemode="tozero")),
    )


def _write_caption(overview: Overview, trials: int, hours: tuple[float, float], wall: tuple[float, float]) -> str:
    results, spent = len(overview.results), overview.state.device_seconds / 3600
    text = (
        f"{count(trials, 'trial')} were forecast to take {number(hours[0], 3)} device-hours, nine of ten simulated "
        f"studies less than {number(hours[1], 3)}; {count(results, 'result')} took {number(spent, 3)}, failures too."
    )
    if all(map(math.isfinite, wall)):
        text += (
            f" Wall time: {duration(wall[0])} forecast, nine of ten below {duration(wall[1])}; "
            f"{duration(overview.clock.total)} so far."
        )
    return text

"""A figure as plain data: traces and a layout for chart.js, a title, and a caption that says what is to be seen.

The words are a few of those that Plotly made usual: scatter, bar and heatmap; xaxis, yaxis, shapes, annotations.
Colours are names of the page's CSS properties, such as "--blue", which the page replaces by the colour of its theme;
so one figure fits light and dark. All texts are HTML: what comes from users is escaped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InputError, closest

__all__ = [
    "Figure",
    "Json",
    "axis",
    "check_known",
    "draw_lines",
    "draw_marks",
    "draw_trace",
    "layout",
    "rounded",
    "thinned",
    "value_axis",
]

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure; `name` is its id in a page, sizes are in pixels; narrower than `least_width` it is scrolled."""

    name: str
    title: str
    caption: str  # HTML
    data: list[Json] = field(repr=False)
    layout: Json = field(repr=False)
    height: int = 340
    least_width: int = 0


def axis(title: str = "", **settings: Any) -> Json:
    """Return an axis in the style of all figures."""
    return {"title": {"text": title}, **settings}


def layout(**settings: Any) -> Json:
    """Return a layout: `xaxis`, `yaxis` and perhaps `yaxis2`, `shapes`, `annotations` and `bargap`."""
    return settings


def draw_trace(kind: str, name: str, x: Any, y: Any, tip: str = "", **settings: Any) -> Json:
    """Return a trace of a kind: "scatter", "bar" or "heatmap"; without a `tip` the pointer passes over it."""
    hover = {"hovertemplate": f"{tip}<extra></extra>"} if tip else {"hoverinfo": "skip"}
    return {"type": kind, "name": name, "x": x, "y": y, **hover, **settings}


def draw_lines(name: str, x: Any, y: Any, colour: str, tip: str = "", *, width: float = 1.5, **settings: Any) -> Json:
    """Return a line through points; `shape` "hv" makes it a staircase, `dash` is "dot" or "dash"."""
    style: Json = {key: settings.pop(key) for key in ("shape", "dash") if key in settings}
    line: Json = {"color": colour, "width": width, **style}
    return draw_trace("scatter", name, x, y, tip, mode="lines", line=line, **settings)


def draw_marks(
    name: str,
    x: Any,
    y: Any,
    colour: str,
    tip: str = "",
    *,
    size: float = 6,
    symbol: str = "circle",
    mode: str = "markers",
    **settings: Any,
) -> Json:
    """Return points with a mark at each; the mode "lines+markers" joins them."""
    marker = {"color": colour, "size": size, "symbol": symbol}
    return draw_trace("scatter", name, x, y, tip, mode=mode, marker=marker, **settings)


def value_axis(title: str, values: NDArray[np.float64], *, low_is_good: bool) -> tuple[Json, str]:
    """Return an axis for metric values, and a remark on what it leaves out, "" if nothing.

    Logarithmic where positive values span more than 1.5 decades; bad outliers far beyond the rest are cut off.
    """
    known = np.sort(values[np.isfinite(values)])
    if not len(known):
        return axis(title), ""
    low, high = float(known[0]), float(known[-1])
    # Outliers beyond three times the range of the rest would flatten everything else.
    q05, q95 = np.quantile(known, [0.05, 0.95])
    remark = ""
    if low_is_good and high - q95 > 3 * (q95 - low) > 0:
        high, remark = float(q95), "Values above the axis are cut off."
    if not low_is_good and q05 - low > 3 * (high - q05) > 0:
        low, remark = float(q05), "Values below the axis are cut off."
    # Thirty-fold is about 1.5 decades.
    log = low > 0 and high / low > 30
    ends = np.log10([low, high]) if log else np.array([low, high])
    pad = 0.05 * (ends[1] - ends[0]) or 0.05 * abs(ends[1]) or 1.0
    settings: Json = {"type": "log", "dtick": 1 if ends[1] - ends[0] > 2 else "D2"} if log else {}
    return axis(title, range=[float(ends[0] - pad), float(ends[1] + pad)], **settings), remark


def rounded(values: Any, digits: int = 6) -> list[float | None]:
    """Return floats with few significant digits, since a page carries them as text; None for what is not finite."""
    array = np.asarray(values, dtype=np.float64)
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in array.tolist()]


def thinned(count: int, most: int, keep: Sequence[int] = ()) -> NDArray[np.int64]:
    """Return at most `most` even positions of `count`, and those in `keep`."""
    if count <= most:
        return np.arange(count)
    even = np.linspace(0, count - 1, most).astype(np.int64)
    return np.unique(np.concatenate([even, np.asarray(keep, dtype=np.int64)]))


def check_known(name: str, names: Sequence[str]) -> None:
    """Raise `InputError` if nothing has that name."""
    if name not in names:
        raise InputError(f"figure: nothing is named {name!r}; there are: {', '.join(names)}{closest(name, names)}")

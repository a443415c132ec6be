"""Figures for papers: a figure's traces drawn by matplotlib as PDF, SVG or PNG, light, at a width in millimetres.

Text is 7 points at least at that width, fonts are embedded, and each legend entry has the mark of its trace. What does
not fit is wrapped, tilted, or left out, in this order; nothing overlaps.
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from html import unescape
from importlib.resources import files
from itertools import pairwise
from math import asin, degrees
from pathlib import Path
from typing import Any

from trainwright.errors import InputError, MissingExtra
from trainwright.report.figures.figure import Figure, Json
from trainwright.report.files import replacing

__all__ = ["draw_paper_figure"]

_MM_PER_INCH, _POINTS_PER_INCH = 25.4, 72
_POINTS = 7.0
# Of a letter and of a legend's mark with the gaps next to it, for texts that are not drawn yet.
_LETTER_POINTS, _MARK_POINTS = 0.56 * _POINTS, 5 * _POINTS
_SYMBOLS = {"circle": "o", "circle-open": "o", "diamond": "D", "star": "*", "x-thin-open": "x"}
_DASHES = {"solid": "-", "dot": ":", "dash": "--"}
# Pixels of the page, about 700 wide, to points of a column about 85 mm wide.
_PER_PIXEL = 0.55


def draw_paper_figure(figure: Figure, path: Path, width_mm: float) -> None:
    """Draw a figure into a file, whose ending (.pdf, .svg or .png) says how. Raises `MissingExtra` or `InputError`."""
    with MissingExtra.instead_of_import_error("trainwright figure", "matplotlib", "figure"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Canvas
    style: dict[Any, Any] = {
        "font.size": _POINTS,
        "axes.titlesize": _POINTS + 1,
        "axes.labelsize": _POINTS,
        "xtick.labelsize": _POINTS,
        "ytick.labelsize": _POINTS,
        "legend.fontsize": _POINTS,
        "axes.formatter.limits": (-3, 5),
        "axes.formatter.useoffset": False,
        "pdf.fonttype": 42,
        "svg.fonttype": "path",
        # The same study gives the same file.
        "svg.hashsalt": figure.name,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
    }
    with rc_context(style):
        inches = width_mm / _MM_PER_INCH
        tall = min(max(figure.height / 560, 0.55), 1.6)
        canvas = Canvas(figsize=(inches, inches * tall), layout="constrained", facecolor="white")
        kind = path.suffix[1:].lower()
        dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
        with replacing(path) as temporary, warnings.catch_warnings():
            warnings.filterwarnings("error", message="constrained_layout not applied")
            try:
                _draw(canvas, figure, _read_colours())
                canvas.savefig(temporary, format=kind, dpi=300, metadata=dates.get(kind))
            except UserWarning as error:
                raise InputError(
                    f"figure: the texts of {figure.name} leave no room in {width_mm:g} mm; allowed: a larger --width, "
                    "or fewer names by --of"
                ) from error


def _draw(canvas: Any, figure: Figure, colours: Mapping[str, str]) -> None:
    wide, tall = (inches * _POINTS_PER_INCH for inches in canvas.get_size_inches())
    lower = figure.layout.get("yaxis2")
    if lower is None:
        plots = {"y": canvas.subplots()}
    else:
        # Two plots over one time axis, the lower one as large a share as the page gives it.
        share = max(lower["domain"][1], 0.2)
        both = canvas.subplots(2, 1, sharex=True, height_ratios=[1 - share, share])
        plots = {"y": both[0], "y2": both[1]}
    canvas.suptitle(_wrap(_plain(figure.title), wide * 0.75), fontsize=_POINTS + 1)
    for name, plot in plots.items():
        settings = figure.layout["yaxis" if name == "y" else "yaxis2"]
        _set_axis(plot, "y", settings, tall * 0.6 / len(plots))
        for trace in figure.data:
            if trace.get("yaxis", "y") == name:
                _DRAW[trace["type"]](plot, trace, colours)
        # Categories are placed by the first trace that names them; the limits come last.
        _set_limits(plot, "y", settings)
        _set_limits(plot, "x", figure.layout["xaxis"])
    bottom = plots.get("y2", plots["y"])
    _set_axis(bottom, "x", figure.layout["xaxis"], wide * 0.7)
    top = plots["y"]
    for shape in figure.layout.get("shapes", ()):
        _draw_shape(top, shape, colours)
    notes = [(note, _draw_note(top, note)) for note in figure.layout.get("annotations", ())]
    handles, labels = top.get_legend_handles_labels()
    # One entry tells no trace from another.
    if len(labels) > 1:
        columns = _count_columns(labels, wide)
        canvas.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    _tell_apart(canvas, plots.values(), notes)


def _count_columns(names: Sequence[str], points: float) -> int:
    """Return how many columns a legend of these entries has at this width."""
    entries = [len(name) * _LETTER_POINTS + _MARK_POINTS for name in names]
    return len(names) if sum(entries) < points else max(int(points / max(entries)), 1)


def _draw_scatter(plot: Any, trace: Json, colours: Mapping[str, str]) -> None:
    line, marker = trace.get("line", {}), trace.get("marker", {})
    mode, symbol = trace["mode"], marker.get("symbol", "circle")
    colour = colours[line.get("color") or marker["color"]]
    marked = "markers" in mode
    many = len(trace["x"]) > 400 and "lines" not in mode
    plot.plot(
        [_number(x) for x in trace["x"]],
        [_number(y) for y in trace["y"]],
        linestyle=_DASHES[line.get("dash", "solid")] if "lines" in mode else "none",
        linewidth=line.get("width", 1.5) * _PER_PIXEL,
        drawstyle="steps-post" if line.get("shape") == "hv" else "default",
        marker=_SYMBOLS[symbol] if marked else None,
        markersize=marker.get("size", 6) * _PER_PIXEL if marked else None,
        markerfacecolor="none" if symbol.endswith("open") else colours[marker["color"]] if marked else None,
        markeredgecolor=colours[marker["color"]] if marked else None,
        markeredgewidth=0.7,
        color=colour,
        alpha=trace.get("opacity", 1.0),
        rasterized=many,
        label=_label(trace),
    )
    if trace.get("fill") == "tozeroy":
        plot.fill_between(trace["x"], [_number(y) for y in trace["y"]], step="post", color=colour, alpha=0.15, lw=0)


def _draw_bars(plot: Any, trace: Json, colours: Mapping[str, str]) -> None:
    """Draw horizontal bars, which all of ours are."""
    names = [_number(y) for y in trace["y"]]
    colour = colours[trace["marker"]["color"]]
    plot.barh(names, trace["x"], 0.7, left=trace.get("base", 0), color=colour, label=_label(trace))


def _draw_heatmap(plot: Any, trace: Json, colours: Mapping[str, str]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    scale = [(place, colours[name]) for place, name in trace["colorscale"]]
    shades = LinearSegmentedColormap.from_list("page", scale)
    z = [[_number(value) for value in row] for row in trace["z"]]
    limits = {"vmin": trace.get("zmin"), "vmax": trace.get("zmax")}
    image = plot.pcolormesh(trace["x"], trace["y"], z, cmap=shades, shading="nearest", rasterized=True, **limits)
    if trace.get("showscale"):
        plot.figure.colorbar(image, ax=plot, label=_wrap(_plain(trace["name"]), 1.2 * _POINTS_PER_INCH))


_DRAW = {"scatter": _draw_scatter, "bar": _draw_bars, "heatmap": _draw_heatmap}


def _draw_shape(plot: Any, shape: Json, colours: Mapping[str, str]) -> None:
    line = shape["line"]
    # "paper" is the whole height or width of the plot.
    upright, level = shape.get("yref") == "paper", shape.get("xref") == "paper"
    transform = plot.get_xaxis_transform() if upright else plot.get_yaxis_transform() if level else plot.transData
    ends = [[shape["x0"], shape["x1"]], [shape["y0"], shape["y1"]]]
    style = _DASHES[line.get("dash", "solid")]
    width = line.get("width", 1) * _PER_PIXEL
    plot.plot(*ends, style, color=colours[line["color"]], linewidth=width, transform=transform, zorder=1)


def _draw_note(plot: Any, note: Json) -> Any:
    bold = "<b>" in note["text"]
    left = note.get("xanchor") == "left"
    return plot.annotate(
        _plain(note["text"]),
        (note["x"], note["y"]),
        xytext=(2, 0) if left else (0, 2),
        textcoords="offset points",
        ha="left" if left else "center",
        va="bottom" if note.get("yanchor") == "bottom" else "center",
        weight="bold" if bold else "normal",
        bbox=None if bold else {"facecolor": "white", "alpha": 0.6, "linewidth": 0, "pad": 0.3},
        annotation_clip=False,
    )


def _tell_apart(canvas: Any, plots: Iterable[Any], notes: Sequence[tuple[Json, Any]]) -> None:
    """Tilt, turn or hide texts that would lie on each other at this width."""
    canvas.draw_without_rendering()
    for plot in plots:
        across = [label for label in plot.get_xticklabels() if label.get_text()]
        if _overlap(across):
            for label in across:
                label.set(rotation=35, ha="right", rotation_mode="anchor")
        _hide_overlapping([label for label in plot.get_yticklabels() if label.get_text()])
    heads = [text for note, text in notes if "<b>" in note["text"]]
    if len(heads) > 1:
        _arrange_axes(heads, [text for note, text in notes if "<b>" not in note["text"]])


def _arrange_axes(heads: Sequence[Any], ticks: Sequence[Any]) -> None:
    """Arrange the texts of parallel axes: heads are tilted, and values turned, as little as makes them fit."""
    room = _measure_gap(heads[0].axes)
    if _overlap(heads):
        high = max(head.get_window_extent().height for head in heads)
        angle = min(max(degrees(asin(min(1.2 * high / room, 1))), 25), 90)
        for head in heads:
            head.set(rotation=angle, ha="left", rotation_mode="anchor")
        # Tilted heads are taller, and the last one reaches to the right: they leave less room to the axes.
        heads[0].figure.draw_without_rendering()
        room = _measure_gap(heads[0].axes)
    for place in {text.xy[0] for text in ticks}:
        column = [text for text in ticks if text.xy[0] == place]
        if place < len(heads) - 1 and any(text.get_window_extent().width > room - 4 for text in column):
            # Those at the ends stay within the axis.
            for text in column:
                side = {0.0: "bottom", 1.0: "top"}.get(text.xy[1], "center")
                text.set(rotation=90, va=side)
        # The ends say most.
        column.sort(key=lambda text: (-abs(text.xy[1] - 0.5), text.xy[1]))
        _hide_overlapping(column)


def _measure_gap(plot: Any) -> float:
    """Return the pixels between two parallel axes."""
    left, right = plot.transData.transform([(0, 0), (1, 0)])[:, 0]
    return float(right - left)


def _overlap(texts: Sequence[Any]) -> bool:
    boxes = sorted((text.get_window_extent() for text in texts), key=lambda box: float(box.x0))
    return any(left.x1 > right.x0 for left, right in pairwise(boxes))


def _hide_overlapping(texts: Sequence[Any]) -> None:
    """Hide each text that lies on an earlier one that is shown."""
    shown: list[Any] = []
    for text in texts:
        box = text.get_window_extent()
        if any(box.overlaps(other) for other in shown):
            text.set_visible(False)
        else:
            shown.append(box)


def _set_axis(plot: Any, side: str, settings: Json, points: float) -> None:
    """Set the title of an axis that is about `points` long, its scale and ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

    own = getattr(plot, f"{side}axis")
    getattr(plot, f"set_{side}label")(_wrap(_plain(settings["title"]["text"]), points))
    if settings.get("type") == "log":
        getattr(plot, f"set_{side}scale")("log")
        # Powers as 0.001 or 1e-05: a raised exponent would be smaller than all other text.
        low, high = settings.get("range", (0, 9))
        own.set_major_locator(LogLocator(subs=(1, 2, 5) if high - low < 2 else (1,)))
        own.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        own.set_minor_formatter(NullFormatter())
    if settings.get("dtick") == 1 and settings.get("type") != "log":
        own.set_major_locator(MaxNLocator("auto", integer=True))
    if settings.get("tickformat", "").endswith("%"):
        own.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if "tickvals" in settings:
        own.set_ticks(settings["tickvals"], labels=[_plain(text) for text in settings.get("ticktext", ())] or None)
        own.set_minor_formatter(NullFormatter())
    own.set_visible(settings.get("visible", True))
    if not settings.get("visible", True):
        plot.spines[["left", "bottom"]].set_visible(False)


def _set_limits(plot: Any, side: str, settings: Json) -> None:
    limits = getattr(plot, f"set_{side}lim")
    if "range" in settings:
        low, high = settings["range"]
        limits(*((10**low, 10**high) if settings.get("type") == "log" else (low, high)))
    elif settings.get("rangemode") == "tozero":
        limits(0)


def _label(trace: Json) -> str:
    """Return the entry of the legend; matplotlib leaves out what begins with a line below."""
    return _plain(trace["name"]) if trace.get("showlegend", True) and trace["name"] else "_none"


def _wrap(text: str, points: float) -> str:
    """Break a text into lines of about `points`, after spaces and the marks within long names."""
    lines = [""]
    for part in re.split(r"(?<=[ _./-])", text):
        if lines[-1] and (len(lines[-1]) + len(part)) * _LETTER_POINTS > points:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip(" ") for line in lines)


def _number(value: Any) -> Any:
    """Return a value to draw: NaN for None, and the name of a category in lines of about an inch."""
    if isinstance(value, str):
        return _wrap(_plain(value), _POINTS_PER_INCH)
    return float("nan") if value is None else value


def _plain(html: str) -> str:
    """Return HTML as text; a dollar sign would begin a formula."""
    return unescape(re.sub(r"<[^>]*>", "", html)).replace("$", r"\$")


def _read_colours() -> dict[str, str]:
    """Return the colours of the light page, by name, each as #rrggbb."""
    sheet = files("trainwright.report").joinpath("assets/page.css").read_text("utf-8")
    light = sheet[: sheet.index("}")]
    found = dict(re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6})", light))
    return {**found, "--wash": found["--blue"], "--halo": found["--surface"]}

"""Figures for papers: a figure's traces drawn by matplotlib as PDF, SVG or PNG, light, at a width in millimetres.

Text is 7 points at least at that width, fonts are embedded, and each legend entry has the mark of its trace.
"""

import re
from collections.abc import Mapping
from html import unescape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainwright.errors import MissingExtra
from trainwright.report.figures.figure import Figure, Json
from trainwright.report.files import replacing

__all__ = ["draw_paper_figure"]

_MM_PER_INCH = 25.4
_POINTS = 7.0
_SYMBOLS = {"circle": "o", "circle-open": "o", "diamond": "D", "star": "*", "x-thin-open": "x"}
_DASHES = {"solid": "-", "dot": ":", "dash": "--"}
# Pixels of the page, about 700 wide, to points of a column about 85 mm wide.
_PER_PIXEL = 0.55


def draw_paper_figure(figure: Figure, path: Path, width_mm: float) -> None:
    """Draw a figure into a file, whose ending (.pdf, .svg or .png) says how. Raises `MissingExtra` or `InputError`."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MissingExtra.of("trainwright figure", "matplotlib", "figure") from error
    style: dict[Any, Any] = {
        "font.size": _POINTS,
        "axes.titlesize": _POINTS + 1,
        "axes.labelsize": _POINTS,
        "xtick.labelsize": _POINTS,
        "ytick.labelsize": _POINTS,
        "legend.fontsize": _POINTS,
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
        tall = min(max(figure.height / 560, 0.5), 1.6)
        canvas = Canvas(figsize=(inches, inches * tall), layout="constrained", facecolor="white")
        _draw(canvas, figure, _read_colours())
        kind = path.suffix[1:].lower()
        dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
        with replacing(path) as temporary:
            canvas.savefig(temporary, format=kind, dpi=300, metadata=dates.get(kind))


def _draw(canvas: Any, figure: Figure, colours: Mapping[str, str]) -> None:
    lower = figure.layout.get("yaxis2")
    if lower is None:
        plots = {"y": canvas.subplots()}
    else:
        # Two plots over one time axis, the lower one as large a share as the page gives it.
        share = max(lower["domain"][1], 0.2)
        both = canvas.subplots(2, 1, sharex=True, height_ratios=[1 - share, share])
        plots = {"y": both[0], "y2": both[1]}
    canvas.suptitle(_plain(figure.title), fontsize=_POINTS + 1)
    for name, plot in plots.items():
        settings = figure.layout["yaxis" if name == "y" else "yaxis2"]
        _set_axis(plot, "y", settings)
        for trace in figure.data:
            if trace.get("yaxis", "y") == name:
                _DRAW[trace["type"]](plot, trace, colours)
        # Categories are placed by the first trace that names them; the limits come last.
        _set_limits(plot, "y", settings)
        _set_limits(plot, "x", figure.layout["xaxis"])
    bottom = plots.get("y2", plots["y"])
    _set_axis(bottom, "x", figure.layout["xaxis"])
    top = plots["y"]
    for shape in figure.layout.get("shapes", ()):
        _draw_shape(top, shape, colours)
    notes = [(note, _draw_note(top, note)) for note in figure.layout.get("annotations", ())]
    handles, labels = top.get_legend_handles_labels()
    if labels:
        columns = 2 if max(map(len, labels)) < 24 else 1
        canvas.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    _tilt_overlapping(canvas, [text for note, text in notes if "<b>" in note["text"]])


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
    left = trace.get("base", 0)
    colour = colours[trace["marker"]["color"]]
    plot.barh([_plain(y) for y in trace["y"]], trace["x"], 0.7, left=left, color=colour, label=_label(trace))


def _draw_heatmap(plot: Any, trace: Json, colours: Mapping[str, str]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    scale = [(place, colours[name]) for place, name in trace["colorscale"]]
    shades = LinearSegmentedColormap.from_list("page", scale)
    z = [[_number(value) for value in row] for row in trace["z"]]
    limits = {"vmin": trace.get("zmin"), "vmax": trace.get("zmax")}
    image = plot.pcolormesh(trace["x"], trace["y"], z, cmap=shades, shading="nearest", rasterized=True, **limits)
    if trace.get("showscale"):
        plot.figure.colorbar(image, ax=plot, label=_plain(trace["name"]))


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


def _tilt_overlapping(canvas: Any, heads: list[Any]) -> None:
    """Tilt the heads of axes, such as those of parallel coordinates, if two of them overlap at this width."""
    canvas.draw_without_rendering()
    boxes = [head.get_window_extent() for head in heads]
    if any(left.x1 > right.x0 for left, right in pairwise(boxes)):
        for head in heads:
            head.set(rotation=25, ha="left", rotation_mode="anchor")


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


def _set_axis(plot: Any, side: str, settings: Json) -> None:
    """Set an axis's title, scale and ticks."""
    from matplotlib.ticker import NullFormatter, PercentFormatter

    own = getattr(plot, f"{side}axis")
    getattr(plot, f"set_{side}label")(_plain(settings["title"]["text"]))
    if settings.get("type") == "log":
        getattr(plot, f"set_{side}scale")("log")
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


def _number(value: Any) -> Any:
    return float("nan") if value is None else _plain(value) if isinstance(value, str) else value


def _plain(html: str) -> str:
    """Return HTML as text; a dollar sign would begin a formula."""
    return unescape(re.sub(r"<[^>]*>", "", html)).replace("$", r"\$")


def _read_colours() -> dict[str, str]:
    """Return the colours of the light page, by name, each as #rrggbb."""
    sheet = files("trainwright.report").joinpath("assets/page.css").read_text("utf-8")
    light = sheet[: sheet.index("}")]
    found = dict(re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6})", light))
    return {**found, "--wash": found["--blue"], "--halo": found["--surface"]}

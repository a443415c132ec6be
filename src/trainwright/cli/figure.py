"""`trainwright figure DIR NAME`: one figure of a study for a paper."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

from trainwright.cli.command import Argument, Option, Result, StudyFolder
from trainwright.errors import InputError, SearchError, closest
from trainwright.report.exports import read_state
from trainwright.report.figures.figure import Figure
from trainwright.report.figures.groups import GROUPS, FigureSource
from trainwright.report.figures.parallel_coordinates import parallel_coordinates
from trainwright.report.figures.parameters import contour, scatter
from trainwright.report.figures.studies import comparison, distribution
from trainwright.report.files import target
from trainwright.report.overview import Overview
from trainwright.report.paper import draw_paper_figure
from trainwright.search.importance import importance_of

__all__ = ["figure"]

_KINDS = (".pdf", ".svg", ".png")
_WIDTHS = 40.0, 400.0
_GROUP_OF = {"best-results": "progress", "best-time": "progress", "utilisation": "workers"}
_OF = {"slice": "lr", "contour": "lr,width", "scatter": "seconds,loss", "parallel": "lr,width,depth"}
_NEEDS = {
    "front": "it needs two objectives or more, and a result",
    "curves": "no trial has reported two epochs",
    "parallel": "it needs two results",
    "ensembles": "no trial left predictions for one (trainwright.ensemble.leave)",
    "contour": "it needs three results with both parameters",
}


def figure(
    directory: StudyFolder,
    name: Annotated[str, Argument(help="The figure; an unknown name lists all.")],
    *,
    out: Annotated[Path | None, Option(help="The file: .pdf, .svg or .png [NAME.pdf].")] = None,
    width: Annotated[str, Option(help="Its width, in millimetres.")] = "85mm",
    of: Annotated[
        str | None,
        Option(help="Names for a slice, contour, scatter or parallel, by commas [the most important parameters]."),
    ] = None,
    compare: Annotated[list[Path] | None, Option(help="A further study, for comparison and edf.")] = None,
) -> Result:
    """Draw a figure of a study for a paper: light, with text of at least 7 points at the width asked for."""
    path = target(directory, out or Path(f"{name}.pdf"), _KINDS)
    millimetres = _parse_width(width)
    source = FigureSource(overview=Overview(read_state(directory)), directory=directory)
    drawn = _find_figure(source, name, of, {str(place): Overview(read_state(place)) for place in compare or ()})
    draw_paper_figure(drawn, path, millimetres)
    content = {"figure": str(path), "title": drawn.title, "width_mm": millimetres}
    return Result(content, lambda: print(f"{drawn.title}: {path}"))


def _find_figure(source: FigureSource, name: str, of: str | None, others: Mapping[str, Overview]) -> Figure:
    """Return a figure by its own name, or the first of its group. Raises `InputError` if there is none."""
    studies = {str(source.directory): source.overview, **others}
    further: Mapping[str, Callable[[], Figure | None]] = {
        **{kind: partial(_draw_parameters, source, kind, of) for kind in _OF if kind != "parallel" or of},
        "edf": lambda: distribution(studies),
        "comparison": lambda: comparison(studies),
    }
    # A figure of a group may have a number, such as best-time-0 and curves-1.
    base = re.sub(r"-\d+$", "", name)
    group = GROUPS.get(_GROUP_OF.get(base, base))
    notes: Sequence[str] = ()
    if name in further:
        found = further[name]()
    elif group is not None:
        drawn = group.draw(source)
        # The first of its kind goes by its name alone, too: best-time for best-time-0.
        fitting = (one for one in drawn.figures if name in (*GROUPS, one.name, one.name.removesuffix("-0")))
        found, notes = next(fitting, None), drawn.notes
    else:
        known = [*GROUPS, *further, *_GROUP_OF]
        raise InputError(f"figure: {name!r} is unknown; allowed: {', '.join(known)}{closest(name, known)}")
    if found is None:
        why = notes[0].rstrip(".") if notes else _NEEDS.get(name, "no trial has what it shows")
        raise InputError(f"figure: the study in {source.directory} has no figure {name!r}: {why}")
    return found


def _draw_parameters(source: FigureSource, kind: str, of: str | None) -> Figure | None:
    """Draw a figure of named parameters; of a slice and a contour by default of the most important ones."""
    space, overview = source.space, source.overview
    if space is None:
        return None
    names, count = [name.strip() for name in of.split(",")] if of else [], _OF[kind].count(",") + 1
    if not names and kind != "scatter":
        # Of too few results nothing is known.
        with suppress(SearchError):
            names = list(importance_of(overview.state, space).ordered)
        names = list(dict.fromkeys([*names, *(column.name for column in space.columns)]))[:count]
    if kind == "parallel":
        return parallel_coordinates(overview, space, names)
    if len(names) != count:
        many = "one name" if count == 1 else "two names"
        raise InputError(f"figure: --of got {of!r}; allowed for a {kind}: {many}, such as --of {_OF[kind]}")
    if kind == "contour":
        return contour(overview, space, names[0], names[1])
    return scatter(overview, space, names[0], overview.objectives[0].metric if kind == "slice" else names[1])


def _parse_width(text: str) -> float:
    """Return a width in millimetres."""
    found = re.fullmatch(r"(\d+\.?\d*)\s*(mm)?", text.strip())
    low, high = _WIDTHS
    if found is None or not low <= float(found[1]) <= high:
        raise InputError(
            f"--width of `trainwright figure`: got {text!r}; allowed: {low:g}mm to {high:g}mm, such as 85mm"
        )
    return float(found[1])

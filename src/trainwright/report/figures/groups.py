"""All figures of a study in one ordered list of groups: the report draws every group, the live page each on request.

A group says by itself whether the study has something to draw: it returns no figure, or a note that says why not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainwright.ensemble.ensemble_settings import ChosenEnsemble
from trainwright.errors import EnsembleError, SearchError
from trainwright.report.exports import choose_study_ensemble
from trainwright.report.figures.best_so_far import best_so_far
from trainwright.report.figures.ensembles import ensemble_front
from trainwright.report.figures.figure import Figure
from trainwright.report.figures.learning_curves import learning_curves
from trainwright.report.figures.objectives import trade_offs
from trainwright.report.figures.parallel_coordinates import parallel_coordinates
from trainwright.report.figures.parameters import importance_figure, nothing_known
from trainwright.report.figures.utilisation import utilisation
from trainwright.report.overview import Overview
from trainwright.search.importance import Importance, importance_of
from trainwright.space import Space

__all__ = ["GROUPS", "DrawnGroup", "FigureGroup", "FigureSource"]

_MOST_OBJECTIVES = 3


@dataclass(frozen=True, slots=True)
class FigureSource:
    """What the groups draw from: the study, and its folder if it has one."""

    overview: Overview
    directory: Path | None = None

    @property
    def objectives(self) -> range:
        """Positions of the objectives that are drawn."""
        return range(min(len(self.overview.objectives), _MOST_OBJECTIVES))

    @property
    def space(self) -> Space | None:
        """The search space; None without one or without trials."""
        state = self.overview.state
        if state.space is None or not self.overview.trials:
            return None
        # Without requirements, which may be functions of modules that are not here; no row is drawn, only read.
        return Space.from_json({"parameters": state.space["parameters"]})


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnGroup:
    """The figures of a group, sentences on what could not be drawn, and the ensemble that was drawn, if any."""

    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()
    ensemble: ChosenEnsemble | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureGroup:
    """A section of the report and part of a view of the page; `paired` puts two figures each side by side."""

    heading: str
    draw: Callable[[FigureSource], DrawnGroup] = field(repr=False)
    paired: bool = False


def _collect_figures(*figures: Figure | None) -> DrawnGroup:
    return DrawnGroup(figures=[figure for figure in figures if figure is not None])


def _draw_trade_offs(source: FigureSource) -> DrawnGroup:
    return _collect_figures(*trade_offs(source.overview))


def _draw_progress(source: FigureSource) -> DrawnGroup:
    pairs = [best_so_far(source.overview, place) for place in source.objectives]
    return _collect_figures(*(figure for pair in pairs if pair is not None for figure in pair))


def _draw_curves(source: FigureSource) -> DrawnGroup:
    return _collect_figures(*(learning_curves(source.overview, place) for place in source.objectives))


def _draw_importance(source: FigureSource) -> DrawnGroup:
    space, state = source.space, source.overview.state
    if space is None:
        return DrawnGroup()
    found: list[tuple[Importance, str]] = []
    try:
        for place in source.objectives:
            metric = source.overview.objectives[place].metric
            found.append((importance_of(state, space, metric), metric))
    except SearchError as error:
        return DrawnGroup(notes=[f"{error}."])
    return DrawnGroup(
        figures=[figure for place, pair in enumerate(found) if (figure := importance_figure(*pair, place)) is not None],
        notes=[nothing_known(*pair) for pair in found if not pair[0].known],
    )


def _draw_parallel(source: FigureSource) -> DrawnGroup:
    space = source.space
    if space is None:
        return DrawnGroup()
    return _collect_figures(parallel_coordinates(source.overview, space))


def _draw_ensembles(source: FigureSource) -> DrawnGroup:
    if source.directory is None:
        return DrawnGroup()
    try:
        found = choose_study_ensemble(source.overview.state, source.directory)
    except EnsembleError as error:
        # A library that allows no selection must not cost the other figures.
        return DrawnGroup(notes=[f"{error}."])
    if found is None:
        return DrawnGroup()
    return DrawnGroup(figures=[ensemble_front(found)], ensemble=found)


def _draw_workers(source: FigureSource) -> DrawnGroup:
    return _collect_figures(utilisation(source.overview))


GROUPS: Mapping[str, FigureGroup] = {
    "front": FigureGroup(heading="Objectives against each other", draw=_draw_trade_offs),
    "progress": FigureGroup(heading="Progress", draw=_draw_progress, paired=True),
    "curves": FigureGroup(heading="Learning curves", draw=_draw_curves),
    "importance": FigureGroup(heading="Which parameters matter", draw=_draw_importance),
    "parallel": FigureGroup(heading="Parameters and results", draw=_draw_parallel),
    "ensembles": FigureGroup(heading="Ensembles", draw=_draw_ensembles),
    "workers": FigureGroup(heading="Workers over time", draw=_draw_workers),
}
"""By name, in the order of the report."""

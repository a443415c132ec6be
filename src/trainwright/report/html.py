"""The report of a study: one self-contained HTML file."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainwright.errors import EnsembleError, SearchError
from trainwright.ledger import Dropped, State, open_ledger, state_of, under_way
from trainwright.report import tables
from trainwright.report.ensemble_page import pictures
from trainwright.report.figures.best_so_far import best_so_far
from trainwright.report.figures.ensemble_front import ensemble_front
from trainwright.report.figures.figure import Figure
from trainwright.report.figures.hypervolume import hypervolume_figure
from trainwright.report.figures.importance import importance_figure, nothing_known
from trainwright.report.figures.learning_curves import learning_curves
from trainwright.report.figures.parallel_coordinates import parallel_coordinates
from trainwright.report.figures.planned import planned_figures
from trainwright.report.figures.trade_off import trade_offs
from trainwright.report.figures.utilisation import utilisation
from trainwright.report.files import target, write
from trainwright.report.formatting import DASH, escape
from trainwright.report.header import footer_html, header_html
from trainwright.report.overview import Overview
from trainwright.report.page import Section, figure_html, page_html
from trainwright.report.study_ensemble import Ensembles, ensembles_of
from trainwright.report.study_plans import plans_of
from trainwright.search.importance import Importance, importance_of
from trainwright.space import Space

__all__ = ["render", "write_report"]

_MOST_OBJECTIVES = 3


def write_report(directory: str | Path, path: str | Path | None = None) -> Path:
    """Write the report of the study in `directory` to `path` (by default report.html in it) and return where it is.

    An earlier report is replaced as a whole.
    """
    directory = Path(directory)
    ledger = open_ledger(directory)
    where = target(directory, directory / "report.html" if path is None else path, (".html", ".htm"))
    state = state_of(ledger)
    text = render(
        state,
        directory=directory,
        dropped=ledger.dropped(),
        study_id=ledger.study_id,
        words=under_way(ledger, state),
    )
    write(where, text)
    return where


def render(
    state: State,
    *,
    directory: Path | None = None,
    dropped: Sequence[Dropped] = (),
    study_id: str = "",
    name: str = "",
    words: Mapping[int, str] | None = None,
) -> str:
    """Return the report as HTML; `directory` is the study's folder, where the library is looked for.

    `words` are those of the trials under way (`ledger.under_way`).
    """
    overview = Overview(state, words)
    name = name or (directory.resolve().name if directory is not None else "study")
    page = _Page()
    page.add("best", "Best trials", tables.best_trials(overview))
    page.add("front", "Objectives against each other", page.drawn(*trade_offs(overview), hypervolume_figure(state)))
    goals = range(min(len(overview.objectives), _MOST_OBJECTIVES))
    pairs = [pair for goal in goals if (pair := best_so_far(overview, goal)) is not None]
    page.add("progress", "Progress", "\n".join(f'<div class="pair">{page.drawn(*pair)}</div>' for pair in pairs))
    page.add("curves", "Learning curves", page.drawn(*(learning_curves(overview, goal) for goal in goals)))
    if state.space is not None and overview.trials:
        _add_parameters(page, overview, goals)
    if directory is not None:
        _add_ensembles(page, overview, directory)
        plans = plans_of(directory)
        drawn = page.drawn(*planned_figures(overview, plans))
        page.add("plans", "Plans and forecasts", drawn + "".join(map(_sentence, plans.refused)))
    page.add("workers", "Workers over time", page.drawn(utilisation(overview)))
    page.add("failures", "Failures", _card(tables.failures(overview)))
    page.add("dropped", "Records dropped", _card(tables.dropped_records(dropped, state.unknown_kinds)))
    return page_html(
        title=f"{name} {DASH} Trainwright",
        header=header_html(overview, name=name, directory=directory, dropped=len(dropped)),
        sections=page.sections,
        figures=page.figures,
        footer=footer_html(overview, study_id=study_id, now=time.time()),
    )


@dataclass(frozen=True, slots=True)
class _Page:
    """The parts of a page so far; what is empty is left out."""

    sections: list[Section] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def add(self, name: str, heading: str, inner: str) -> None:
        if inner:
            self.sections.append((name, heading, inner))

    def drawn(self, *figures: Figure | None) -> str:
        found = [figure for figure in figures if figure is not None]
        self.figures.extend(found)
        return "\n".join(figure_html(figure, alone=len(found) == 1) for figure in found)


def _add_parameters(page: _Page, overview: Overview, goals: range) -> None:
    # Without requirements, which may be functions of modules that are not here; no row is drawn, only read.
    space = Space.from_json({"parameters": (overview.state.space or {})["parameters"]})
    found: list[Importance] = []
    refusal = ""
    try:
        found = [importance_of(overview.state, space, overview.objectives[goal].metric) for goal in goals]
    except SearchError as error:
        refusal = _sentence(f"{error}.")
    metrics = [overview.objectives[goal].metric for goal in goals[: len(found)]]
    shares = [importance_figure(*each, at) for at, each in enumerate(zip(found, metrics, strict=True))]
    unknown = [_sentence(nothing_known(*each)) for each in zip(found, metrics, strict=True) if not each[0].known]
    page.add("importance", "Which parameters matter", page.drawn(*shares) + "".join(unknown) + refusal)
    order = found[0].ordered if found else ()
    page.add("parallel", "Parameters and results", page.drawn(parallel_coordinates(overview, space, order)))


def _add_ensembles(page: _Page, overview: Overview, directory: Path) -> None:
    try:
        ensembles = ensembles_of(overview.state, directory)
    except EnsembleError as error:  # a library that allows no selection must not cost the rest of the report
        page.add("ensembles", "Ensembles", _sentence(f"{error}."))
        return
    if ensembles is not None:
        page.add(
            "ensembles",
            "Ensembles",
            page.drawn(ensemble_front(ensembles), *_pictures(ensembles)) + tables.pick(ensembles),
        )


def _pictures(ensembles: Ensembles) -> list[Figure]:
    return pictures(ensembles.chosen.report)


def _card(inner: str) -> str:
    return f'<div class="card">{inner}</div>' if inner else ""


def _sentence(text: str) -> str:
    return f'<p class="card soft">{escape(text)}</p>'

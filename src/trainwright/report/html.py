"""The report of a study, and the page of an ensemble: one self-contained HTML file each."""

import time
from collections.abc import Sequence
from pathlib import Path

from trainwright.ensemble.ensemble_settings import ChosenEnsemble
from trainwright.ledger import open_ledger, state_of
from trainwright.ledger.writers import under_way
from trainwright.report import tables
from trainwright.report.figures.ensembles import ensemble_front
from trainwright.report.figures.figure import Figure
from trainwright.report.figures.groups import GROUPS, DrawnGroup, FigureGroup, FigureSource
from trainwright.report.files import target, write
from trainwright.report.formatting import DASH, escape
from trainwright.report.header import footer_html, header_html
from trainwright.report.overview import Overview
from trainwright.report.page import Section, figure_html, page_html

__all__ = ["write_ensemble_page", "write_report"]


def write_report(directory: str | Path, path: str | Path | None = None) -> Path:
    """Write the report of the study in `directory` to `path` (by default report.html in it) and return where it is.

    An earlier report is replaced as a whole.
    """
    directory = Path(directory)
    ledger = open_ledger(directory)
    where = target(directory, directory / "report.html" if path is None else path, (".html", ".htm"))
    state, dropped, name = state_of(ledger), ledger.dropped(), directory.resolve().name
    overview = Overview(state, under_way(ledger, state))
    sections: list[Section] = [("best", "Best trials", tables.best_trials(overview))]
    figures: list[Figure] = []
    # One source for all groups: the importance of parameters orders the parallel coordinates.
    source = FigureSource(overview, directory)
    for group_name, group in GROUPS.items():
        drawn = group.draw(source)
        figures.extend(drawn.figures)
        sections.append((group_name, group.heading, _group_html(group, drawn)))
    sections += [
        ("failures", "Failures", _wrap_card(tables.failures(overview))),
        ("dropped", "Records dropped", _wrap_card(tables.dropped_records(dropped, state.unknown_kinds))),
    ]
    page = page_html(
        title=f"{name} {DASH} Trainwright",
        header=header_html(overview, name=name, directory=directory, dropped=len(dropped)),
        sections=[section for section in sections if section[2]],
        figures=figures,
        footer=footer_html(overview, study_id=ledger.study_id, now=time.time()),
    )
    write(where, page)
    return where


def write_ensemble_page(chosen: ChosenEnsemble, path: str | Path) -> Path:
    """Write the page of an ensemble and the front that it is from as one self-contained HTML file; returns its path.

    An earlier page is replaced as a whole.
    """
    where, report = Path(path), chosen.report
    front = [ensemble_front(chosen)]
    cost = f'<p class="soft">{escape(report.cost)}</p>' if report.cost else ""
    page = page_html(
        title="Ensemble",
        header=f"<h1>Ensemble of {len(chosen.ensemble.members)} from {len(chosen.library.members)} models</h1>{cost}",
        sections=[
            ("front", "Loss against cost", _figures_html(front)),
            ("members", "The ensemble", tables.pick(chosen)),
        ],
        figures=front,
        footer="",
    )
    write(where, page)
    return where


def _group_html(group: FigureGroup, drawn: DrawnGroup) -> str:
    """Return the inner HTML of a section, "" for one that has nothing to show."""
    texts = [figure_html(figure, alone=len(drawn.figures) == 1) for figure in drawn.figures]
    if group.paired:
        # Two figures side by side, in the order of the list.
        pairs = ["\n".join(texts[at : at + 2]) for at in range(0, len(texts), 2)]
        texts = [f'<div class="pair">{pair}</div>' for pair in pairs]
    notes = "".join(f'<p class="card soft">{escape(note)}</p>' for note in drawn.notes)
    return "\n".join(texts) + ("" if drawn.ensemble is None else tables.pick(drawn.ensemble)) + notes


def _wrap_card(inner: str) -> str:
    return f'<div class="card">{inner}</div>' if inner else ""


def _figures_html(figures: Sequence[Figure]) -> str:
    return "\n".join(figure_html(figure, alone=len(figures) == 1) for figure in figures)

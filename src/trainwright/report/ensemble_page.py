"""One ensemble as a page: the front it was picked from, its reliability, and how its members differ."""

from pathlib import Path

from trainwright.ensemble.ensemble_report import EnsembleReport
from trainwright.ensemble.ensemble_settings import ChosenEnsemble
from trainwright.report.figures.disagreement import disagreement_figure
from trainwright.report.figures.ensemble_front import ensemble_front
from trainwright.report.figures.figure import Figure
from trainwright.report.figures.reliability import reliability_figure
from trainwright.report.files import write
from trainwright.report.formatting import escape
from trainwright.report.page import figure_html, page_html
from trainwright.report.study_ensemble import Ensembles
from trainwright.report.tables import pick

__all__ = ["pictures", "write_ensemble_page"]


def pictures(report: EnsembleReport) -> list[Figure]:
    """Return the figures that an ensemble's report has: reliability and disagreement, as far as they apply."""
    return [figure for figure in (reliability_figure(report), disagreement_figure(report)) if figure is not None]


def write_ensemble_page(chosen: ChosenEnsemble, path: str | Path) -> Path:
    """Write the page of an ensemble and the front that it is from as one self-contained HTML file; returns its path.

    An earlier page is replaced as a whole.
    """
    where, report = Path(path), chosen.report
    told = Ensembles.of(chosen)
    drawn = {"front": [ensemble_front(told)], "members": pictures(report)}
    headings = {"front": "Loss against cost", "members": "The ensemble"}
    sections = [
        (
            name,
            headings[name],
            "\n".join(figure_html(figure, alone=len(figures) == 1) for figure in figures)
            + (pick(told) if name == "members" else ""),
        )
        for name, figures in drawn.items()
    ]
    cost = f'<p class="soft">{escape(report.cost)}</p>' if report.cost else ""
    page = page_html(
        title="Ensemble",
        header=f"<h1>Ensemble of {len(told.pick.members)} from {len(told.front.library)} models</h1>{cost}",
        sections=sections,
        figures=[figure for figures in drawn.values() for figure in figures],
        footer="",
    )
    write(where, page)
    return where

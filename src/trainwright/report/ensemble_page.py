"""One ensemble as a page: the front it was picked from, its reliability, and how its members differ."""

from pathlib import Path

from trainwright.ensemble.ensemble_settings import ChosenEnsemble
from trainwright.report.figures.ensembles import ensemble_front
from trainwright.report.figures.groups import draw_ensemble_report
from trainwright.report.files import write
from trainwright.report.formatting import escape
from trainwright.report.page import figure_html, page_html
from trainwright.report.study_ensemble import StudyEnsemble
from trainwright.report.tables import pick

__all__ = ["write_ensemble_page"]


def write_ensemble_page(chosen: ChosenEnsemble, path: str | Path) -> Path:
    """Write the page of an ensemble and the front that it is from as one self-contained HTML file; returns its path.

    An earlier page is replaced as a whole.
    """
    where, report = Path(path), chosen.report
    found = StudyEnsemble.of(chosen)
    drawn = {"front": [ensemble_front(found)], "members": draw_ensemble_report(report)}
    headings = {"front": "Loss against cost", "members": "The ensemble"}
    sections = [
        (
            name,
            headings[name],
            "\n".join(figure_html(figure, alone=len(figures) == 1) for figure in figures)
            + (pick(found) if name == "members" else ""),
        )
        for name, figures in drawn.items()
    ]
    cost = f'<p class="soft">{escape(report.cost)}</p>' if report.cost else ""
    page = page_html(
        title="Ensemble",
        header=f"<h1>Ensemble of {len(found.pick.members)} from {len(found.front.library)} models</h1>{cost}",
        sections=sections,
        figures=[figure for figures in drawn.values() for figure in figures],
        footer="",
    )
    write(where, page)
    return where

"""How often members of an ensemble give different answers: a square of shares, member against member."""

import numpy as np

from trainwright.ensemble.ensemble_report import EnsembleReport
from trainwright.report.figures.figure import Figure, axis, layout, rounded
from trainwright.report.formatting import escape, number

__all__ = ["disagreement_figure"]

_MOST_WRITTEN = 12  # members whose shares have room in their cells


def disagreement_figure(report: EnsembleReport) -> Figure | None:
    """Return the figure; None for one member, or without rows to compare on."""
    if len(report.disagreement) < 2:
        return None
    trials = sorted(row["trial"] for row in report.members)
    names = [f"trial {trial}" for trial in trials]
    difference = np.array(report.disagreement)
    classes = report.output == "classes"
    form = ".1%" if classes else ".3g"
    pairs = difference[np.triu_indices(len(difference), 1)]
    content = f"{pairs.mean():.1%} of rows" if classes else f"{number(float(pairs.mean()), 3)}"
    correlation = (
        f" The correlation of their errors is {number(report.error_correlation, 3)}; a low one promises gain."
        if report.error_correlation is not None
        else ""
    )
    return Figure(
        name="disagreement",
        title="Disagreement of members",
        caption=(
            f"{'Share of rows with different classes' if classes else 'Root mean square of the difference'}, on "
            f"{escape(report.rows, 30)} rows; on average {content} a pair.{correlation}"
        ),
        data=[
            {
                "type": "heatmap",
                "x": names,
                "y": names,
                "z": [rounded(row) for row in difference],
                "colorscale": [[0, "--surface"], [1, "--blue"]],
                "hovertemplate": f"%{{y}} and %{{x}}: %{{z:{form}}}<extra></extra>",
                "zformat": form if len(names) <= _MOST_WRITTEN else "",
            }
        ],
        layout=layout(xaxis=axis(), yaxis=axis(autorange="reversed")),
        height=120 + 36 * len(names),
    )

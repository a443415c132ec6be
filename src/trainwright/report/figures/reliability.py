"""Reliability of an ensemble: how often it is right against how sure it is, before and after calibration."""

from trainwright.ensemble.ensemble_report import EnsembleReport
from trainwright.report.figures.figure import Figure, axis, layout, rounded
from trainwright.report.formatting import escape, number

__all__ = ["reliability_figure"]


def reliability_figure(report: EnsembleReport) -> Figure | None:
    """Return the figure; None for predictions that are no classes."""
    if not report.reliability or report.before is None:
        return None
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "calibrated",
            "x": [0, 1],
            "y": [0, 1],
            "line": {"color": "--muted", "width": 1, "dash": "dot"},
            "hoverinfo": "skip",
        }
    ]
    for name, colour in (("before", "--blue"), ("after", "--orange")):
        if name in report.reliability:
            curve = report.reliability[name]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": f"{name} temperature" if report.calibration else "ensemble",
                    "x": rounded(curve["confidence"]),
                    "y": rounded(curve["accuracy"]),
                    "customdata": list(curve["rows"]),
                    "marker": {"color": colour, "size": 7},
                    "line": {"color": colour, "width": 1.5},
                    "hovertemplate": "%{customdata} rows: %{x:.3f} sure, %{y:.3f} right<extra></extra>",
                }
            )
    return Figure(
        name="reliability",
        title="Is the ensemble as sure as it is right?",
        caption=_write_caption(report),
        data=traces,
        layout=layout(
            xaxis=axis("mean probability of the likeliest class", range=[0, 1.02]),
            yaxis=axis("share of right answers", range=[0, 1.02]),
        ),
        height=360,
    )


def _write_caption(report: EnsembleReport) -> str:
    before, after = report.before or {}, report.after
    text = (
        f"On {before['rows']:,} {escape(report.rows, 30)} rows, in bins of equal size: below the line it is too sure,"
        f" above it not sure enough. Expected calibration error {number(before['ece'], 3)} (95 % interval "
        f"{number(before['ece_low'], 3)} to {number(before['ece_high'], 3)})"
    )
    content = report.calibration
    if after is None or content is None:
        return text + "."
    if content["applied"] == 1.0:
        return text + f"; temperature {number(content['fitted'], 3)} gains less than its error: not used."
    return text + f"; with temperature {number(content['applied'], 3)} it is {number(after['ece'], 3)}."

"""How the front grew: the volume between it and the reference point, over the number of results."""

import numpy as np

from trainwright.errors import StudyError
from trainwright.ledger import State
from trainwright.report.figures.figure import Figure, axis, layout, rounded, thinned
from trainwright.report.formatting import count, number
from trainwright.study.results import Results

__all__ = ["hypervolume_figure"]

_MOST_POINTS = 1500


def hypervolume_figure(state: State) -> Figure | None:
    """Return the figure, or None for one objective and before there is a reference point."""
    try:
        course = Results.of(state).hypervolume_over_time()
    except StudyError:
        return None
    numbers, volumes = zip(*course, strict=True)
    # Rises are never thinned away: between them the volume is constant.
    rises = np.flatnonzero(np.diff(volumes, prepend=0.0) > 0.0)
    thin = thinned(len(volumes), _MOST_POINTS, rises.tolist())
    last = f"The last of {count(len(rises), 'rise')} came as result {rises[-1] + 1:,}. " if len(rises) else ""
    return Figure(
        name="hypervolume",
        title="Hypervolume over results",
        caption=f"The volume that the front dominates is {number(volumes[-1])} after "
        f"{count(len(volumes), 'result')}. {last}It reaches from the front to a point a tenth of the range beyond the "
        "worst of the first results, and counts feasible results only.",
        data=[
            {
                "type": "scatter",
                "mode": "lines",
                "name": "hypervolume",
                "x": (thin + 1).tolist(),
                "y": rounded(np.array(volumes)[thin]),
                "customdata": [numbers[at] for at in thin.tolist()],
                "line": {"color": "--orange", "width": 2.5, "shape": "hv"},
                "hovertemplate": "trial %{customdata}: %{y:.4g}<extra></extra>",
            }
        ],
        layout=layout(
            xaxis=axis("results", rangemode="tozero"),
            yaxis=axis("hypervolume", rangemode="tozero"),
        ),
    )

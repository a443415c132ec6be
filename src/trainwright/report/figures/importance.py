"""Which parameters matter: each one's share of what a forest, fitted to the results, explains."""

from trainwright.report.figures.figure import Figure, axis, layout, rounded
from trainwright.report.words import count, escape
from trainwright.search.importance import Importance

__all__ = ["importance_figure"]

_MOST = 25


def importance_figure(importance: Importance, metric: str, objective: int = 0) -> Figure:
    """Return the shares as bars, the greatest first."""
    order = sorted(range(len(importance.names)), key=lambda at: -importance.shares[at])[:_MOST]
    names = [escape(importance.names[at], 30) for at in order]
    shares = [importance.shares[at] for at in order]
    first = ", then ".join(f"{name} ({share:.0%})" for name, share in list(zip(names, shares, strict=True))[:2])
    known = (
        f"A forest fitted to {count(importance.results, 'result')} explains {importance.explained:.0%} "
        "of how unseen ones rank."
    )
    if importance.explained < 0.3:
        known += " That is little: read the shares as a hint, no more."
    if importance.stopped > importance.results / 2:
        known += " Most were stopped early, so what makes for a fast start weighs more than it would at the end."
    cut = f" The {_MOST} greatest of {len(importance.names)} are drawn." if len(importance.names) > _MOST else ""
    return Figure(
        name=f"importance-{objective}",
        title=f"What moves {escape(metric, 40)}",
        caption=f"The most important is {first}. {known}{cut}",
        data=[
            {
                "type": "bar",
                "y": names[::-1],
                "x": rounded(shares[::-1], 4),
                "text": [f"{share:.0%}" for share in shares[::-1]],
                "textposition": "outside",
                "marker": {"color": "--blue"},
                "hovertemplate": "%{y}: %{x:.1%}<extra></extra>",
            }
        ],
        layout=layout(
            xaxis=axis("share", tickformat=".0%", rangemode="tozero", nticks=6),
            yaxis=axis(type="category", showgrid=False),
            bargap=0.35,
        ),
        height=90 + 28 * len(order),
    )

"""Draws parameter importance: each one's share of the variance of a metric, with its interval, where it is known."""

from trainwright.report.figures.figure import Figure, axis, draw_lines, draw_trace, layout, rounded
from trainwright.report.formatting import count, escape
from trainwright.search.importance import Importance

__all__ = ["importance_figure", "nothing_known"]

_MOST = 25


def importance_figure(importance: Importance, metric: str, objective: int = 0) -> Figure | None:
    """Return the shares of the parameters that are known to matter as bars, the greatest first; None if none is."""
    known = importance.known[:_MOST]
    if not known:
        return None
    at = [importance.names.index(name) for name in known]
    names = [escape(name, 30) for name in known]
    shares = [importance.shares[place] for place in at]
    # Half-samples differ by what chance gave them: that is the interval.
    intervals = [rounded([importance.low[place], importance.high[place]], 4) for place in at]
    first = ", then ".join(f"{name} ({share:.0%})" for name, share in list(zip(names, shares, strict=True))[:2])
    others = len(importance.names) - len(importance.known)
    cut = f" The {_MOST} greatest of {len(importance.known)} are drawn." if len(importance.known) > _MOST else ""
    rest = f" It is not known whether {count(others, 'other parameter')} had an effect." if others else ""
    return Figure(
        name=f"importance-{objective}",
        title=f"What moves {escape(metric, 40)}{_when(importance)}",
        caption=(
            f"The most important is {first}; lines are 90 % intervals, from half-samples of "
            f"{count(importance.results, 'result')}. Half of them predict {importance.explained:.0%} of the variance "
            f"of the others.{rest}{cut}"
        ),
        data=[
            draw_trace(
                "bar",
                "share",
                rounded(shares[::-1], 4),
                names[::-1],
                "%{y}: %{x:.1%} (%{customdata[0]:.1%} to %{customdata[1]:.1%})",
                marker={"color": "--blue"},
                showlegend=False,
                customdata=intervals[::-1],
            ),
            *(
                draw_lines("90 % interval", interval, [name, name], "--ink", showlegend=False)
                for name, interval in zip(names, intervals, strict=True)
            ),
        ],
        layout=layout(
            xaxis=axis("share", tickformat=".0%", rangemode="tozero", nticks=6),
            yaxis=axis(type="category", showgrid=False),
            bargap=0.35,
        ),
        height=90 + 28 * len(known),
    )


def nothing_known(importance: Importance, metric: str) -> str:
    """Return the sentence for a study of which no parameter is known to matter."""
    results = count(importance.results, "result")
    return f"{results}{_when(importance)} do not tell yet which parameters move {metric}."


def _when(importance: Importance) -> str:
    return "" if importance.epoch is None else f" at epoch {importance.epoch:,}"

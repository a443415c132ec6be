"""Strategies of the oracle: what a training iteration takes under each, part by part, for each number of devices."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainwright.plan.memory.budget import format_bytes
from trainwright.report.figures.figure import Figure, Json, axis, layout, rounded
from trainwright.report.formatting import count, escape, number

__all__ = ["strategies_figures"]

_MOST, _MOST_FIGURES = 12, 4
_PARTS = (
    ("compute", ("compute", "framework"), "--blue"),
    ("communication", ("communication",), "--orange"),
    ("bubble", ("bubble",), "--muted"),
    ("input", ("input",), "--green"),
    ("update, saves", ("update", "checkpoint"), "--sky"),
)
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def strategies_figures(content: Mapping[str, Any], name: str) -> Iterator[Figure]:
    """Yield a figure per number of devices, at most four, of what `trainwright plan --json` has said."""
    plans = [plan for plan in content.get("plans", ()) if isinstance(plan, Mapping) and _read_seconds(plan) > 0]
    numbers = sorted({plan.get("devices", 0) for plan in plans})
    profile = content.get("profile")
    model = str(profile.get("name", "")) if isinstance(profile, Mapping) else ""
    for devices in numbers[:_MOST_FIGURES]:
        ranked = sorted((plan for plan in plans if plan.get("devices") == devices), key=_read_seconds)
        yield _draw_strategies(ranked, devices, name, model, len(content.get("rejected", ())))


def _draw_strategies(ranked: list[Mapping[str, Any]], devices: int, name: str, model: str, rejected: int) -> Figure:
    drawn = ranked[:_MOST]
    slowest = _read_seconds(drawn[-1])
    per, unit = next((item for item in _TIMES if slowest >= item[0]), _TIMES[-1])
    labels: list[str] = []
    for plan in drawn:
        label = escape(plan.get("strategy", "?"), 30)
        labels.append(label if label not in labels else f"{label} ({len(labels) + 1})")
    bases = [0.0] * len(drawn)
    traces: list[Json] = []
    for part, names, colour in _PARTS:
        lengths = [sum(_read_part(plan, item) for item in names) / per for plan in drawn]
        if any(lengths):
            traces.append(
                {
                    "type": "bar",
                    "name": part,
                    "y": labels,
                    "x": rounded(lengths, 4),
                    "base": rounded(bases, 4),
                    "customdata": [_hover_text(plan) for plan in drawn],
                    "marker": {"color": colour},
                    "hovertemplate": f"%{{y}}: %{{x:.3g}} {unit} of {part}; %{{customdata}}<extra></extra>",
                }
            )
            bases = [base + length for base, length in zip(bases, lengths, strict=True)]
    best = drawn[0]
    out = f" {count(rejected, 'strategy', 'strategies')} cannot be used." if rejected else ""
    return Figure(
        name=f"strategies-{escape(name, 30)}-{devices}",
        title=f"Strategies on {count(devices, 'device')}{f': {escape(model, 30)}' if model else ''}",
        caption=f"Predicted {unit} of one iteration, the fastest on top: {labels[0]} with "
        f"{number(_read_seconds(best) / per, 3)} {unit} and a peak of {format_bytes(int(best.get('peak_bytes', 0)))} "
        f"a device. {count(len(drawn), 'strategy', 'strategies')} of {len(ranked)}.{out} From {escape(name, 60)}.json.",
        data=traces,
        layout=layout(
            xaxis=axis(f"{unit} an iteration", rangemode="tozero"),
            yaxis=axis(type="category", categoryarray=labels[::-1], showgrid=False),
            bargap=0.35,
        ),
        height=110 + 30 * len(drawn),
    )


def _read_seconds(plan: Mapping[str, Any]) -> float:
    value = plan.get("seconds_per_iteration")
    return float(value) if isinstance(value, int | float) else 0.0


def _read_part(plan: Mapping[str, Any], name: str) -> float:
    parts = plan.get("breakdown")
    value = parts.get(name) if isinstance(parts, Mapping) else None
    return float(value) if isinstance(value, int | float) else 0.0


def _hover_text(plan: Mapping[str, Any]) -> str:
    return f"{number(_read_seconds(plan), 3)} s in all"

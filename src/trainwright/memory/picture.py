"""A picture of a plan: memory over time by owner, the lanes of compute and copies below, and the budget's line."""

from html import escape
from pathlib import Path

from trainwright.errors import BudgetError
from trainwright.files import write_text
from trainwright.memory.budget import readable
from trainwright.memory.plan_record import Plan

__all__ = ["draw"]

_WIDTH, _HEIGHT, _LANE, _LEFT, _TOP = 960, 320, 22, 90, 30
_OWNERS = (
    ("fixed_bytes", "fixed", "#9aa0a6"),
    ("parameter_gradient_bytes", "parameters' gradients", "#ff9da6"),
    ("output_bytes", "outputs", "#4c78a8"),
    ("saved_bytes", "saved values", "#72b7b2"),
    ("gradient_bytes", "gradients", "#e45756"),
    ("temporary_bytes", "temporaries", "#f2cf5b"),
)
_LANES = (("compute", "#4c78a8"), ("to host", "#b279a2"), ("to device", "#54a24b"))


def draw(plan: Plan, path: str | Path) -> None:
    """Write the picture of a plan as an .svg file."""
    if Path(path).suffix != ".svg":
        raise BudgetError(f"plot: got {str(path)!r}; allowed: a file name that ends with .svg")
    write_text(path, "picture", _svg(plan))


def _svg(plan: Plan) -> str:
    simulation = plan.simulation
    seconds = simulation.seconds or 1.0
    most = max(plan.budget_bytes, simulation.peak_bytes) * 1.05

    def x(second: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 20) * second / seconds

    def y(count: float) -> float:
        return _TOP + _HEIGHT * (1 - count / most)

    title = (
        f"{plan.chain.name or 'chain'}: {seconds:.4g} s, peak {readable(simulation.peak_bytes)} of "
        f"{readable(plan.budget_bytes)}, overhead {100 * plan.overhead:.1f} %"
    )
    box = f"0 0 {_WIDTH} {_TOP + _HEIGHT + 5 * _LANE + 30}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="11">',
        f'<text x="{_LEFT}" y="14">{escape(title)}</text>',
    ]
    points = simulation.points
    ends = [*(point.seconds for point in points[1:]), seconds]
    below = [0.0] * len(points)
    for place, (attribute, name, colour) in enumerate(_OWNERS):
        tops = [base + getattr(point, attribute) for base, point in zip(below, points, strict=True)]
        upper = [f"{x(at):.1f},{y(top):.1f}" for point, end, top in zip(points, ends, tops, strict=True)
                 for at in (point.seconds, end)]  # fmt: skip
        lower = [f"{x(at):.1f},{y(base):.1f}" for point, end, base in zip(points, ends, below, strict=True)
                 for at in (point.seconds, end)]  # fmt: skip
        parts.append(f'<polygon fill="{colour}" points="{" ".join([*upper, *reversed(lower)])}"/>')
        parts.append(f'<rect x="{_LEFT + 130 * place}" y="18" width="9" height="9" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + 13 + 130 * place}" y="27">{name}</text>')
        below = tops
    line = y(plan.budget_bytes)
    parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{line:.1f}" y2="{line:.1f}" stroke="black" '
                 'stroke-dasharray="6 3"/>')  # fmt: skip
    parts.append(f'<text x="4" y="{line + 4:.1f}">{readable(plan.budget_bytes)}</text>')
    parts.append(f'<text x="4" y="{_TOP + _HEIGHT:.1f}">0 B</text>')
    for row, (lane, colour) in enumerate(_LANES):
        top = _TOP + _HEIGHT + 10 + row * (_LANE + 4)
        parts.append(f'<text x="4" y="{top + 15}">{lane}</text>')
        for span in simulation.spans:
            if span.lane == lane and span.end_seconds > span.start_seconds:
                width = max(0.5, x(span.end_seconds) - x(span.start_seconds))
                parts.append(
                    f'<rect x="{x(span.start_seconds):.1f}" y="{top}" width="{width:.1f}" height="{_LANE}" '
                    f'fill="{colour}" stroke="white" stroke-width="0.3">'
                    f"<title>{escape(str(plan.operations[span.operation]))}</title></rect>"
                )
    return "\n".join([*parts, "</svg>"]) + "\n"

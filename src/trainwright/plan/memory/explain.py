"""What a plan does with each stage, who holds the bytes at its peak, and a picture of both over time.

The picture has memory by owner, the lanes of compute and copies below, and the budget's line. Temporaries of a backward
are negative where it lets go of what it has read before it is done: that is taken off the gradients and saved values.
"""

from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path

from trainwright.errors import BudgetError
from trainwright.files import write_text
from trainwright.plan.byte_sizes import format_bytes
from trainwright.plan.memory.operations import OperationKind
from trainwright.plan.memory.plan_record import Plan
from trainwright.plan.memory.simulate import MemoryPoint

__all__ = [
    "StageReport",
    "draw_timeline",
    "explain_plan",
]

_FORWARDS = {OperationKind.FORWARD_ALL, OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP}


@dataclass(frozen=True, kw_only=True, slots=True)
class StageReport:
    """One stage of a plan."""

    stage: int
    name: str
    fate: str
    """"kept" (saved at its first forward), "recomputed", and "offloaded" where a value of it waits on the host."""
    forwards: int
    option: str
    """How it is saved in the end."""
    saved_bytes: int
    """Bytes that are not held between its first forward and its backward."""
    paid_seconds: float
    """Seconds of its forwards but one, and what its option takes more than the stage's own."""


def explain_plan(plan: Plan) -> tuple[StageReport, ...]:
    """Return what a plan does with each stage, the loss stage last."""
    first: dict[int, OperationKind] = {}
    runs: Counter[int] = Counter()
    options: dict[int, int] = {}
    away = {operation.stage for operation in plan.operations if operation.kind is OperationKind.OFFLOAD}
    times: dict[int, float] = {}
    for operation in plan.operations:
        stage = operation.stage
        step = plan.chain.steps[stage - 1]
        if operation.kind in _FORWARDS:
            first.setdefault(stage, operation.kind)
            runs[stage] += 1
            saves = operation.kind is OperationKind.FORWARD_ALL
            times[stage] = times.get(stage, 0.0) + (
                step.choices[operation.option].forward_seconds if saves else step.no_grad_seconds
            )
            if saves:
                options[stage] = operation.option
        elif operation.kind is OperationKind.BACKWARD:
            times[stage] = times.get(stage, 0.0) + step.choices[options[stage]].backward_seconds
    reports = []
    for stage, step in enumerate(plan.chain.steps, start=1):
        option = step.choices[options[stage]]
        kept = first[stage] is OperationKind.FORWARD_ALL and runs[stage] == 1
        fate = "kept" if kept else "recomputed"
        held = option.saved_bytes if kept and stage not in away else 0
        reports.append(
            StageReport(
                stage=stage,
                name=step.name,
                fate=f"{fate}, offloaded" if stage in away else fate,
                forwards=runs[stage],
                option=option.name,
                saved_bytes=step.saved_bytes - held,
                paid_seconds=times[stage] - step.forward_seconds - step.backward_seconds,
            )
        )
    return tuple(reports)


_WIDTH, _HEIGHT, _LANE, _LEFT, _TOP = 960, 320, 22, 90, 30
_OWNERS = (
    ("fixed_bytes", "fixed", "#9aa0a6"),
    ("parameter_gradient_bytes", "weight gradients", "#ff9da6"),
    ("output_bytes", "outputs", "#4c78a8"),
    ("saved_bytes", "saved values", "#72b7b2"),
    ("gradient_bytes", "gradients", "#e45756"),
    ("temporary_bytes", "temporaries", "#f2cf5b"),
)
_COPIES = (("to host", "#b279a2"), ("to device", "#54a24b"))
_WORKS = (("forward", "#4c78a8"), ("forward again", "#f58518"), ("backward", "#8c6d8c"))


def draw_timeline(plan: Plan, path: str | Path) -> None:
    """Write the picture of a plan as an .svg file."""
    if Path(path).suffix != ".svg":
        raise BudgetError(f"plot: got {str(path)!r}; allowed: a file name that ends with .svg")
    write_text(path, "picture", _render_svg(plan))


def _render_svg(plan: Plan) -> str:
    simulation = plan.simulation
    seconds = simulation.seconds or 1.0
    most = max(plan.budget_bytes, simulation.peak_bytes) * 1.05

    def x(second: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 20) * second / seconds

    def y(count: float) -> float:
        return _TOP + _HEIGHT * (1 - count / most)

    title = (
        f"{plan.chain.name or 'chain'}: {seconds:.4g} s, peak {format_bytes(simulation.peak_bytes)} of "
        f"{format_bytes(plan.budget_bytes)}, overhead {100 * plan.overhead:.1f} %"
    )
    lanes = _lane_blocks(plan)
    bottom = _TOP + _HEIGHT + 10 + len(lanes) * (_LANE + 4)
    box = f"0 0 {_WIDTH} {bottom + 2 * _LANE}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="11">',
        f'<text x="{_LEFT}" y="14">{escape(title)}</text>',
    ]
    points = simulation.points
    ends = [*(point.seconds for point in points[1:]), seconds]
    # Bands stand on one another: each begins where the one before it ends.
    below = [0.0] * len(points)
    heights = [_band_heights(point) for point in points]
    for place, (attribute, name, colour) in enumerate(_OWNERS):
        tops = [base + height[attribute] for base, height in zip(below, heights, strict=True)]
        upper = [f"{x(at):.1f},{y(top):.1f}" for point, end, top in zip(points, ends, tops, strict=True)
                 for at in (point.seconds, end)]  # fmt: skip
        lower = [f"{x(at):.1f},{y(base):.1f}" for point, end, base in zip(points, ends, below, strict=True)
                 for at in (point.seconds, end)]  # fmt: skip
        parts.append(f'<polygon fill="{colour}" points="{" ".join([*upper, *reversed(lower)])}"/>')
        parts.append(f'<rect x="{_LEFT + 124 * place}" y="18" width="9" height="9" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + 13 + 124 * place}" y="27">{name}</text>')
        below = tops
    line = y(plan.budget_bytes)
    parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{line:.1f}" y2="{line:.1f}" stroke="black" '
                 'stroke-dasharray="6 3"/>')  # fmt: skip
    parts.append(f'<text x="4" y="{line + 4:.1f}">{format_bytes(plan.budget_bytes)}</text>')
    parts.append(f'<text x="4" y="{_TOP + _HEIGHT:.1f}">0 B</text>')
    for row, (lane, blocks) in enumerate(lanes.items()):
        top = _TOP + _HEIGHT + 10 + row * (_LANE + 4)
        parts.append(f'<text x="4" y="{top + 15}">{lane}</text>')
        for start, end, operation, colour in blocks:
            width = max(0.5, x(end) - x(start))
            parts.append(
                f'<rect x="{x(start):.1f}" y="{top}" width="{width:.1f}" height="{_LANE}" fill="{colour}" '
                f'stroke="white" stroke-width="0.3"><title>{escape(operation)}</title></rect>'
            )
    parts.append(f'<text x="{_LEFT}" y="{bottom + 10}">0 s</text>')
    parts.append(f'<text x="{_WIDTH - 20}" y="{bottom + 10}" text-anchor="end">{seconds:.4g} s</text>')
    for place, (name, colour) in enumerate(_WORKS, start=1):
        parts.append(f'<rect x="{_LEFT + 130 * place}" y="{bottom + 1}" width="9" height="9" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + 13 + 130 * place}" y="{bottom + 10}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _band_heights(point: MemoryPoint) -> dict[str, int]:
    """Return what is drawn of each owner, never below 0."""
    found = {attribute: getattr(point, attribute) for attribute, _, _ in _OWNERS}
    # Negative temporaries are values that a backward frees while it runs.
    gone = max(0, -point.temporary_bytes)
    found["temporary_bytes"] += gone
    for attribute in ("gradient_bytes", "saved_bytes"):
        less = min(gone, found[attribute])
        found[attribute] -= less
        gone -= less
    return found


def _lane_blocks(plan: Plan) -> dict[str, list[tuple[float, float, str, str]]]:
    """Return start, end, operation and colour of what takes time, by lane; lanes of copies if there are any."""
    colours, works, copies = {}, dict(_WORKS), dict(_COPIES)
    ran: set[int] = set()
    for place, operation in enumerate(plan.operations):
        if operation.value is None:
            backward = operation.kind is OperationKind.BACKWARD
            name = "backward" if backward else "forward again" if operation.stage in ran else "forward"
            colours[place] = works[name]
            ran.add(operation.stage)
    lanes: dict[str, list[tuple[float, float, str, str]]] = {"compute": []}
    for span in plan.simulation.spans:
        if span.end_seconds > span.start_seconds:
            colour = colours[span.operation] if span.lane == "compute" else copies[span.lane]
            block = span.start_seconds, span.end_seconds, str(plan.operations[span.operation]), colour
            lanes.setdefault(span.lane, []).append(block)
    return lanes

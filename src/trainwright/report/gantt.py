"""A Gantt picture of simulated studies: who held which devices when, as one SVG that needs nothing else."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from trainwright.engine.simulated.record import DeviceHold, SimulatedStudy
from trainwright.errors import InputError
from trainwright.files import write_text
from trainwright.report.formatting import escape

__all__ = ["check_gantt", "gantt_svg", "write_gantt"]

_WIDTH, _LEFT, _RIGHT, _TOP, _BELOW = 1100, 64, 20, 44, 40
_TALLEST, _LOW = 360, 120  # of a panel's plot
_SHADES = ("#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#08519c", "#08306b")  # by doublings of a trial's devices
_MARKS = {"full": "#1a7f37", "failed": "#d1242f", "node lost": "#d1242f", "stalled": "#bf8700"}
_SAID = {
    "full": "had its whole length", "stopped": "was stopped", "pause": "paused at a rung", "resize": "moved on",
    "rest": "waited for more devices", "failed": "failed", "node lost": "lost a node", "stalled": "waits for ever",
}  # fmt: skip


def check_gantt(path: Path) -> None:
    """Refuse any other ending than .svg or .html, before anything is simulated."""
    if path.suffix not in {".svg", ".html"}:
        raise InputError(f"--gantt: {path} ends in {path.suffix or 'nothing'!r}; allowed: .svg, .html")
    if not path.parent.is_dir():
        raise InputError(f"--gantt: there is no folder {path.parent}; make it, or give another")


def write_gantt(path: Path, panels: Mapping[str, tuple[int, SimulatedStudy]]) -> None:
    """Write the picture of several runs by name, each with the devices of its cluster."""
    svg = gantt_svg(panels)
    if path.suffix == ".html":
        svg = (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Simulated studies</title>'
            "<style>body{margin:1rem;font-family:system-ui,sans-serif}svg{max-width:100%;height:auto}</style></head>"
            f"<body>\n{svg}\n</body></html>\n"
        )
    write_text(path, "picture", svg)


def gantt_svg(panels: Mapping[str, tuple[int, SimulatedStudy]]) -> str:
    """Return the picture: a panel a run, all on one axis of time; a bar is a trial on its devices."""
    longest = max((run.makespan_seconds for _, run in panels.values()), default=0.0) or 1.0
    unit, seconds = next(((name, item) for name, item in (("h", 3600), ("min", 60)) if longest >= 2 * item), ("s", 1))
    axis = _Axis((_WIDTH - _LEFT - _RIGHT) / longest, seconds, unit)
    parts: list[str] = []
    y = 34.0
    for name, (devices, run) in panels.items():
        height = min(_TALLEST, max(_LOW, devices * 12))
        parts += _draw_panel(name, devices, run, (y + _TOP, height), axis)
        y += _TOP + height + _BELOW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y:.0f}" width="{_WIDTH}" height="{y:.0f}" '
        'font-family="system-ui,sans-serif" font-size="12" fill="#1f2328" role="img" '
        'aria-label="Who held which devices when">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f"{_draw_legend(panels)}\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _draw_legend(panels: Mapping[str, tuple[int, SimulatedStudy]]) -> str:
    sizes = sorted({len(bar.block) for _, run in panels.values() for bar in run.gantt})
    entries = [(_bar_shade(size), f"{size} device{'s' * (size > 1)}") for size in sizes[:8]]
    ends = {bar.why for _, run in panels.values() for bar in run.gantt}
    marks = {"full": "whole length", "failed": "failed, node lost", "stalled": "waits for ever"}
    entries += [
        (_MARKS[why], said) for why, said in marks.items() if why in ends or (why == "failed" and "node lost" in ends)
    ]
    x, parts = float(_LEFT), []
    for colour, said in entries:
        parts.append(f'<rect x="{x:.0f}" y="12" width="14" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 19:.0f}" y="22">{said}</text>')
        x += 34 + 6.6 * len(said)
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Axis:
    scale: float  # pixels a second
    seconds: int  # of a unit
    unit: str


def _draw_panel(name: str, devices: int, run: SimulatedStudy, place: tuple[float, float], axis: _Axis) -> Iterator[str]:
    top, height = place
    scale, seconds, unit = axis.scale, axis.seconds, axis.unit
    row = height / devices
    end = _LEFT + run.makespan_seconds * scale
    busy = (
        f"{100 * run.utilisation:.0f} % busy, {run.full} full, done after {run.makespan_seconds / seconds:.1f} {unit}"
    )
    yield f'<text x="{_LEFT}" y="{top - 10:.0f}" font-weight="600">{escape(name)}</text>'
    yield f'<text x="{_WIDTH - _RIGHT}" y="{top - 10:.0f}" text-anchor="end" fill="#59636e">{busy}</text>'
    width = _WIDTH - _LEFT - _RIGHT
    yield f'<rect x="{_LEFT}" y="{top:.0f}" width="{width}" height="{height:.0f}" fill="#f6f8fa"/>'
    for bar in run.gantt:
        yield from _draw_bar(bar, top, row, scale)
    yield f'<line x1="{end:.1f}" x2="{end:.1f}" y1="{top - 3:.0f}" y2="{top + height + 3:.0f}" stroke="#1f2328"/>'
    yield f'<text x="{_LEFT - 8}" y="{top + 10:.0f}" text-anchor="end" fill="#59636e">0</text>'
    yield f'<text x="{_LEFT - 8}" y="{top + height:.0f}" text-anchor="end" fill="#59636e">{devices - 1}</text>'
    yield (
        f'<text transform="translate({_LEFT - 34},{top + height / 2:.0f}) rotate(-90)" text-anchor="middle" '
        'fill="#59636e">device</text>'
    )
    step = _tick_step(width / scale / seconds)
    for tick in range(int(width / scale / seconds / step) + 1):
        x = _LEFT + tick * step * seconds * scale
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + height:.0f}" y2="{top + height + 4:.0f}" stroke="#59636e"/>'
        yield (
            f'<text x="{x:.1f}" y="{top + height + 17:.0f}" text-anchor="middle" fill="#59636e">{tick * step:g}'
            f"{f' {unit}' if tick == 0 else ''}</text>"
        )


def _draw_bar(bar: DeviceHold, top: float, row: float, scale: float) -> Iterator[str]:
    """Yield a rectangle for each run of neighbours in a block; how a trial ended marks its right edge."""
    x, width = _LEFT + bar.start * scale, max(0.4, (bar.end - bar.start) * scale)
    said = f"trial {bar.trial}: {len(bar.block)} devices, {bar.start:.0f} to {bar.end:.0f} s, {_SAID[bar.why]}"
    # A hairline between bars, unless they are too short for one.
    gap = min(0.6, width / 8)
    for _, group in groupby(enumerate(bar.block), key=lambda pair: pair[1] - pair[0]):
        slots = [slot for _, slot in group]
        y, height = top + slots[0] * row, len(slots) * row
        inner = max(0.2, height - min(0.8, row / 5))
        yield (
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width - gap:.2f}" height="{inner:.2f}" '
            f'fill="{_bar_shade(len(bar.block))}"><title>{said}</title></rect>'
        )
        if bar.why in _MARKS:
            mark = min(3.0, width)
            yield (
                f'<rect x="{x + width - gap - mark:.2f}" y="{y:.2f}" width="{mark:.2f}" height="{inner:.2f}" '
                f'fill="{_MARKS[bar.why]}"/>'
            )


def _bar_shade(size: int) -> str:
    return _SHADES[min(len(_SHADES) - 1, size.bit_length() - 1)]


def _tick_step(length: float) -> float:
    """Return a round step that cuts a length into about eight."""
    # About eight ticks, at a round number of units.
    raw = max(length / 8, 1e-9)
    power: float = 10.0 ** math.floor(math.log10(raw))
    return next(power * item for item in (1, 2, 5, 10) if power * item >= raw)

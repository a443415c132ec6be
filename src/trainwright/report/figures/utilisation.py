"""Draws the utilisation timeline (Gantt chart): a bar for each run of a trial on its slot, and the busy share.

Of very many runs or slots the share alone is drawn: bars by the thousand can neither be read nor drawn quickly.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.ledger import TrialState
from trainwright.ledger.trials import Lease
from trainwright.report.figures.figure import Figure, Json, axis, draw_lines, draw_trace, layout, rounded
from trainwright.report.formatting import count, duration, escape, time_unit
from trainwright.report.overview import Overview

__all__ = ["utilisation"]

_MOST_BARS, _MOST_SLOTS, _BINS, _LABELLED = 1500, 64, 300, 150
_COLOURS = {
    "complete": "--blue",
    "stopped early": "--sky",
    "running": "--green",
    "failed": "--red",
    "interrupted": "--orange",
    "silent": "--muted",
}


@dataclass(frozen=True, slots=True)
class _Run:
    trial: int
    slot: str
    start: float  # seconds of work
    end: float
    how: str  # a key of _COLOURS


def utilisation(overview: Overview) -> Figure | None:
    """Return bars per device, if they are not too many, and the share of devices at work; None if no run has a start.

    Each run has a bar on every device that it held, so that a resize is seen as a change of rows; where runs share
    one device, slots stand for devices.
    """
    leases = [lease for trial in overview.trials for lease in trial.leases.values()]
    # Many slots share the processor, or one GPU: their runs would lie on top of each other, so slots stand for it.
    several = len({name for lease in leases for name in lease.devices} - {"cpu"}) > 1
    word = "device" if several else "slot"
    runs = _collect_runs(overview, word)
    total = overview.clock.total
    if not runs or not total > 0:
        return None
    clock = overview.clock
    away = ""
    if len(clock.breaks):
        seconds = clock.ends[-1] - clock.starts[0] - total
        lines = "line is a break" if len(clock.breaks) == 1 else f"lines are {len(clock.breaks)} breaks"
        away = f" The dotted {lines} in which nothing ran, {duration(seconds)} in all, left out here."
    slots = _sort_slots({run.slot for run in runs})
    return _draw_runs(runs, slots, total, word=word, breaks=clock.breaks.tolist(), away=away)


def _draw_runs(
    runs: list[_Run], slots: list[str], total: float, *, word: str, breaks: Sequence[float], away: str
) -> Figure:
    unit, per = time_unit(total)
    busy = _busy_shares(runs, len(slots), total)
    many = len(runs) > _MOST_BARS or len(slots) > _MOST_SLOTS
    whole = 260 if many else int(np.clip(26 * len(slots), 60, 1700)) + 200
    # The line below has a fixed height in pixels, so its share of the plot depends on the number of rows.
    foot = 90 / (whole - 90)
    names = [escape(slot, 24) for slot in reversed(slots)]
    share = axis("busy", range=[0, 1.05], tickformat=".0%", nticks=3)
    rows = axis(domain=[foot + 0.06, 1.0], showgrid=False, type="category", categoryarray=names)
    axes: Json = {"yaxis": share} if many else {"yaxis": rows, "yaxis2": {**share, "domain": [0.0, foot]}}
    started = len({(run.trial, run.start) for run in runs})
    bars = "" if many else ": a bar for each run of a trial, with its number where there is room"
    line = _draw_line(busy, total / per)
    return Figure(
        name="utilisation",
        title="Workers" if word == "slot" else "Devices",
        caption=f"{count(started, 'run')} on {count(len(slots), word)} in {duration(total)}{bars}. On average "
        f"{busy.mean():.0%} of the {word}s were busy (line{'' if many else ' below'}).{away}",
        data=[line] if many else [*_draw_bars(runs, per), {**line, "yaxis": "y2"}],
        layout=layout(
            bargap=0.25,
            xaxis=axis(f"time of work ({unit})", range=[0, total / per]),
            **axes,
            shapes=[
                {"type": "line", "x0": x / per, "x1": x / per, "y0": 0, "y1": 1, "yref": "paper", "line": _BREAK}
                for x in breaks
            ],
        ),
        height=whole,
    )


_BREAK: Json = {"color": "--ink", "width": 1, "dash": "dot"}


def _collect_runs(overview: Overview, word: str) -> list[_Run]:
    leases = [
        (trial, lease)
        for trial in overview.trials
        for lease in trial.leases.values()
        if lease.started_at is not None and lease.slot
    ]
    # A slot is named by its host only where several hosts worked.
    writers = overview.state.writers
    hosts = {lease.writer: writers[lease.writer].host if lease.writer in writers else "" for _, lease in leases}
    # Names of hosts are shown only where there are several.
    several = len(set(hosts.values())) > 1
    clock = overview.clock
    starts = clock.seconds(np.array([lease.started_at for _, lease in leases], dtype=np.float64))
    ends = clock.seconds(np.array([_lease_end(lease) for _, lease in leases], dtype=np.float64))
    return [
        _Run(
            trial.number,
            f"{hosts[lease.writer]} {place}" if several else place,
            start,
            end,
            _end_word(overview, trial, lease),
        )
        for (trial, lease), start, end in zip(leases, starts.tolist(), ends.tolist(), strict=True)
        for place in (lease.devices if word == "device" and lease.devices else (lease.slot,))
    ]


def _lease_end(lease: Lease) -> float:
    started = lease.started_at or 0.0
    return max(started, lease.ended_at if lease.ended_at is not None else started + lease.seconds)


def _end_word(overview: Overview, trial: TrialState, lease: Lease) -> str:
    if lease.end is None:
        word = overview.word(trial)
        return "interrupted" if lease.lost or lease.number < trial.lease or word == "lost" else word
    if lease.end.kind == "failed":
        return "failed"
    if lease.end.kind == "paused":
        return "interrupted" if lease.end.reason == "preempted" else "stopped early"
    return {"completed": "complete", "stopped": "stopped early"}.get(lease.end.reason, "interrupted")


def _sort_slots(slots: set[str]) -> list[str]:
    # Numbers within names sort by value: gpu2 before gpu10.
    return sorted(
        slots, key=lambda slot: [part.zfill(9) if part.isdigit() else part for part in re.split(r"(\d+)", slot)]
    )


def _busy_shares(runs: list[_Run], slots: int, total: float) -> NDArray[np.float64]:
    """Return the share of slots that were busy in each time bin [bins]; exact, in O(runs + bins)."""
    width = total / _BINS
    # The busy seconds up to each bin's edge are a sum of ramps; their second differences are kept, then summed.
    slope, level = np.zeros(_BINS + 1), np.zeros(_BINS + 1)
    for run in runs:
        for at, sign in ((run.start, 1.0), (run.end, -1.0)):
            place = min(int(at / width), _BINS - 1)
            # A start adds the rest of its own bin and all later ones; an end takes them away.
            level[place] += sign * ((place + 1) * width - at)
            slope[place + 1] += sign * width
    return np.clip((level + np.cumsum(slope))[:_BINS] / (width * slots), 0.0, 1.0)


def _draw_bars(runs: list[_Run], per: float) -> list[Json]:
    traces: list[Json] = []
    for how, colour in _COLOURS.items():
        chosen = [run for run in runs if run.how == how]
        if chosen:
            bars = draw_trace(
                "bar",
                how,
                rounded([(run.end - run.start) / per for run in chosen]),
                [escape(run.slot, 24) for run in chosen],
                f"trial %{{customdata[0]}}: {how}, ran %{{customdata[1]}}",
                base=rounded([run.start / per for run in chosen]),
                customdata=[[run.trial, duration(run.end - run.start)] for run in chosen],
                marker={"color": colour},
            )
            traces.append(bars)
            if len(runs) <= _LABELLED:
                traces[-1] |= {"text": [str(run.trial) for run in chosen], "textposition": "inside"}
    return traces


def _draw_line(busy: NDArray[np.float64], end: float) -> Json:
    edges = np.linspace(0, end, _BINS + 1)
    y, tip = rounded([*busy, busy[-1]], 3), "%{y:.0%} of the slots busy"
    line = draw_lines("busy slots", rounded(edges), y, "--blue", tip, shape="hv", showlegend=False)
    return {**line, "fill": "tozeroy", "fillcolor": "--wash"}

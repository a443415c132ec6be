"""Who worked when: a bar for each run of a trial on its slot, and below it the share of slots that were busy."""

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
    """Return bars per device, or a map of shares where they would be too many; None if no run has a start.

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
    """Return bars of runs on slots over `total` seconds, or a map of shares where there are too many."""
    unit, per = time_unit(total)
    busy = _busy_shares(runs, slots, total)
    # Bars by the thousand can neither be read nor drawn quickly.
    many = len(runs) > _MOST_BARS or len(slots) > _MOST_SLOTS
    height = int(np.clip((6 if many else 26) * len(slots), 60, 360 if many else 1700))
    whole = height + 200
    # The line below has a fixed height in pixels, so its share of the plot depends on the number of rows.
    # The share of the plot that the line below takes.
    foot = 90 / (whole - 90)
    above = axis(domain=[foot + 0.06, 1.0], showgrid=False)
    if many:
        above |= {"tickvals": [], "title": {"text": f"{len(slots):,} {word}s"}}
    else:
        above |= {"type": "category", "categoryarray": [escape(slot, 24) for slot in reversed(slots)]}
    what = "darker is busier" if many else "a bar for each run of a trial, with its number where there is room"
    started = len({(run.trial, run.start) for run in runs})
    return Figure(
        name="utilisation",
        title="Workers" if word == "slot" else "Devices",
        caption=f"{count(started, 'run')} on {count(len(slots), word)} in {duration(total)}: {what}. On average "
        f"{busy.mean():.0%} of the {word}s were busy (line below).{away}",
        data=[*([_draw_map(busy, total / per)] if many else _draw_bars(runs, per)), _draw_line(busy, total / per)],
        layout=layout(
            bargap=0.25,
            xaxis=axis(f"time of work ({unit})", range=[0, total / per]),
            yaxis=above,
            yaxis2=axis("busy", domain=[0.0, foot], range=[0, 1.05], tickformat=".0%", nticks=3),
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


def _busy_shares(runs: list[_Run], slots: list[str], total: float) -> NDArray[np.float64]:
    """Return the share of each time bin [slots, bins] in which a slot was busy; exact, in O(runs + slots * bins)."""
    rows = {slot: row for row, slot in enumerate(slots)}
    width = total / _BINS
    # The busy seconds up to each bin's edge are a sum of ramps; their second differences are kept, then summed.
    slope = np.zeros((len(slots), _BINS + 1))
    level = np.zeros((len(slots), _BINS + 1))
    for run in runs:
        row = rows[run.slot]
        for at, sign in ((run.start, 1.0), (run.end, -1.0)):
            place = min(int(at / width), _BINS - 1)
            # A start adds busy time from here on, an end takes it away: the rest of its own bin, then
            # whole bins.
            level[row, place] += sign * ((place + 1) * width - at)
            slope[row, place + 1] += sign * width
    share: NDArray[np.float64] = (level + np.cumsum(slope, axis=1))[:, :_BINS] / width
    return np.clip(share, 0.0, 1.0)


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


def _draw_map(busy: NDArray[np.float64], end: float) -> Json:
    # A row stands for several slots if they are very many.
    group = -(-len(busy) // 100)
    rows = [busy[at : at + group].mean(axis=0) for at in range(0, len(busy), group)]
    edges = np.linspace(0, end, _BINS + 1)
    centres, places = rounded((edges[:-1] + edges[1:]) / 2), list(range(len(rows)))[::-1]
    shares = {"z": [rounded(row, 2) for row in rows], "zmin": 0, "zmax": 1}
    scale = [[0, "--surface"], [1, "--blue"]]
    return draw_trace("heatmap", "", centres, places, "%{z:.0%} busy", colorscale=scale, **shares)


def _draw_line(busy: NDArray[np.float64], end: float) -> Json:
    edges = np.linspace(0, end, _BINS + 1)
    y, tip = rounded([*busy.mean(axis=0), busy[:, -1].mean()], 3), "%{y:.0%} of the slots busy"
    line = draw_lines("busy slots", rounded(edges), y, "--blue", tip, shape="hv", showlegend=False)
    return {**line, "yaxis": "y2", "fill": "tozeroy", "fillcolor": "--wash"}

"""What the page says of a study as a whole, of one trial, and of the log that a trial has written."""

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainwright.ledger.trials import Lease
from trainwright.report.overview import Overview
from trainwright.study.results import lineage_of
from trainwright.ui.study_follower import StudyFollower

__all__ = ["LOG_BYTES", "log_tail", "study_summary", "trial_page"]

LOG_BYTES = 65536
"""Of a log's end."""

_MOST_DROPPED, _MOST_FAILURES, _MOST_NUMBERS, _MOST_CURVE = 30, 20, 12, 2000


def study_summary(follower: StudyFollower) -> dict[str, Any]:
    """Return counts, goals, the best, sessions, failures, and what could not be read."""
    with follower.reading() as overview:
        state = overview.state
        best = overview.best
        return {
            "name": follower.name,
            "where": str(follower.where) if follower.directory is not None else follower.name,
            "study_id": follower.study_id,
            "revision": follower.revision,
            "loaded": follower.loaded,
            "records": follower.records,
            "error": follower.error,
            "objectives": [str(objective) for objective in overview.objectives],
            "metrics": [objective.metric for objective in overview.objectives],
            "directions": [objective.direction for objective in overview.objectives],
            "constraints": [str(constraint) for constraint in state.constraints],
            "parameters": [item["name"] for item in (state.space or {}).get("parameters", [])],
            "counts": overview.counts,
            "trials": len(overview.trials),
            "results": state.results,
            "front": len(overview.front) if len(overview.objectives) > 1 else None,
            "best": None
            if best is None
            else {
                "trial": best.number,
                "values": overview.values[overview.ranking[0]].tolist(),
                "params": dict(best.params),
                "epochs": best.epoch,
            },
            "seconds": overview.clock.total,
            "device_seconds": state.device_seconds,
            "rungs": overview.rungs,
            "created_at": state.created_at,
            "seed": state.seed,
            "versions": state.versions,
            "writers": len(state.writers),
            "sessions": state.sessions,
            "failures": _list_failures(overview),
            "dropped": [str(item) for item in follower.dropped[:_MOST_DROPPED]],
            "dropped_count": len(follower.dropped),
            "unknown_kinds": state.unknown_kinds,
            "files": follower.directory is not None,
        }


def trial_page(overview: Overview, number: int) -> dict[str, Any] | None:
    """Return everything known of a trial, or None if there is none of that number."""
    trial = overview.state.trials.get(number)
    if trial is None:
        return None
    # Neighbours by number, which may have gaps.
    numbers = [item.number for item in overview.trials]
    at = numbers.index(number)
    ranked = overview.ranking.tolist()
    epochs = sorted(trial.reports)
    # An even choice of epochs: the curve keeps its shape.
    if len(epochs) > _MOST_CURVE:
        epochs = epochs[:: -(-len(epochs) // _MOST_CURVE)]
    metrics = list(dict.fromkeys(name for epoch in epochs for name in trial.reports[epoch].metrics))
    verdicts = [verdict for (about, _), verdict in overview.state.decisions.items() if about == number]
    return {
        "trial": number,
        "before": numbers[at - 1] if at else None,
        "after": numbers[at + 1] if at + 1 < len(numbers) else None,
        "state": overview.word(trial),
        "params": dict(trial.params),
        "values": dict(trial.values),
        "rank": ranked.index(at) + 1 if at in ranked else None,
        "ranked": len(ranked),
        "epochs": trial.epoch,
        "seconds": trial.seconds,
        "device_seconds": trial.device_seconds,
        "origin": dict(trial.origin),
        "curve": {
            "epoch": epochs,
            "lease": [trial.reports[epoch].lease for epoch in epochs],
            "metrics": {
                name: [trial.reports[epoch].metrics.get(name, math.nan) for epoch in epochs] for name in metrics
            },
        },
        "lineage": [[part.trial, part.first, part.last] for part in lineage_of(overview.state, number)],
        "attempts": [_describe_attempt(overview, lease) for _, lease in sorted(trial.leases.items())],
        "decisions": [
            {"epoch": d.epoch, "rule": d.rule, "verdict": d.verdict, "value": d.value, "threshold": d.threshold}
            for d in sorted(verdicts, key=lambda verdict: verdict.epoch)
        ],
        "checkpoints": [
            {"epoch": item.epoch, "bytes": item.size, "path": item.path}
            for _, item in sorted(trial.checkpoints.items())
        ],
        "offered": sorted(trial.offered),
        "failure": None if trial.failure is None else asdict(trial.failure),
        "notes": [
            {"name": name, "value": value} for about, name, value in overview.state.notes.values() if about == number
        ],
    }


def log_tail(directory: Path, trial: int, lease: int, rank: int = 0) -> dict[str, Any] | None:
    """Return the end of what a run of a trial has printed, at most 64 KiB; None if there is nothing.

    The path is made of the three numbers alone, and what it leads to must lie in the study's folder of logs.
    """
    logs = (directory / "logs").resolve()
    name = f"lease-{lease}{f'-rank-{rank}' if rank else ''}.log"
    path = (logs / f"trial-{trial:06d}" / name).resolve()
    # A link in the folder of logs must not lead out of it.
    if not path.is_relative_to(logs):
        return None
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LOG_BYTES))
            text = file.read(LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    if size > LOG_BYTES:
        # The first line may be the end of a longer one.
        text = text.partition("\n")[2]
    return {"text": text.replace("\r\n", "\n").replace("\x00", ""), "bytes": size, "whole": size <= LOG_BYTES}


def _describe_attempt(overview: Overview, lease: Lease) -> dict[str, Any]:
    writer = overview.state.writers.get(lease.writer)
    return {
        "lease": lease.number,
        "host": writer.host if writer is not None else "",
        "slot": lease.slot,
        "devices": list(lease.devices),
        "from_epoch": lease.resumed_epoch,
        "started": lease.started_at,
        "seconds": lease.seconds,
        "end": lease.end.reason if lease.end is not None else "lost" if lease.lost else None,
        "why": lease.why,
    }


def _list_failures(overview: Overview) -> list[dict[str, Any]]:
    return [
        {
            "kind": failure.kind.replace("_", " "),
            "message": failure.message[:500],
            "trials": [trial.number for trial in trials[:_MOST_NUMBERS]],
            "count": len(trials),
            "traceback": failure.traceback[-4000:],
        }
        for trials in overview.failures[:_MOST_FAILURES]
        if (failure := trials[0].failure) is not None
    ]

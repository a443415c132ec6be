"""What the page says of a study: its table of trials, sorted and filtered, the whole, one trial, and a trial's log."""

import math
import operator
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainwright.errors import InputError
from trainwright.ledger import Status, TrialState
from trainwright.ledger.rows import first_start
from trainwright.ledger.trials import Lease
from trainwright.ledger.writers import SILENT
from trainwright.report.overview import Overview
from trainwright.study.results import lineage_of
from trainwright.ui.study_follower import StudyFollower

__all__ = ["LOG_BYTES", "MOST_ROWS", "Query", "filter_trials", "log_tail", "study_summary", "trial_page", "window"]

MOST_ROWS = 500
"""Of one window."""

_TERM = re.compile(r"^([^\s<>=!]{1,80})\s*(<=|>=|!=|<|>|=)\s*(\S{1,80})$")
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}
_MOST_TERMS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """Which rows: those that `words` keep, in the order of a column, from `offset` on.

    `words` are terms such as "lr<0.01 optimizer=adamw state=failed", all of which must hold; numbers such as "3,12" are
    trials. `sort` is "trial", "state", "epochs", "seconds", "started", a parameter or a metric; "rank" is best first.
    """

    words: str = ""
    sort: str = "trial"
    descending: bool = False
    offset: int = 0
    limit: int = 100


def window(overview: Overview, query: Query) -> dict[str, Any]:
    """Return {"total", "matching", "offset", "rows"}; `InputError` tells what of the query cannot be understood."""
    places: Sequence[int] = range(len(overview.trials))
    # Trials without a result have no rank: they follow in the order of numbers.
    if query.sort == "rank":
        ranked = overview.ranking.tolist()
        rest = set(places).difference(ranked)
        places = [*ranked, *sorted(rest)]
        if query.descending:
            places = places[::-1]
    chosen = filter_trials(overview, query.words, places)
    if query.sort not in {"rank", "trial"}:
        chosen = _sort_rows(overview, chosen, query)
    elif query.sort == "trial" and query.descending:
        chosen.reverse()
    # A query from a browser must not ask for everything at once.
    limit = max(0, min(query.limit, MOST_ROWS))
    offset = max(0, query.offset)
    return {
        "total": len(overview.trials),
        "matching": len(chosen),
        "offset": offset,
        "rows": [_make_row(overview, at) for at in chosen[offset : offset + limit]],
    }


def filter_trials(overview: Overview, words: str, places: Sequence[int]) -> list[int]:
    """Return those of `places` for which all terms hold; `InputError` tells which term cannot be understood."""
    tests = [_make_test(term, overview) for term in _split_terms(words)]
    return [at for at in places if all(test(at) for test in tests)]


def _make_row(overview: Overview, at: int) -> dict[str, Any]:
    trial = overview.trials[at]
    lease = trial.leases.get(trial.lease)
    shown = overview.values[at].tolist()
    if not trial.has_result and (last := trial.reports.get(trial.epoch)) is not None:
        shown = [last.metrics.get(goal.metric, math.nan) for goal in overview.objectives]
    return {
        "trial": trial.number,
        "state": overview.word(trial),
        "values": shown,
        "final": trial.has_result,
        "params": dict(trial.params),
        "epochs": trial.epoch,
        "seconds": trial.seconds,
        "devices": list(lease.devices) if lease is not None else [],
        "attempts": len(trial.leases),
        "started": first_start(trial),
    }


def _sort_rows(overview: Overview, chosen: list[int], query: Query) -> list[int]:
    """Sort by a column: numbers before texts, what has no value last in either direction."""
    value = _read_column(query.sort, overview)
    # Numbers and texts do not compare, so the kind goes first in the key.
    known: list[tuple[tuple[int, Any], int]] = []
    empty: list[int] = []
    for at in chosen:
        found = value(at)
        if found is None or (isinstance(found, float) and math.isnan(found)):
            empty.append(at)
        elif isinstance(found, int | float):
            known.append(((0, found), at))
        else:
            known.append(((1, str(found)), at))
    known.sort(key=lambda pair: pair[0], reverse=query.descending)
    return [at for _, at in known] + empty


_COLUMNS: dict[str, Callable[[Overview, TrialState], Any]] = {
    "trial": lambda _overview, trial: trial.number,
    "state": lambda overview, trial: overview.word(trial),
    "epochs": lambda _overview, trial: trial.epoch,
    "seconds": lambda _overview, trial: trial.seconds,
    "started": lambda _overview, trial: first_start(trial),
}


def _read_column(name: str, overview: Overview) -> Callable[[int], Any]:
    """Return what a column holds for each position of a trial."""
    trials, metrics = overview.trials, [goal.metric for goal in overview.objectives]
    parameters = [item["name"] for item in (overview.state.space or {}).get("parameters", [])]
    if name in _COLUMNS:
        return lambda at: _COLUMNS[name](overview, trials[at])
    if name in metrics:
        return lambda at: float(overview.values[at, metrics.index(name)])
    if name in parameters:
        return lambda at: trials[at].params.get(name)
    raise InputError(f"{name!r} is no column; there are {', '.join([*_COLUMNS, *metrics, *parameters])}")


def _split_terms(words: str) -> list[str]:
    terms = words.split()
    if len(terms) > _MOST_TERMS:
        raise InputError(f"the filter has {len(terms)} terms; allowed: {_MOST_TERMS}")
    return terms


def _make_test(term: str, overview: Overview) -> Callable[[int], bool]:
    # Numbers alone are trials'.
    if re.fullmatch(r"\d{1,12}(,\d{1,12})*", term):
        numbers = {int(number) for number in term.split(",")}
        return lambda at: overview.trials[at].number in numbers
    if term in {*Status, SILENT}:
        return lambda at: overview.word(overview.trials[at]) == term
    found = _TERM.match(term)
    if found is None:
        raise InputError(f"{term[:80]!r} is no filter; write NAME<VALUE, NAME=VALUE, a state, or trials as 3,12")
    name, sign, text = found.groups()
    value = _read_column(name, overview)
    if sign not in {"=", "!="} and _as_number(text) is None:
        raise InputError(f"{term!r}: {text!r} is no number")
    return lambda at: _compare(value(at), sign, text)


def _compare(value: Any, sign: str, text: str) -> bool:
    """Compare as numbers where both are; else as texts, which are equal or not."""
    number, limit = _as_number(value), _as_number(text)
    if number is not None and limit is not None:
        return _SIGNS[sign](number, limit)
    return sign in {"=", "!="} and _SIGNS[sign](str(value), text)


def _as_number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


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

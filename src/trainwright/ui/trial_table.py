"""Sorts, filters and pages the table of trials, so that a browser holds only the rows that it shows."""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainwright.errors import InputError
from trainwright.ledger import Status, TrialState
from trainwright.ledger.rows import first_start
from trainwright.ledger.writers import SILENT
from trainwright.report.overview import Overview

__all__ = ["MOST_ROWS", "Query", "filter_trials", "window"]

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

"""The tables of a report, as HTML: the best trials, the pick's members, failures, dropped records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainwright.ensemble.ensemble_settings import ChosenEnsemble
from trainwright.ledger import Dropped, TrialState
from trainwright.ledger.rows import final_metrics
from trainwright.report.formatting import DASH, aligned, count, duration, escape, number, shown
from trainwright.report.overview import Overview

__all__ = ["best_trials", "dropped_records", "failures", "pick"]

_FEASIBLE = {True: "yes", False: "no", None: DASH}
_MOST_TRIALS, _MOST_FAILURES, _MOST_NUMBERS, _MOST_DROPPED, _LONGEST = 20, 40, 12, 30, 120


@dataclass(frozen=True, slots=True)
class _Column:
    """Texts of a column, not yet escaped; `right` aligns numbers, `classes` has one CSS class a cell."""

    name: str
    texts: Sequence[str]
    right: bool = False
    classes: Sequence[str] = ()


def best_trials(overview: Overview) -> str:
    """Return the best trials, then, where there is room, those without a result."""
    ranked = [overview.trials[at] for at in overview.ranking[:_MOST_TRIALS].tolist()]
    trials = ranked + [t for t in overview.trials if not t.has_result][: _MOST_TRIALS - len(ranked)]
    if not trials:
        return '<p class="card soft">There is no trial yet.</p>'
    states, reasons = [overview.word(trial) for trial in trials], [_pick_sentence(trial) for trial in trials]
    metrics = list(dict.fromkeys(outcome.metric for outcome in overview.state.outcomes))
    # Rows beyond the ranking have no result, so nothing to judge.
    feasible = overview.within[overview.ranking[: len(ranked)]].tolist() + [None] * (len(trials) - len(ranked))
    names = dict.fromkeys(name for trial in trials for name in trial.params)
    columns = [
        _Column("trial", [str(trial.number) for trial in trials], right=True),
        *(_Column(name, aligned([final_metrics(t).get(name) for t in trials]), right=True) for name in metrics),
        *([_Column("feasible", [_FEASIBLE[item] for item in feasible])] if overview.limits else []),
        _Column("epochs", [_epochs_text(trial) for trial in trials], right=True),
        _Column("state", states, classes=[f"state {state}" for state in states]),
        *([_Column("failure", reasons, classes=["long"] * len(trials))] if any(reasons) else []),
        *(_parameter_column(name, [trial.params.get(name) for trial in trials]) for name in names),
        _Column("time", [duration(trial.seconds) for trial in trials], right=True),
    ]
    few = len(ranked) == len(overview.results)
    which = count(len(ranked), "result") if few else f"The best {len(ranked)} of {len(overview.results):,} results"
    alone = len(overview.objectives) == 1
    order = "the best first" if alone else f"the {len(overview.front):,} on the front first"
    if overview.limits:
        order += ", infeasible ones last" if overview.within.any() else "; none keeps all bounds and constraints"
    caption = f"{which}, {order}." if ranked else "No result yet."
    return _table_html(caption, columns, first=bool(ranked) and alone)


def _epochs_text(trial: TrialState) -> str:
    begun = trial.exploits
    return f"{trial.epoch:,}" if begun is None else f"{trial.epoch:,} (to {begun.epoch:,} in trial {begun.parent})"


def pick(selection: ChosenEnsemble) -> str:
    """Return the members of the picked ensemble, and how it compares with the best single model on held-out rows."""
    chosen, single = selection.ensemble, selection.front.single_best
    members = chosen.table()
    columns = [
        _Column("trial", [str(row["trial"]) for row in members], right=True),
        _Column("weight", [f"{row['weight']:.0%}" for row in members], right=True),
        _Column(
            "µs per row",
            aligned([None if (cost := row["seconds_per_row"]) is None else 1e6 * cost for row in members]),
            right=True,
        ),
        _Column("parameters", aligned([row["parameter_count"] for row in members]), right=True),
        _Column("epochs", aligned([row["epoch"] for row in members]), right=True),
    ]
    split, metric = selection.settings.test_split, "accuracy" if chosen.output == "classes" else selection.front.metric
    scores, held_out = selection.scores(split), ""
    # Rows that a choice was made on would flatter the ensemble: they are no test.
    if scores and not selection.library.rows_seen_by_search:
        held_out = (
            f" On the {escape(split, 30)} rows, which no choice was made on: {metric.replace('_', ' ')} "
            f"{number(scores[f'ensemble_{split}_{metric}'])}, against {number(scores[f'single_{split}_{metric}'])} of "
            f"the best single model (trial {single.members[0].trial})."
        )
    promised = describe_promise(selection.report.conformal, chosen.output)
    return _table_html(f"The pick: {count(len(members), 'member')}.{held_out}{promised}", columns)


def describe_promise(conformal: Mapping[str, Any] | None, output: str) -> str:
    """Return what conformal prediction promises, and what held-out rows say, as a sentence; "" without it."""
    if conformal is None:
        return ""
    what, unit = ("sets", " classes") if output == "classes" else ("intervals", " long")
    text = f" Its {what} miss at most {conformal['alpha']:.0%} of truths"
    if conformal["coverage"] is None:
        return text + "."
    held = f"on held-out rows they hold {conformal['coverage']:.1%}"
    return f"{text}: {held} and are {conformal['size']:.3g}{unit} on average."


def failures(overview: Overview) -> str:
    """Return failures, equal ones together with the traceback of the first; "" if there are none."""
    groups = overview.failures
    parts = [_failure_html(trials) for trials in groups[:_MOST_FAILURES]]
    if len(groups) > _MOST_FAILURES:
        parts.append(f'<p class="soft">{len(groups) - _MOST_FAILURES:,} further kinds of failure are not shown.</p>')
    return "\n".join(parts)


def dropped_records(dropped: Sequence[Dropped], unknown_kinds: dict[str, int]) -> str:
    """Return what the records' reader had to leave out; "" if nothing."""
    items = [f"<li>{escape(one)}</li>" for one in dropped[:_MOST_DROPPED]]
    if len(dropped) > _MOST_DROPPED:
        items.append(f"<li>and {len(dropped) - _MOST_DROPPED:,} more</li>")
    items += [
        f"<li>{count(amount, 'record')} of the unknown kind {escape(kind, 40)} left out</li>"
        for kind, amount in sorted(unknown_kinds.items())
    ]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _failure_html(trials: Sequence[TrialState]) -> str:
    first = trials[0].failure
    kind, message, traceback = (first.kind, first.message, first.traceback) if first is not None else ("", "", "")
    # A long list of numbers helps nobody: the first few lead to the rest.
    numbers = ", ".join(str(trial.number) for trial in trials[:_MOST_NUMBERS])
    more = f" and {len(trials) - _MOST_NUMBERS:,} more" if len(trials) > _MOST_NUMBERS else ""
    who = f"trial{'s' if len(trials) > 1 else ''} {numbers}{more}"
    text = f"<pre>{escape(traceback)}</pre>" if traceback else '<p class="soft">It left no traceback.</p>'
    return (
        f"<details><summary><strong>{escape(kind.replace('_', ' '))}</strong>: {escape(message, 300)} "
        f'<span class="soft">({who})</span></summary>{text}</details>'
    )


def _pick_sentence(trial: TrialState) -> str:
    text = "" if trial.failure is None else trial.failure.message or trial.failure.kind
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _parameter_column(name: str, values: Sequence[Any]) -> _Column:
    # Columns of mixed types are texts: their numbers would not line up.
    kinds = {type(value) for value in values if value is not None}
    if kinds and kinds <= {int, float}:
        return _Column(name, aligned(values), right=True)
    return _Column(name, [DASH if value is None else shown(value) for value in values])


def _table_html(caption: str, columns: Sequence[_Column], *, first: bool = False) -> str:
    """Return a table; its first column heads the rows, its `first` row may be marked; `caption` is HTML."""
    heads = "".join(f'<th scope="col"{_class_attribute(c, -1)}>{escape(c.name, 40)}</th>' for c in columns)
    rows = []
    for at in range(len(columns[0].texts)):
        head, *cells = (f"{_class_attribute(c, at)}>{escape(c.texts[at])}" for c in columns)
        rows.append(f'<th scope="row"{head}</th>{"".join(f"<td{cell}</td>" for cell in cells)}')
    marks = [' class="first"' if first else "", *[""] * (len(rows) - 1)]
    body = "".join(f"<tr{mark}>{row}</tr>" for mark, row in zip(marks, rows, strict=True))
    return (
        f'<div class="card scroll"><table><caption>{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _class_attribute(column: _Column, row: int) -> str:
    words = ["n"] if column.right else []
    words += [column.classes[row]] if column.classes and row >= 0 else []
    return f' class="{" ".join(words)}"' if words else ""

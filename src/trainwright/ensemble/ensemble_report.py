"""What an ensemble is: who is in it, what each is worth, how they differ, and how right all are on held-out rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from trainwright.ensemble.combine.calibration import Calibration, reliability, score_probabilities
from trainwright.ensemble.combine.rules import CombinationRule, combine
from trainwright.ensemble.combine.uncertainty import coverage
from trainwright.ensemble.library.member import Member
from trainwright.ensemble.metrics import METRICS, Array, default_metric
from trainwright.files import plain

__all__ = ["EnsembleReport", "make_report"]


@dataclass(frozen=True, kw_only=True)
class EnsembleReport:
    """Plain numbers, of the split `rows` unless it says otherwise; None where there is nothing to say it of.

    `before` and `after` calibration hold for classes accuracy, nll, brier, ece and its interval; for means and
    variances nll, crps and the coverage of central intervals; for values the squared error.
    """

    output: str
    rule: str
    metric: str
    rows: str  # name of the split that judges
    losses: Mapping[str, float]  # of what the ensemble predicts, by `metric`, per split
    members: Sequence[Mapping[str, Any]]  # trial, weight, params, loss, gain (both on selection rows), costs
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    calibration: Mapping[str, Any] | None
    reliability: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)  # "before" and "after"
    # [K, K]: the share of rows with different classes, or the root mean square of the difference
    disagreement: Sequence[Sequence[float]] = ()
    error_correlation: float | None = None  # mean over pairs of members
    rows_seen_by_search: bool = False  # the split that judges is part of what steered the search
    seconds_per_row: float | None = None
    bytes: int | None = None
    cost: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields; numbers that are not finite become None."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def make_report(
    members: Sequence[Member],
    predictions: Mapping[str, Sequence[Array]],
    weights: Sequence[float],
    rule: CombinationRule,
    *,
    calibration: Calibration | None,
    split: str,
    selection: str,
) -> EnsembleReport:
    """Return the report of members' predictions per split; `split` judges, `selection` is where they were chosen."""
    first = members[0]
    metric = METRICS[default_metric(first.output)]
    targets = {name: first.targets(name) for name in predictions}
    # Each split is combined once; all figures below are of these arrays.
    pooled = {name: combine(rule, item, weights) for name, item in predictions.items()}
    content = pooled if calibration is None else {name: calibration.apply(item) for name, item in pooled.items()}
    before = _measure_prediction(first.output, pooled.get(split), targets.get(split), predictions.get(split), weights)
    after = None
    curves: dict[str, Any] = {}
    if split in pooled and first.output == "classes":
        curves["before"] = reliability(pooled[split], targets[split])
    if split in pooled and calibration is not None:
        mended = content[split]
        after = _measure_prediction(first.output, mended, targets[split], None, weights)
        if first.output == "classes":
            curves["after"] = reliability(mended, targets[split])
    wrong = _member_errors(predictions[split], targets[split]) if split in predictions else None
    seconds = [member.seconds_per_row for member in members]
    sizes = [member.weight_bytes for member in members]
    count = len(members)
    return EnsembleReport(
        output=first.output,
        rule=rule.name,
        metric=metric.name,
        rows=split,
        losses={name: float(metric.row_losses(item, targets[name]).mean()) for name, item in content.items()},
        members=_member_table(members, predictions.get(selection), targets.get(selection), weights, rule),
        before=before,
        after=after,
        calibration=None if calibration is None else asdict(calibration),
        reliability=curves,
        disagreement=_pairwise_disagreement(predictions[split], first.output) if split in predictions else (),
        error_correlation=None if wrong is None else _correlate_errors(wrong),
        rows_seen_by_search=split in first.splits and first.splits[split].source is not None,
        seconds_per_row=None if None in seconds else math.fsum(one for one in seconds if one is not None),
        bytes=None if None in sizes else sum(one for one in sizes if one is not None),
        cost=f"{count} members on one busy device: about 1/{count} of one member's rows a second" if count > 1 else "",
    )


def _measure_prediction(
    output: str, pooled: Array | None, targets: Array | None, members: Sequence[Array] | None, weights: Sequence[float]
) -> dict[str, Any] | None:
    if pooled is None or targets is None:
        return None
    if output == "classes":
        return score_probabilities(pooled, targets)
    # Of moments the means alone; the likelihood below judges the variances.
    squared = METRICS["squared_error"].score(pooled, targets)
    if output == "values":
        return {"rows": len(targets), "squared_error": squared}
    nll = METRICS["normal_nll"].score(pooled, targets)
    # A calibrated prediction has no members any more: it is one normal distribution.
    intervals = coverage(members or [pooled], weights if members else [1.0], targets)
    return {
        "rows": len(targets),
        "squared_error": squared,
        "nll": nll,
        "crps": METRICS["crps"].score(pooled, targets),
        "coverage": intervals,
    }


def _member_table(
    members: Sequence[Member],
    predictions: Sequence[Array] | None,
    targets: Array | None,
    weights: Sequence[float],
    rule: CombinationRule,
) -> list[dict[str, Any]]:
    metric = METRICS[default_metric(members[0].output)]

    def loss(chosen: Sequence[int], by: CombinationRule) -> float | None:
        if predictions is None or targets is None or not chosen:
            return None
        found = combine(by, [predictions[one] for one in chosen], [weights[one] for one in chosen])
        return float(metric.row_losses(found, targets).mean())

    every = list(range(len(members)))
    # A member's gain is what the ensemble loses without it, its weight given to the others.
    whole = loss(every, rule)
    rows = []
    for place, member in enumerate(members):
        rest = [one for one in every if one != place]
        without = loss(rest, rule.without(frozenset({place})))
        rows.append(
            {
                "trial": member.trial,
                "epoch": member.epoch,
                "weight": weights[place],
                "loss": loss([place], rule.without(frozenset(rest)) if rest else rule),
                "gain": None if without is None or whole is None else without - whole,
                "seconds_per_row": member.seconds_per_row,
                "bytes": member.weight_bytes,
                "params": dict(member.params),
            }
        )
    return sorted(rows, key=lambda row: (-row["weight"], row["trial"]))


def _member_errors(predictions: Sequence[Array], targets: Array) -> Array:
    """Return per member and row 1 for a wrong class, or the residual of a value [K, N]."""
    if targets.dtype.kind in "iu":
        return np.stack([(item.argmax(axis=1) != targets).astype(np.float64) for item in predictions])
    # One number a row: the residuals of several outputs are averaged.
    return np.stack([((item[..., 0] if item.ndim == 3 else item) - targets).mean(axis=1) for item in predictions])


def _pairwise_disagreement(predictions: Sequence[Array], output: str) -> list[list[float]]:
    if output == "classes":
        # Pairs of members at once: [K, 1, N] against [1, K, N].
        answers = np.stack([item.argmax(axis=1) for item in predictions])
        difference = (answers[:, None, :] != answers[None, :, :]).mean(axis=2)
    else:
        answers = np.stack([(item[..., 0] if item.ndim == 3 else item).reshape(-1) for item in predictions])
        difference = np.sqrt(((answers[:, None, :] - answers[None, :, :]) ** 2).mean(axis=2))
    found: list[list[float]] = difference.tolist()
    return found


def _correlate_errors(errors: Array) -> float | None:
    """Return the correlation of members' errors [K, N], mean over pairs; None where none of a pair varies."""
    # A member that is always right or always wrong has no correlation.
    errors = errors[errors.std(axis=1) > 0]
    if len(errors) < 2:
        return None
    return float(np.corrcoef(errors)[np.triu_indices(len(errors), 1)].mean())

"""What an ensemble is: who is in it, what each is worth, how they differ, and how right all are on held-out rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from trainwright.ensemble.combine.calibration import Calibration, reliability, score_probabilities
from trainwright.ensemble.combine.coverage import coverage, crps, risk_coverage
from trainwright.ensemble.combine.decision import DecisionThreshold
from trainwright.ensemble.combine.rule import CombinationRule, combine
from trainwright.ensemble.combine.uncertainty import decompose_uncertainty
from trainwright.ensemble.library.member import Member
from trainwright.ensemble.metrics import METRICS, Array, default_metric
from trainwright.strict_json import plain

__all__ = ["EnsembleReport", "make_report"]

_SHARES = 20  # points of a curve


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
    decision: Mapping[str, Any] | None = None  # the threshold, and its measure "before" (at one half) and "after"
    reliability: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)  # "before" and "after"
    disagreement: Sequence[
        Sequence[float]
    ] = ()  # [K, K] share of rows with different classes, or root mean square of the difference
    error_correlation: float | None = None  # mean over pairs of members
    q_statistic: float | None = None  # Yule's Q of right and wrong, mean over pairs; classes only
    risk: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # "total" and "epistemic": see `_risk_curves`
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
    decision: DecisionThreshold | None,
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
        curves["before"] = asdict(reliability(pooled[split], targets[split]))
    if split in pooled and calibration is not None:
        mended = content[split]
        after = _measure_prediction(first.output, mended, targets[split], None, weights)
        if first.output == "classes":
            curves["after"] = asdict(reliability(mended, targets[split]))
    wrong = _member_errors(predictions[split], targets[split]) if split in predictions else None
    seconds = [member.seconds_per_row for member in members]
    sizes = [member.weight_bytes for member in members]
    count = len(members)
    return EnsembleReport(
        output=first.output,
        rule=rule.name,
        metric=metric.name,
        rows=split,
        losses={name: float(metric.loss(metric.per_row(item, targets[name]).mean())) for name, item in content.items()},
        members=_member_table(members, predictions.get(selection), targets.get(selection), weights, rule),
        before=before,
        after=after,
        calibration=None if calibration is None else calibration.to_json(),
        decision=_describe_decision(decision, content.get(split), targets.get(split)),
        reliability=curves,
        disagreement=_pairwise_disagreement(predictions[split], first.output) if split in predictions else (),
        error_correlation=None if wrong is None or count < 2 else _mean_pair(wrong, _error_correlation),
        q_statistic=None if wrong is None or count < 2 or first.output != "classes" else _mean_pair(wrong, _yule_q),
        risk=_risk_curves(first.output, predictions[split], pooled[split], targets[split], weights)
        if split in pooled
        else {},
        rows_seen_by_search=split in first.sources,
        seconds_per_row=None if None in seconds else math.fsum(one for one in seconds if one is not None),
        bytes=None if None in sizes else sum(one for one in sizes if one is not None),
        cost=f"{count} members on one busy device: about 1/{count} of one member's rows a second" if count > 1 else "",
    )


def _risk_curves(
    output: str, members: Sequence[Array], pooled: Array, targets: Array, weights: Sequence[float]
) -> dict[str, Any]:
    """Return how the loss falls if the most uncertain rows are refused: coverage and risk at 20 shares, and the area.

    The loss is the cross-entropy, or the squared error.
    """
    # The most uncertain rows are refused first; a useful uncertainty makes the rest lose less.
    metric = METRICS["cross_entropy" if output == "classes" else "squared_error"]
    losses = metric.per_row(pooled, targets)
    unsure = decompose_uncertainty(members, weights, output).per_row()
    found = {}
    for name, item in (("total", unsure.total), ("epistemic", unsure.epistemic)):
        curve = risk_coverage(item, losses)
        places = np.unique(np.linspace(0, len(losses) - 1, _SHARES).round().astype(int)).tolist()
        found[name] = {
            "coverage": [curve.coverage[at] for at in places],
            "risk": [curve.risk[at] for at in places],
            "area": curve.area,
        }
    return found


def _describe_decision(
    decision: DecisionThreshold | None, predicted: Array | None, targets: Array | None
) -> dict[str, Any] | None:
    if decision is None:
        return None
    content = decision.to_json()
    if predicted is not None and targets is not None:
        content["before"], content["after"] = decision.score(predicted, targets)
    return content


def _measure_prediction(
    output: str, pooled: Array | None, targets: Array | None, members: Sequence[Array] | None, weights: Sequence[float]
) -> dict[str, Any] | None:
    if pooled is None or targets is None:
        return None
    if output == "classes":
        return asdict(score_probabilities(pooled, targets))
    squared = float(METRICS["squared_error"].per_row(pooled, targets).mean())
    if output == "values":
        return {"rows": len(targets), "squared_error": squared}
    nll = float(METRICS["normal_nll"].per_row(pooled, targets).mean())
    intervals = coverage(members or [pooled], weights if members else [1.0], targets)
    return {
        "rows": len(targets),
        "squared_error": squared,
        "nll": nll,
        "crps": crps(pooled, targets),
        "coverage": [asdict(one) for one in intervals],
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
        return float(metric.loss(metric.per_row(found, targets).mean()))

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


def _mean_pair(rows: Array, of: Any) -> float | None:
    pairs = [of(rows[one], rows[two]) for one in range(len(rows)) for two in range(one)]
    known = [value for value in pairs if value is not None]
    return float(np.mean(known)) if known else None


def _error_correlation(one: Array, two: Array) -> float | None:
    if one.std() == 0 or two.std() == 0:
        return None
    return float(np.corrcoef(one, two)[0, 1])


def _yule_q(one: Array, two: Array) -> float | None:
    # Yule's Q (Kuncheva and Whitaker, 2003): 1 for members wrong on the same rows, 0 for independent ones.
    both, neither = float((one * two).sum()), float(((1 - one) * (1 - two)).sum())
    left, right = float((one * (1 - two)).sum()), float(((1 - one) * two).sum())
    total = both * neither + left * right
    return None if total == 0 else (both * neither - left * right) / total

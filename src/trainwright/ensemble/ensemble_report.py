"""The report on an ensemble: its members, what each contributes, and its scores on held-out rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trainwright.ensemble.combine.calibration import score_probabilities
from trainwright.ensemble.combine.conformal import Conformal
from trainwright.ensemble.combine.rules import combine
from trainwright.ensemble.library.member import Member
from trainwright.ensemble.metrics import METRICS, Array, default_metric
from trainwright.files import plain

if TYPE_CHECKING:
    from trainwright.ensemble.ensemble import Ensemble

__all__ = ["EnsembleReport", "describe_member", "make_report"]


@dataclass(frozen=True, kw_only=True)
class EnsembleReport:
    """Plain numbers, of the split `rows` unless it says otherwise; None where there is nothing to say it of.

    `before` and `after` calibration hold for classes accuracy, nll, brier, ece and its interval; for means and
    variances nll and crps; for values the squared error.
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
    # alpha, method, by; on `rows` the "coverage", and the mean "size" of sets or lengths of intervals
    conformal: Mapping[str, Any] | None = None
    rows_seen_by_search: bool = False  # the split that judges is part of what steered the search
    seconds_per_row: float | None = None
    bytes: int | None = None
    cost: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields; numbers that are not finite become None."""
        return cast(dict[str, Any], plain(asdict(self)))


def describe_member(member: Member, weight: float) -> dict[str, Any]:
    """Return what is told of a member of an ensemble."""
    return {
        "trial": member.trial,
        "epoch": member.epoch,
        "weight": weight,
        "seconds_per_row": member.seconds_per_row,
        "bytes": member.weight_bytes,
        "parameter_count": member.parameter_count,
        "params": dict(member.params),
    }


def make_report(ensemble: "Ensemble", *, split: str, selection: str) -> EnsembleReport:
    """Return the report of an ensemble; `split` judges, `selection` is where its members were chosen."""
    first = ensemble.members[0]
    metric = METRICS[default_metric(first.output)]
    names = [name for name in first.splits if name in {split, selection}]
    predictions = {name: list(ensemble.member_predictions(name)) for name in names}
    targets = {name: first.targets(name) for name in names}
    # Each split is combined once; all figures below are of these arrays.
    pooled = {name: combine(ensemble.rule, item, ensemble.weights) for name, item in predictions.items()}
    calibration = ensemble.calibration
    content = pooled if calibration is None else {name: calibration.apply(item) for name, item in pooled.items()}
    before = _measure_prediction(first.output, pooled.get(split), targets.get(split))
    after = None if calibration is None else _measure_prediction(first.output, content.get(split), targets.get(split))
    count = len(ensemble.members)
    return EnsembleReport(
        output=first.output,
        rule=ensemble.rule.name,
        metric=metric.name,
        rows=split,
        losses={name: float(metric.row_losses(item, targets[name]).mean()) for name, item in content.items()},
        members=_member_table(ensemble, predictions.get(selection), targets.get(selection)),
        before=before,
        after=after,
        calibration=None if calibration is None else asdict(calibration),
        conformal=_measure_promise(ensemble.conformity, pooled.get(split), targets.get(split)),
        rows_seen_by_search=split in first.splits and first.splits[split].source is not None,
        seconds_per_row=ensemble.cost_seconds,
        bytes=ensemble.nbytes,
        cost=f"{count} members on one busy device: about 1/{count} of one member's rows a second" if count > 1 else "",
    )


def _measure_prediction(output: str, pooled: Array | None, targets: Array | None) -> dict[str, Any] | None:
    if pooled is None or targets is None:
        return None
    if output == "classes":
        return score_probabilities(pooled, targets)
    # Of moments the means alone; the likelihood judges the variances.
    names = {"squared_error": "squared_error", **({"nll": "normal_nll", "crps": "crps"} if output == "moments" else {})}
    return {"rows": len(targets), **{name: METRICS[metric].score(pooled, targets) for name, metric in names.items()}}


def _measure_promise(
    conformity: Conformal | None, pooled: Array | None, targets: Array | None
) -> dict[str, Any] | None:
    """Return what was promised and, unless it depends on groups that no library knows, what held rows say."""
    if conformity is None:
        return None
    promise = {name: getattr(conformity, name) for name in ("alpha", "method", "by", "rows")}
    if pooled is None or targets is None or conformity.by == "group":
        return {**promise, "coverage": None, "size": None}
    if pooled.ndim == 2 and targets.ndim == 1:
        sets = conformity.predict_set(pooled)
        inside, sizes = sets[np.arange(len(targets)), targets], sets.sum(axis=1)
    else:
        ends = conformity.predict_interval(pooled)
        inside, sizes = (ends[..., 0] <= targets) & (targets <= ends[..., 1]), ends[..., 1] - ends[..., 0]
    return {**promise, "coverage": float(inside.mean()), "size": float(sizes.mean())}


def _member_table(
    ensemble: "Ensemble", predictions: Sequence[Array] | None, targets: Array | None
) -> list[dict[str, Any]]:
    metric, rule, weights = METRICS[default_metric(ensemble.output)], ensemble.rule, ensemble.weights

    def loss(chosen: Sequence[int]) -> float | None:
        if predictions is None or targets is None or not chosen:
            return None
        used = rule.without(frozenset(every) - frozenset(chosen)) if len(chosen) < len(every) else rule
        found = combine(used, [predictions[one] for one in chosen], [weights[one] for one in chosen])
        return float(metric.row_losses(found, targets).mean())

    every = range(len(weights))
    # A member's gain is what the ensemble loses without it, its weight given to the others.
    whole = loss(every)
    rows = []
    for place, member in enumerate(ensemble.members):
        without = loss([one for one in every if one != place])
        rows.append(
            {
                **describe_member(member, weights[place]),
                "loss": loss([place]),
                "gain": None if without is None or whole is None else without - whole,
            }
        )
    return sorted(rows, key=lambda row: (-row["weight"], row["trial"]))

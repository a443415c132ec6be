"""An ensemble: a few members, their weights and their rule; what they predict and how sure, and what they score."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.ensemble.combine.calibration import Calibration, calibrate
from trainwright.ensemble.combine.conformal import Conformal
from trainwright.ensemble.combine.rules import CombinationRule, combine, default_rule, find_rule, make_rule
from trainwright.ensemble.combine.stacking import choose_rule
from trainwright.ensemble.combine.uncertainty import OOD_SCORES, InputDistance, Uncertainty, decompose_uncertainty
from trainwright.ensemble.ensemble_report import EnsembleReport, describe_member, make_report
from trainwright.ensemble.export.folder import read_export, write_export
from trainwright.ensemble.library.member import Member
from trainwright.ensemble.library.networks import build_network, predict_member
from trainwright.ensemble.library.predictions import Output, normalise_rows
from trainwright.ensemble.metrics import SMALLEST, Array, MetricLike, find_metric
from trainwright.errors import EnsembleError, ExportError, closest

if TYPE_CHECKING:
    import torch

__all__ = ["Ensemble", "find_ood_score"]

_UNUSUAL = 0.95  # share of calibration rows that are less uncertain than the threshold


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Members with weights that sum to 1, in ascending trial number; one member is an ensemble too."""

    members: tuple[Member, ...]
    weights: tuple[float, ...]
    rule: CombinationRule = None  # type: ignore[assignment]  # None, or a name, becomes a rule that fits the predictions
    calibration: Calibration | None = None  # fitted to the pooled prediction; see `calibrated`
    conformity: Conformal | None = None  # what sets and intervals rest on; see `conformal`
    threshold: float | None = None  # epistemic uncertainty above which a row is unlike the calibration rows
    distance: InputDistance | None = None  # from the training inputs; see `with_inputs`
    saved_report: Mapping[str, Any] = field(
        default_factory=dict, repr=False, compare=False
    )  # report of a loaded ensemble

    def __post_init__(self) -> None:
        if not self.members or len(self.weights) != len(self.members):
            raise EnsembleError(
                f"Ensemble: got {len(self.members)} members and {len(self.weights)} weights; allowed: one member or "
                "more, with a weight each"
            )
        rule = default_rule(self.output) if self.rule is None else make_rule(self.rule, self.output)
        object.__setattr__(self, "rule", rule)

    @property
    def output(self) -> Output:
        """Kind of the predictions: "classes", "values", or "moments" (mean and variance)."""
        return self.members[0].output

    @property
    def cost_seconds(self) -> float | None:
        """Seconds per row at batch 128, summed over the members; None if a member's were not measured."""
        seconds = [member.seconds_per_row for member in self.members if member.seconds_per_row is not None]
        return math.fsum(seconds) if len(seconds) == len(self.members) else None

    @property
    def nbytes(self) -> int | None:
        """Bytes of the members' parameters and buffers; None if a member's are unknown."""
        sizes = [member.weight_bytes for member in self.members if member.weight_bytes is not None]
        return sum(sizes) if len(sizes) == len(self.members) else None

    def predict(self, x: "Array | torch.Tensor", *, batch_rows: int = 512, device: str = "cpu") -> Array:
        """Return the combined and, if calibrated, calibrated prediction for a batch x [N, ...], in float64.

        Probabilities [N, C], values [N, T], or means and variances [N, T, 2]. The members' networks are built at the
        first call; they need weights in the library (see `leave`, factory).
        """
        return self._apply_calibration(self._pool_outputs(x, device, batch_rows))

    def uncertainty(self, x: "Array | torch.Tensor", *, batch_rows: int = 512, device: str = "cpu") -> Uncertainty:
        """Return the uncertainty of the members' weighted mixture for a batch x [N, ...], before calibration."""
        return decompose_uncertainty(self._member_outputs(x, batch_rows, device), self.weights, self.output)

    def ood_score(self, x: "Array | torch.Tensor", score: str | None = None, *, device: str = "cpu") -> Array:
        """Return per row [N] how unlike the training data it is: higher is further.

        "distance" is that from the training inputs, for which `with_inputs` is needed, and what is used then; "total"
        the predictive entropy, or the whole variance; "epistemic" the disagreement alone, 0 of a single member.
        """
        score = find_ood_score(score, self.distance)
        if score == "distance" and self.distance is not None:
            return self.distance.measure(np.asarray(x))
        doubt = self.uncertainty(x, device=device).per_row()
        return doubt.epistemic if score == "epistemic" else doubt.total

    def with_inputs(self, x: Array, labels: Array | None = None) -> "Ensemble":
        """Return the ensemble that knows the training rows x [N, ...], and their classes [N]; see `InputDistance`."""
        return replace(self, distance=InputDistance.fit(x, labels))

    def predictions(self, split: str = "test") -> Array:
        """Return what `predict` says to the rows of a split, by ascending row id, from the kept predictions.

        In float64, [N, C] or [N, T, 2], and calibrated if the ensemble is.
        """
        return self._apply_calibration(self._pool_members(split))

    def member_predictions(self, split: str = "test") -> Iterator[Array]:
        """Yield the members' kept predictions of a split, one at a time in memory; probabilities sum to 1."""
        for member in self.members:
            stored = member.predictions(split)
            yield normalise_rows(stored) if self.output == "classes" else stored.astype(np.float64)

    def score(self, split: str = "test", metric: MetricLike = "accuracy") -> float:
        """Return a metric, such as "accuracy" or "cross_entropy", of what the ensemble predicts on a split.

        "test" rows are read here and in `report`, and nowhere else: no choice is made on them.
        """
        chosen = find_metric(metric, self.output)
        # A linear rule needs only the true class's column, clipped member by member as selection does.
        untouched = self.calibration is None or self.calibration.applied == 1.0
        if chosen.of_true is not None and self.rule.linear and untouched:
            true = (member.true(split).clip(SMALLEST)[:, None] for member in self.members)
            return float(chosen.of_true(combine(self.rule, true, self.weights)[:, 0]).mean())
        return chosen.score(self.predictions(split), self.members[0].targets(split))

    def with_rule(self, rule: str | CombinationRule, split: str = "selection") -> "Ensemble":
        """Return the same members under another rule; one that learns is fitted on the kept predictions of `split`.

        "auto" fits a linear head, and takes it where rows left out of it say that it helps; see `choose_rule`.
        """
        if rule == "auto":
            targets = self.members[0].targets(split)
            rule = choose_rule(list(self.member_predictions(split)), targets, self.output)
        rule = make_rule(rule, self.output)
        if type(rule).fit is not CombinationRule.fit and rule == find_rule(rule.name):  # not fitted yet
            rule = rule.fit(list(self.member_predictions(split)), self.members[0].targets(split))
        # Both were fitted to what the earlier rule predicts.
        return replace(self, rule=rule, calibration=None, conformity=None)

    def calibrated(self, split: str = "calibration") -> "Ensemble":
        """Return the ensemble with its pooled prediction calibrated on the kept rows of a split that chose nothing.

        The epistemic uncertainty that 95 % of those rows stay below becomes the `threshold`. Values without variances
        have nothing to calibrate.
        """
        # The threshold is found before calibration, as is the uncertainty that it is compared with.
        targets = self.members[0].targets(split)
        spread = decompose_uncertainty(self.member_predictions(split), self.weights, self.output).per_row().epistemic
        return replace(
            self,
            calibration=None if self.output == "values" else calibrate(self._pool_members(split), targets),
            threshold=float(np.quantile(spread, _UNUSUAL)),
        )

    def conformal(
        self,
        alpha: float = 0.1,
        split: str = "calibration",
        *,
        method: str | None = None,
        by: str | None = None,
        groups: object | None = None,
    ) -> "Ensemble":
        """Return the ensemble with sets (`predict_set`) or intervals (`predict_interval`) that miss a share alpha.

        On average over new rows drawn as those of a split that chose nothing, a truth is inside with a chance of at
        least 1 - alpha, whatever the members are worth. With `by` "class", or "group" and the integer group [N] of each
        row in `groups`, the same holds within each of them. `method` is one of
        `trainwright.ensemble.combine.conformal.METHODS`. Raises EnsembleError for fewer than ceil(1 / alpha) - 1 rows,
        in each class or group.
        """
        targets = self.members[0].targets(split)
        # Of the prediction before calibration, which was fitted to the same rows: the promise would not hold.
        pooled = self._pool_members(split)
        found = Conformal.fit(pooled, targets, output=self.output, alpha=alpha, method=method, by=by, groups=groups)
        return replace(self, conformity=found)

    def predict_set(self, x: "Array | torch.Tensor", groups: object | None = None, *, device: str = "cpu") -> Array:
        """Return for a batch x [N, ...] which classes [N, C], booleans, are in the set of each row; see `conformal`."""
        return self._promise("classes").predict_set(self._pool_outputs(x, device), groups)

    def predict_interval(
        self, x: "Array | torch.Tensor", groups: object | None = None, *, device: str = "cpu"
    ) -> Array:
        """Return for a batch x [N, ...] the low and high ends [N, T, 2] of each output's interval; see `conformal`."""
        return self._promise("values", "moments").predict_interval(self._pool_outputs(x, device), groups)

    def report(self, split: str = "test", selection: str = "selection") -> EnsembleReport:
        """Return the members, what each contributes on the `selection` rows, and the scores of all on `split`'s.

        A loaded ensemble has no kept predictions: its report is the one it was saved with.
        """
        if not any(member.splits for member in self.members) and self.saved_report:
            return EnsembleReport(**self.saved_report)
        return make_report(self, split=split, selection=selection)

    def save(self, directory: str | Path, *, self_contained: bool = False, replace: bool = False) -> Path:
        """Write a folder that needs neither study nor pickle: a manifest with digests, and each member's weights.

        With `self_contained` torch networks that were not left with `export=True` are written as ONNX files now, so
        that no factory is needed to load them. The folder appears whole or not at all, and must not exist; with
        `replace` an ensemble that was saved there gives way. Returns it.
        """
        # A loaded ensemble has no kept predictions; it passes on the report that it was saved with.
        splits = self.members[0].splits
        report = self.report().to_json() if {"test", "selection"} <= set(splits) else dict(self.saved_report)
        return write_export(
            Path(directory),
            self.members,
            {
                "output": self.output,
                "weights": list(self.weights),
                "rule": self.rule.to_json(),
                "calibration": None if self.calibration is None else asdict(self.calibration),
                "conformity": None if self.conformity is None else asdict(self.conformity),
                "threshold": self.threshold,
                "distance": None if self.distance is None else self.distance.to_json(),
                "splits": {name: split.digest for name, split in splits.items()},
                "report": report,
            },
            self_contained=self_contained,
            replace=replace,
        )

    @classmethod
    def load(cls, directory: str | Path) -> "Ensemble":
        """Return the ensemble of a folder that `save` wrote; every digest is verified, nothing is half loaded.

        A member that is an ONNX file runs operators of onnxruntime and no other code, whoever wrote it. A member with a
        factory is your own code: the function that it names is imported from your machine when it first predicts, and
        what it does with the member's files is up to it.
        """
        members, manifest = read_export(Path(directory))
        calibration, threshold = manifest["calibration"], manifest["threshold"]
        conformity, distance = manifest.get("conformity"), manifest.get("distance")
        try:
            return cls(
                members=members,
                weights=tuple(manifest["weights"]),
                rule=make_rule(manifest["rule"], members[0].output),
                calibration=None if calibration is None else Calibration(**calibration),
                conformity=None if conformity is None else Conformal.from_json(conformity),
                threshold=None if threshold is None else float(threshold),
                distance=None if distance is None else InputDistance.from_json(distance),
                saved_report=dict(manifest["report"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ExportError(
                f"{directory}: its manifest describes no ensemble ({error}); allowed: a folder that Ensemble.save wrote"
            ) from error

    def table(self) -> list[Mapping[str, Any]]:
        """Return one row per member for display: the heaviest first."""
        rows = [describe_member(member, weight) for member, weight in zip(self.members, self.weights, strict=True)]
        return sorted(rows, key=lambda row: (-row["weight"], row["trial"]))

    @cached_property
    def networks(self) -> "tuple[torch.nn.Module, ...]":
        """The members' networks in evaluation mode, in member order, built once."""
        return tuple(build_network(member) for member in self.members)

    def _promise(self, *outputs: str) -> Conformal:
        if self.output not in outputs or self.conformity is None:
            what = f"predictions that are {self.output}" if self.output not in outputs else "no calibration rows yet"
            raise EnsembleError(
                f"Ensemble: got {what}; allowed: predict_set of classes and predict_interval of values, after "
                "ensemble.conformal(alpha)"
            )
        return self.conformity

    def _pool_outputs(self, x: "Array | torch.Tensor", device: str, batch_rows: int = 512) -> Array:
        return combine(self.rule, self._member_outputs(x, batch_rows, device), self.weights)

    def _pool_members(self, split: str) -> Array:
        return combine(self.rule, self.member_predictions(split), self.weights)

    def _apply_calibration(self, pooled: Array) -> Array:
        return pooled if self.calibration is None else self.calibration.apply(pooled)

    def _member_outputs(self, x: "Array | torch.Tensor", batch_rows: int, device: str) -> Iterator[Array]:
        for member, network in zip(self.members, self.networks, strict=True):
            yield predict_member(network, x, member, batch_rows=batch_rows, device=device)


def find_ood_score(score: str | None, distance: InputDistance | None) -> str:
    """Return the score to tell rows unlike the training data by: the distance if there is one, else the total."""
    score = score or ("total" if distance is None else "distance")
    if score not in OOD_SCORES or (score == "distance" and distance is None):
        raise EnsembleError(
            f"ood_score: got {score!r}; allowed: {', '.join(OOD_SCORES)}, distance after ensemble.with_inputs(x, y)"
            f"{closest(score, OOD_SCORES)}"
        )
    return score

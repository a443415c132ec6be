"""Checks on what a trial leaves: predictions, targets and row ids of a split, put in order and named by a digest."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trainwright.ensemble.metrics import METRICS, SMALLEST, Array, default_metric
from trainwright.errors import PredictionError

__all__ = ["TOLERANCE", "Output", "SplitRows", "check_kept", "check_split", "digest_of", "normalise_rows"]

Output = Literal["classes", "values", "moments"]  # probabilities, numbers, pairs of mean and variance

TOLERANCE = (
    1e-2  # how far a row of class probabilities may sum from 1: float16 and bfloat16 outputs pass, logits do not
)
_BLOCK_ROWS = 4096
_FLOAT16_DRIFT = 1e-4  # relative change of the loss from which on rounding to float16 is refused


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRows:
    """One split in ascending order of row id: predictions [N, C] or [N, T, 2], targets [N] or [N, T], ids or None."""

    name: str
    output: Output
    predictions: Array  # class probabilities sum to 1 as closely as their precision allows
    targets: Array  # little-endian int32 classes or float32 values
    ids: Array | None

    @property
    def true(self) -> Array:
        """Probability of the true class [N], float32."""
        return self.predictions[np.arange(len(self.targets)), self.targets].astype("<f4")

    def digest(self, data: str | None) -> str:
        """Return the BLAKE2b-128 of data name, split name, row count, row ids and targets: equal for equal rows."""
        return digest_of(data, self.name, self.output, self.targets, self.ids)

    def stored(self) -> tuple[str, Array]:
        """Return ("f16" or "f32", predictions in it): float32 where rounding would move the loss by over 1e-4."""
        with np.errstate(over="ignore"):  # values beyond float16 become infinite, which the comparison refuses
            rounded = self.predictions.astype("<f2")
        metric = METRICS[default_metric(self.output)]
        exact = metric.score(self.predictions.astype(np.float64), self.targets)
        retained = normalise_rows(rounded) if self.output == "classes" else rounded.astype(np.float64)
        # A variance may round to 0, which gives an infinite loss and so float32.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # a variance may round to 0: refused too
            drift = abs(metric.score(retained, self.targets) - exact)
        # float16 halves the library where it changes the loss by less than 1e-4 relative.
        if drift <= _FLOAT16_DRIFT * max(abs(exact), SMALLEST):
            return "f16", rounded
        return "f32", self.predictions.astype("<f4")


def digest_of(data: str | None, name: str, output: str, targets: Array, ids: Array | None) -> str:
    """Return the BLAKE2b-128 of data name, split name, kind, row count, row ids and targets."""
    head = json.dumps([data, name, "classes" if output == "classes" else "values", len(targets), ids is not None])
    digest = hashlib.blake2b(head.encode(), digest_size=16)
    if ids is not None:
        digest.update(np.ascontiguousarray(ids).data)
    digest.update(np.ascontiguousarray(targets).reshape(-1).data)
    return digest.hexdigest()


def normalise_rows(probabilities: Array) -> Array:
    """Return rows [N, C] in float64, each divided by its sum: rounding to float16 leaves sums beside 1."""
    wide = probabilities.astype(np.float64)
    return np.asarray(wide / wide.sum(axis=1, keepdims=True))


def check_kept(retained: Array, output: Output) -> None:
    """Refuse what `check_split` would not have let pass: kept predictions, or probabilities of the true class [N]."""
    for start in range(0, len(retained), _BLOCK_ROWS):
        block = retained[start : start + _BLOCK_ROWS].astype(np.float32)
        rows = block.reshape(len(block), -1)
        wrong, why = ~np.isfinite(rows).all(axis=1), "is not finite"
        if output == "classes" and not wrong.any():
            sums = rows.sum(axis=1)
            wrong = (rows < 0).any(axis=1) | (sums > 1 + TOLERANCE) | ((sums < 1 - TOLERANCE) & (rows.shape[1] > 1))
            why = "is no row of probabilities"
        if output == "moments" and not wrong.any():
            wrong, why = (block[..., 1] <= 0).any(axis=1), "has a variance that is not above 0"
        if wrong.any():
            raise PredictionError(f"row {start + int(np.argmax(wrong))} {why}")


def check_split(name: str, predictions: Any, targets: Any, ids: Any) -> SplitRows:
    """Return one split checked and ordered by row id, or raise PredictionError in one sentence."""
    where = f"leave, predictions[{name!r}]"
    values, truth = _to_array(predictions, where), _to_array(targets, f"leave, targets[{name!r}]")
    if truth.ndim == 0 or len(truth) == 0:
        raise PredictionError(f"leave, targets[{name!r}]: got shape {truth.shape}; allowed: at least one row")
    if truth.dtype.kind in "iub":
        values, truth = _check_classes(where, name, values, truth)
        output: Output = "classes"
    elif truth.dtype.kind == "f":
        values, truth = _check_values(where, name, values, truth)
        output = "values" if values.ndim == 2 else "moments"
    else:
        raise PredictionError(
            f"leave, targets[{name!r}]: got dtype {truth.dtype}; allowed: integers (classes) or floats"
        )
    if ids is None:
        order = None
    else:
        ids, order = _order_rows(name, ids, len(truth))
        values, truth = values[order], truth[order]
    return SplitRows(name=name, output=output, predictions=values, targets=np.ascontiguousarray(truth), ids=ids)


def _to_array(value: Any, where: str) -> Array:
    if hasattr(value, "detach"):  # a tensor; its own methods bring it here, so torch need not be imported
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() and value.element_size() < 4 else value).numpy()  # bfloat16
    if not isinstance(value, np.ndarray):
        raise PredictionError(f"{where}: got {type(value).__name__}; allowed: a numpy array or a torch tensor")
    return value.astype(np.float32) if value.dtype == np.float16 else value


def _check_classes(where: str, name: str, values: Array, labels: Array) -> tuple[Array, Array]:
    if labels.ndim != 1:
        raise PredictionError(
            f"leave, targets[{name!r}]: got shape {labels.shape}; allowed: one class number a row, (N,)"
        )
    if values.ndim != 2 or len(values) != len(labels) or values.shape[1] < 2:
        raise PredictionError(
            f"{where}: got shape {values.shape}; allowed: ({len(labels)}, C), a row of C >= 2 class probabilities for "
            f"each of the {len(labels)} targets"
        )
    if values.dtype.kind != "f":
        raise PredictionError(f"{where}: got dtype {values.dtype}; allowed: floats, the probabilities of the classes")
    classes = values.shape[1]
    _refuse_first(
        np.logical_not(np.isfinite(values).all(axis=1)),
        f"{where}: row {{}} is not finite; allowed: probabilities; mend the model",
    )
    _refuse_first(
        np.any(values < 0, axis=1), f"{where}: row {{}} is negative; allowed: probabilities; pass the softmax output"
    )
    sums = values.sum(axis=1, dtype=np.float64)
    off = np.abs(sums - 1.0) > TOLERANCE
    if off.any():
        row = int(np.argmax(off))
        raise PredictionError(
            f"{where}: row {row} sums to {sums[row]:.6g}; allowed: 1 within {TOLERANCE}; pass the "
            "softmax output, not logits"
        )
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        row = int(np.argmax(outside))
        raise PredictionError(
            f"leave, targets[{name!r}]: row {row} has class {int(labels[row])}; allowed: 0 to {classes - 1}, as the "
            f"predictions have {classes} columns"
        )
    return (values / sums[:, None]).astype(values.dtype), labels.astype("<i4")


def _check_values(where: str, name: str, values: Array, truth: Array) -> tuple[Array, Array]:
    # One axis of 2 more than the targets means pairs of mean and variance.
    paired = values.shape == (*truth.shape, 2)  # mean and variance
    values, truth = (
        values[:, None] if values.ndim == 1 + paired else values,
        truth[:, None] if truth.ndim == 1 else truth,
    )
    if truth.ndim != 2 or values.shape != (*truth.shape, 2)[: 2 + paired]:
        raise PredictionError(
            f"{where}: got shape {values.shape} for targets of shape {truth.shape}; allowed: equal shapes (N,) or "
            "(N, T) for real values, a last axis of 2 more for means and variances; classes need integer targets"
        )
    if values.dtype.kind != "f":
        raise PredictionError(f"{where}: got dtype {values.dtype}; allowed: floats")
    _refuse_first(
        np.logical_not(np.isfinite(values).reshape(len(values), -1).all(axis=1)),
        f"{where}: row {{}} is not finite; allowed: finite values; mend the model",
    )
    _refuse_first(
        np.logical_not(np.isfinite(truth).all(axis=1)),
        f"leave, targets[{name!r}]: row {{}} is not finite; allowed: finite values",
    )
    if paired:
        _refuse_first(
            np.any(values[..., 1] <= 0, axis=1),
            f"{where}: row {{}} has a variance that is not above 0; allowed: (mean, variance) in the last axis; pass "
            "softplus or exp of the network's output",
        )
    return values, truth.astype("<f4")


def _refuse_first(bad: Array, sentence: str) -> None:
    if bad.any():
        raise PredictionError(sentence.format(int(np.argmax(bad))))


def _order_rows(name: str, ids: Any, count: int) -> tuple[Array, Array]:
    where = f"leave, rows[{name!r}]"
    ids = _to_array(ids, where)
    if ids.shape != (count,) or ids.dtype.kind not in "iu":
        raise PredictionError(
            f"{where}: got {ids.dtype} of shape {ids.shape}; allowed: {count} integers, one id per row"
        )
    order = np.argsort(ids, kind="stable")
    ordered = ids[order].astype("<i8")
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise PredictionError(f"{where}: got id {int(ordered[twice[0]])} twice; allowed: each id once")
    return ordered, order

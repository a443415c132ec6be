"""Predictions that a trial leaves: validated, put in order and named by a digest."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import PredictionError

__all__ = [
    "ALLOWED",
    "Output",
    "SplitRows",
    "check_split",
    "check_stored",
    "digest_of",
    "find_fault",
    "normalise_rows",
]

Output = Literal["classes", "values", "moments"]  # probabilities, numbers, pairs of mean and variance

ALLOWED = {
    "classes": "probabilities that sum to 1 within 0.01; pass the softmax output, not logits",
    "values": "finite values; mend the model",
    "moments": "finite (mean, variance) in the last axis; pass softplus or exp of the network's output as variance",
}
_TOLERANCE = 1e-2  # how far a row of probabilities may sum from 1: float16 and bfloat16 outputs pass, logits do not
_BLOCK_ROWS = 4096


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


def digest_of(data: str | None, name: str, output: str, targets: Array, ids: Array | None) -> str:
    """Return the BLAKE2b-128 of data name, split name, kind, row count, row ids and targets."""
    head = json.dumps([data, name, "classes" if output == "classes" else "values", len(targets), ids is not None])
    digest = hashlib.blake2b(head.encode(), digest_size=16)
    if ids is not None:
        digest.update(np.ascontiguousarray(ids).data)
    digest.update(np.ascontiguousarray(targets).reshape(-1).data)
    return digest.hexdigest()


def normalise_rows(probabilities: Array) -> Array:
    """Return rows [N, C] in float64, each divided by its sum: rounding leaves sums beside 1."""
    wide = probabilities.astype(np.float64)
    return np.asarray(wide / wide.sum(axis=1, keepdims=True))


def find_fault(predictions: Array, output: str) -> tuple[int, str] | None:
    """Return the first row that is no prediction of a kind, and what it is instead; None if all are.

    The kind "true" is that of probabilities of the true class [N].
    """
    rows = predictions.reshape(len(predictions), -1)
    # Finite first: comparisons with NaN are false, and would let it pass.
    faults = [(~np.isfinite(rows).all(axis=1), "is not finite")]
    if output in ("classes", "true"):
        sums = rows.sum(axis=1, dtype=np.float64)
        # The true class alone has any share of its row, so that only a sum above 1 is wrong.
        off = (sums > 1.0 + _TOLERANCE) | ((sums < 1.0 - _TOLERANCE) & (output == "classes"))
        faults += [((rows < 0).any(axis=1), "is negative"), (off, f"sums to {sums[np.argmax(off)]:.6g}")]
    if output == "moments":
        faults.append(((rows.reshape(len(rows), -1, 2)[..., 1] <= 0).any(axis=1), "has a variance that is not above 0"))
    return next(((int(np.argmax(wrong)), why) for wrong, why in faults if wrong.any()), None)


def check_stored(retained: Array, output: str) -> None:
    """Refuse what `check_split` would not have let pass: kept predictions, or probabilities of the true class [N]."""
    for start in range(0, len(retained), _BLOCK_ROWS):
        fault = find_fault(retained[start : start + _BLOCK_ROWS].astype(np.float32), output)
        if fault is not None:
            raise PredictionError(f"row {start + fault[0]} {fault[1]}")


def check_sample(found: Array, output: str, whose: str) -> None:
    """Refuse what a model predicts for a sample if it could not be left as predictions."""
    fault = find_fault(found, output)
    if fault is not None:
        raise PredictionError(f"{whose}: row {fault[0]} of the sample {fault[1]}; allowed: {ALLOWED[output]}")


def check_split(name: str, predictions: Any, targets: Any, ids: Any) -> SplitRows:
    """Return one split checked and ordered by row id, or raise PredictionError in one sentence."""
    where = f"leave, predictions[{name!r}]"
    values, truth = _to_array(predictions, where), _to_array(targets, f"leave, targets[{name!r}]")
    if truth.ndim == 0 or len(truth) == 0:
        raise PredictionError(f"leave, targets[{name!r}]: got shape {truth.shape}; allowed: at least one row")
    if truth.dtype.kind not in "iubf":
        raise PredictionError(
            f"leave, targets[{name!r}]: got dtype {truth.dtype}; allowed: integers (classes) or floats"
        )
    if values.dtype.kind != "f":
        raise PredictionError(f"{where}: got dtype {values.dtype}; allowed: floats")
    output: Output = "classes"
    if truth.dtype.kind == "f":
        values, truth = _shape_values(where, values, truth)
        output = "values" if values.ndim == 2 else "moments"
    else:
        _check_labels(where, name, values, truth)
    fault = find_fault(values, output)
    if fault is not None:
        raise PredictionError(f"{where}: row {fault[0]} {fault[1]}; allowed: {ALLOWED[output]}")
    if output == "classes":
        values = (values / values.sum(axis=1, dtype=np.float64)[:, None]).astype(values.dtype)
    if ids is not None:
        ids, order = _order_rows(name, ids, len(truth))
        values, truth = values[order], truth[order]
    kind = "<i4" if output == "classes" else "<f4"
    return SplitRows(name=name, output=output, predictions=values, targets=np.ascontiguousarray(truth, kind), ids=ids)


def _to_array(value: Any, where: str) -> Array:
    if hasattr(value, "detach"):  # a tensor; its own methods bring it here, so torch need not be imported
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() and value.element_size() < 4 else value).numpy()  # bfloat16
    if not isinstance(value, np.ndarray):
        raise PredictionError(f"{where}: got {type(value).__name__}; allowed: a numpy array or a torch tensor")
    return value.astype(np.float32) if value.dtype == np.float16 else value


def _check_labels(where: str, name: str, values: Array, labels: Array) -> None:
    if labels.ndim != 1:
        raise PredictionError(
            f"leave, targets[{name!r}]: got shape {labels.shape}; allowed: one class number a row, (N,)"
        )
    if values.ndim != 2 or len(values) != len(labels) or values.shape[1] < 2:
        raise PredictionError(
            f"{where}: got shape {values.shape}; allowed: ({len(labels)}, C), a row of C >= 2 class probabilities for "
            f"each of the {len(labels)} targets"
        )
    outside = (labels < 0) | (labels >= values.shape[1])
    if outside.any():
        row = int(np.argmax(outside))
        raise PredictionError(
            f"leave, targets[{name!r}]: row {row} has class {int(labels[row])}; allowed: 0 to {values.shape[1] - 1}, "
            f"as the predictions have {values.shape[1]} columns"
        )


def _shape_values(where: str, values: Array, truth: Array) -> tuple[Array, Array]:
    """Return values [N, T] or moments [N, T, 2], and targets [N, T]."""
    # One axis of 2 more than the targets means pairs of mean and variance.
    paired = values.shape == (*truth.shape, 2)
    values = values[:, None] if values.ndim == 1 + paired else values
    truth = truth[:, None] if truth.ndim == 1 else truth
    if truth.ndim != 2 or values.shape != (*truth.shape, 2)[: 2 + paired]:
        raise PredictionError(
            f"{where}: got shape {values.shape} for targets of shape {truth.shape}; allowed: equal shapes (N,) or "
            "(N, T) for real values, a last axis of 2 more for means and variances; classes need integer targets"
        )
    fault = find_fault(truth, "values")
    if fault is not None:
        raise PredictionError(f"{where.replace('predictions', 'targets')}: row {fault[0]} {fault[1]}; allowed: finite")
    return values, truth


def _order_rows(name: str, ids: Any, count: int) -> tuple[Array, Array]:
    where = f"leave, rows[{name!r}]"
    ids = _to_array(ids, where)
    if ids.shape != (count,) or ids.dtype.kind not in "iu":
        raise PredictionError(
            f"{where}: got {ids.dtype} of shape {ids.shape}; allowed: {count} integers, one id per row"
        )
    # On disk rows are in ascending id, so that equal sets of rows have equal digests.
    order = np.argsort(ids, kind="stable")
    ordered = ids[order].astype("<i8")
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise PredictionError(f"{where}: got id {int(ordered[twice[0]])} twice; allowed: each id once")
    return ordered, order

"""Checks on what a trial leaves: predictions, targets and row ids of a split, put in order and named by a digest."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trainwright.ensemble.metrics import SMALLEST, Array, cross_entropy, squared_error
from trainwright.errors import EnsembleError

__all__ = ["TOLERANCE", "Output", "SplitRows", "check_split", "normalised"]

Output = Literal["classes", "values"]

TOLERANCE = (
    1e-2  # how far a row of class probabilities may sum from 1: float16 and bfloat16 outputs pass, logits do not
)
_FLOAT16_DRIFT = 1e-4  # relative change of the loss from which on rounding to float16 is refused


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRows:
    """One split in ascending order of row id: predictions [N, C], targets [N] or [N, C], ids [N] or None."""

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
        head = json.dumps([data, self.name, self.output, len(self.targets), self.ids is not None])
        digest = hashlib.blake2b(head.encode(), digest_size=16)
        if self.ids is not None:
            digest.update(self.ids.data)
        digest.update(self.targets.reshape(-1).data)
        return digest.hexdigest()

    def stored(self) -> tuple[str, Array]:
        """Return ("f16" or "f32", predictions in it): float32 where rounding would move the loss by over 1e-4."""
        with np.errstate(over="ignore"):  # values beyond float16 become infinite, which the comparison refuses
            rounded = self.predictions.astype("<f2")
        classes = self.output == "classes"
        loss = cross_entropy if classes else squared_error
        exact = float(loss(self.predictions.astype(np.float64), self.targets).mean())
        kept = normalised(rounded) if classes else rounded.astype(np.float64)
        drift = abs(float(loss(kept, self.targets).mean()) - exact)
        if drift <= _FLOAT16_DRIFT * max(exact, SMALLEST):
            return "f16", rounded
        return "f32", self.predictions.astype("<f4")


def normalised(probabilities: Array) -> Array:
    """Return rows [N, C] in float64, each divided by its sum: rounding to float16 leaves sums beside 1."""
    wide = probabilities.astype(np.float64)
    return np.asarray(wide / wide.sum(axis=1, keepdims=True))


def check_split(name: str, predictions: Any, targets: Any, ids: Any) -> SplitRows:
    """Return one split checked and ordered by row id, or raise EnsembleError in one sentence."""
    where = f"leave, predictions[{name!r}]"
    values, truth = _array(predictions, where), _array(targets, f"leave, targets[{name!r}]")
    if truth.ndim == 0 or len(truth) == 0:
        raise EnsembleError(f"leave, targets[{name!r}]: got shape {truth.shape}; allowed: at least one row")
    if truth.dtype.kind in "iub":
        values, truth = _check_classes(where, name, values, truth)
        output: Output = "classes"
    elif truth.dtype.kind == "f":
        values, truth = _check_values(where, name, values, truth)
        output = "values"
    else:
        raise EnsembleError(f"leave, targets[{name!r}]: got dtype {truth.dtype}; allowed: integers (classes) or floats")
    if ids is None:
        order = None
    else:
        ids, order = _order(name, ids, len(truth))
        values, truth = values[order], truth[order]
    return SplitRows(name=name, output=output, predictions=values, targets=np.ascontiguousarray(truth), ids=ids)


def _array(value: Any, where: str) -> Array:
    if hasattr(value, "detach"):  # a tensor; its own methods bring it here, so torch need not be imported
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() and value.element_size() < 4 else value).numpy()  # bfloat16
    if not isinstance(value, np.ndarray):
        raise EnsembleError(f"{where}: got {type(value).__name__}; allowed: a numpy array or a torch tensor")
    return value.astype(np.float32) if value.dtype == np.float16 else value


def _check_classes(where: str, name: str, values: Array, labels: Array) -> tuple[Array, Array]:
    if labels.ndim != 1:
        raise EnsembleError(
            f"leave, targets[{name!r}]: got shape {labels.shape}; allowed: one class number a row, (N,)"
        )
    if values.ndim != 2 or len(values) != len(labels) or values.shape[1] < 2:
        raise EnsembleError(
            f"{where}: got shape {values.shape}; allowed: ({len(labels)}, C), a row of C >= 2 class probabilities for "
            f"each of the {len(labels)} targets"
        )
    if values.dtype.kind != "f":
        raise EnsembleError(f"{where}: got dtype {values.dtype}; allowed: floats, the probabilities of the classes")
    classes = values.shape[1]
    _first(
        np.logical_not(np.isfinite(values).all(axis=1)),
        f"{where}: row {{}} is not finite; allowed: probabilities; mend the model",
    )
    _first(
        np.any(values < 0, axis=1), f"{where}: row {{}} is negative; allowed: probabilities; pass the softmax output"
    )
    sums = values.sum(axis=1, dtype=np.float64)
    off = np.abs(sums - 1.0) > TOLERANCE
    if off.any():
        row = int(np.argmax(off))
        raise EnsembleError(
            f"{where}: row {row} sums to {sums[row]:.6g}; allowed: 1 within {TOLERANCE}; pass the "
            "softmax output, not logits"
        )
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        row = int(np.argmax(outside))
        raise EnsembleError(
            f"leave, targets[{name!r}]: row {row} has class {int(labels[row])}; allowed: 0 to {classes - 1}, as the "
            f"predictions have {classes} columns"
        )
    return (values / sums[:, None]).astype(values.dtype), labels.astype("<i4")


def _check_values(where: str, name: str, values: Array, truth: Array) -> tuple[Array, Array]:
    values, truth = (array[:, None] if array.ndim == 1 else array for array in (values, truth))
    if values.ndim != 2 or values.shape != truth.shape:
        raise EnsembleError(
            f"{where}: got shape {values.shape} for targets of shape {truth.shape}; allowed: equal shapes (N,) or "
            "(N, T) for real values; classes need integer targets"
        )
    if values.dtype.kind != "f":
        raise EnsembleError(f"{where}: got dtype {values.dtype}; allowed: floats")
    _first(
        np.logical_not(np.isfinite(values).all(axis=1)),
        f"{where}: row {{}} is not finite; allowed: finite values; mend the model",
    )
    _first(
        np.logical_not(np.isfinite(truth).all(axis=1)),
        f"leave, targets[{name!r}]: row {{}} is not finite; allowed: finite values",
    )
    return values, truth.astype("<f4")


def _first(bad: Array, sentence: str) -> None:
    if bad.any():
        raise EnsembleError(sentence.format(int(np.argmax(bad))))


def _order(name: str, ids: Any, count: int) -> tuple[Array, Array]:
    where = f"leave, rows[{name!r}]"
    ids = _array(ids, where)
    if ids.shape != (count,) or ids.dtype.kind not in "iu":
        raise EnsembleError(f"{where}: got {ids.dtype} of shape {ids.shape}; allowed: {count} integers, one id per row")
    order = np.argsort(ids, kind="stable")
    ordered = ids[order].astype("<i8")
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise EnsembleError(f"{where}: got id {int(ordered[twice[0]])} twice; allowed: each id once")
    return ordered, order

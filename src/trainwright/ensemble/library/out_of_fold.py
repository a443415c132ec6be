"""Cross-validates: makes out-of-fold predictions, so that each training row selects, and never fitted its model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.ensemble.library.callables import as_predictor
from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError
from trainwright.randomness import rng

__all__ = ["OutOfFold", "draw_folds", "out_of_fold"]


@dataclass(frozen=True, kw_only=True)
class OutOfFold:
    """A callable x [N, ...] -> predictions, the mean of the models of all folds; and what they said out of fold."""

    predictions: Array  # [N, ...] of the rows that they were fitted to, each by the model that did not see it
    models: tuple[Any, ...]
    output: str

    def __call__(self, x: Array) -> Array:
        """Return the mean of what the models predict."""
        columns = self.predictions.shape[1]
        found = [as_predictor(model, self.output, columns, "out_of_fold")(x) for model in self.models]
        return np.asarray(np.mean(found, axis=0))


def out_of_fold(
    fit: Callable[[Array, Array], Any], x: Array, y: Array, *, folds: int = 5, seed: int = 0, output: str | None = None
) -> OutOfFold:
    """Fit a model to all but one fold of the rows, for each fold, and predict that one with it.

    `fit(x, y)` returns an estimator, or a callable x -> predictions. Folds have equal shares of each class, where `y`
    holds integers. `output` is "classes", "values" or "moments"; default: by the type of `y`. Leave the predictions as
    those of the split "selection", and the result itself as the model.
    """
    if not isinstance(folds, int) or not 2 <= folds <= len(y) or len(x) != len(y):
        raise EnsembleError(
            f"out_of_fold: got {folds!r} folds of {len(x)} rows and {len(y)} targets; allowed: 2 folds or more, at "
            "most one for each row, and a target for each"
        )
    output = output or ("classes" if y.dtype.kind in "iu" else "values")
    columns = int(y.max()) + 1 if output == "classes" else None
    fold = draw_folds(y, folds, seed, 0)
    models, parts = [], []
    for one in range(folds):
        model = fit(x[fold != one], y[fold != one])
        models.append(model)
        parts.append(as_predictor(model, output, columns, f"out_of_fold, fold {one}")(x[fold == one]))
    predictions = np.empty((len(y), *parts[0].shape[1:]), dtype=parts[0].dtype)
    for one, part in enumerate(parts):
        predictions[fold == one] = part
    return OutOfFold(predictions=predictions, models=tuple(models), output=output)


def draw_folds(targets: Array, folds: int, seed: int, repeat: int) -> Array:
    """Return the fold [N] of each row; for classes all folds have equal shares of each class, as far as that goes."""
    order = rng(seed, "selection folds", repeat).permutation(len(targets))
    if targets.dtype.kind in "iu":
        # A stable sort keeps the random order within each class: its rows go to the folds in turn.
        order = order[np.argsort(targets[order], kind="stable")]
    fold = np.empty(len(targets), dtype=np.int64)
    fold[order] = np.arange(len(targets)) % folds
    return fold

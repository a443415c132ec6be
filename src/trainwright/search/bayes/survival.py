"""Weighs expected improvement by survival: the chance that early stopping lets a trial go on, per epoch that it costs.

A trial that is stopped at a rung never shows its end, so a place where trials are stopped again and again would stay
as promising as it was. With a chance P to pass a rung at the share s of a full training, a proposal improves with P
and costs s + (1 - s) P; where nobody would be stopped the quotient is 1. The rule itself is not asked: its cut is the
quantile of a rung's losses that as many trials have passed.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.search.bayes.gaussian_process import Embedding, Posterior
from trainwright.search.view import SearchView

__all__ = ["make_survival"]


def make_survival(
    view: SearchView, embedding: Embedding, posterior: Posterior, y: Array, places: NDArray[np.intp]
) -> Callable[[Array], Array] | None:
    """Return what gives the logarithm of P / (s + (1 - s) P) at rows, at the rung where it is least.

    `y` are the targets of the told rows at `places`, whose process has the hyperparameters of `posterior`. None if no
    rung has stopped anybody.
    """
    farthest = dict(zip(view.numbers.tolist(), view.rungs.tolist(), strict=True))
    for trial, rung in zip(view.numbers.tolist(), view.rungs.tolist(), strict=True):
        farthest[trial] = max(rung, farthest[trial])
    found = []
    for rung in range(view.top):
        here = np.flatnonzero((view.rungs == rung) & ~view.failed)
        # Who is under way has passed: a verdict comes with the report.
        passed = [farthest[n] > rung or n in view.open for n in view.numbers[here].tolist()]
        kept = (view.rungs[places] == rung) & ~view.failed[places]
        if all(passed) or not kept.any():
            continue
        told, targets = places[kept], y[kept]
        order = np.argsort(view.losses[told, 0], kind="stable")
        cut = np.quantile(view.losses[here, 0], np.mean(passed))
        cut = np.interp(cut, view.losses[told[order], 0], targets[order])
        # The rung's own rows say most of it, and are few: no question takes much longer.
        points = embedding(view.rows[told], view.progress[told])
        process = Posterior.of(posterior.hyperparameters, points, posterior.owners)
        middle = float(targets.mean())
        alpha = process.coefficients(targets - middle)
        found.append((process, alpha, float(cut) - middle, points[0, -1], view.ladder[rung] / view.horizon))
    if not found:
        return None

    def survival(rows: Array) -> Array:
        from scipy.special import log_ndtr

        least = np.zeros(len(rows))
        for process, alpha, cut, z, share in found:
            mean, variance = process.predict(alpha, embedding(rows, np.full(len(rows), z)))
            chance = log_ndtr((cut - mean) / np.sqrt(variance + process.hyperparameters.noise))
            least = np.minimum(least, chance - np.log(share + (1.0 - share) * np.exp(chance)))
        return least

    return survival

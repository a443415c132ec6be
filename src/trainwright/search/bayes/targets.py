"""Standardises and transforms losses (power transform) into targets of the Gaussian process; thins too many rows."""

import numpy as np

from trainwright.aliases import Array, Places
from trainwright.search.view import SearchView

__all__ = ["make_targets", "standardise_losses", "thin_rows"]


_LOWEST, _FENCE = -100.0, 1.5  # losses are clipped so many interquartile ranges from median and third quartile
_POWERS = np.linspace(-3.0, 3.0, 49)
_BEST = 0.5  # of the rows that a crowded rung may keep: the best


def make_targets(losses: Array, bounds: Array) -> tuple[Array, Array]:
    """Return targets [outcomes, rows] of losses [rows, outcomes], and the bounds [outcomes] on their scale."""
    pairs = [standardise_losses(column, bound) for column, bound in zip(losses.T, bounds, strict=True)]
    return np.stack([y for y, _ in pairs]), np.array([bound for _, bound in pairs])


def standardise_losses(losses: Array, bound: float) -> tuple[Array, float]:
    """Return losses as targets of mean 0 and deviation 1, nearly normal, and a bound on their scale.

    Losses are clipped far outside their quartiles, then bent by Yeo and Johnson's power (Biometrika 87, 2000) of
    greatest likelihood, since a process takes its residuals for normal. A failure is as bad as the worst result.
    """
    fine = np.isfinite(losses)
    if not fine.any():
        return np.zeros(len(losses)), bound
    values = 0.5 * np.append(losses[fine], bound)  # halves, since the range of doubles is no double
    low, middle, high = np.quantile(values[:-1], [0.25, 0.5, 0.75])
    scale = high - low or np.abs(values[:-1] - middle).max() or 1.0
    values = np.clip((values - middle) / scale, _LOWEST, (high - middle) / scale + _FENCE)
    deviation = values[:-1].std() or 1.0
    values = _power_transform((values - values[:-1].mean()) / deviation)
    deviation = values[:-1].std() or 1.0
    values = (values - values[:-1].mean()) / deviation
    # A failure counts as the worst result, or the process would return to where trials fail.
    y = np.full(len(losses), values[:-1].max())
    y[fine] = values[:-1]
    return y, float(values[-1]) if np.isfinite(bound) else bound


def _power_transform(values: Array) -> Array:
    """Return values under the power transform that makes all but the last most nearly normal."""
    powers = _POWERS[:, None]
    size = np.log1p(np.abs(values))
    up = values >= 0.0
    # ((1 + |v|)^p - 1) / p upwards with p the power, downwards with 2 less the power and the other sign.
    p = np.where(up, powers, 2.0 - powers)
    bent = np.where(up, 1.0, -1.0) * np.where(np.abs(p) < 1e-9, size, np.expm1(p * size) / np.where(p == 0.0, 1.0, p))
    # The likelihood of the transform needs its derivative at each value.
    slopes = (np.where(up, powers - 1.0, 1.0 - powers) * size)[:, :-1].sum(axis=1)  # logarithms of the derivative
    deviation = np.maximum(bent[:, :-1].std(axis=1), 1e-12)
    best = int(np.argmax(slopes - (len(values) - 1) * np.log(deviation)))
    found: Array = bent[best]
    return found


def thin_rows(view: SearchView, count: int, most: int) -> Places:
    """Return the places of at most so many of the first `count` rows, in their order.

    From the highest rung down all rows are kept; of the first rung that is too crowded the best and an even sample of
    the rest, and nothing below.
    """
    if count <= most:
        return np.arange(count)
    rungs = view.rungs[:count]
    chosen: list[Places] = []
    room = most
    # Rows of higher rungs say more about full training, so they are taken first.
    for rung in np.unique(rungs)[::-1]:
        here = np.flatnonzero(rungs == rung)
        if len(here) > room:
            ranks = np.argsort(np.argsort(view.losses[here], axis=0, kind="stable"), axis=0).sum(axis=1)
            # Failed rows come last: they say where not to go, which few of them do as well as many.
            order = here[np.argsort(np.where(view.failed[here], np.inf, ranks), kind="stable")]
            best = int(_BEST * room)
            rest = np.sort(order[best:])
            here = np.concatenate([order[:best], rest[np.linspace(0, len(rest) - 1, room - best).astype(np.intp)]])
        chosen.append(here)
        room -= len(here)
        if not room:
            break
    return np.sort(np.concatenate(chosen))

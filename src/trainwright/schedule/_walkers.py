"""A chain of walkers for posteriors that importance draws do not reach.

Moves stretch the line to another walker (Goodman and Weare, 2010); the evidence is a bridge between the walkers and a t
distribution fitted to them (Meng and Wong, 1996).
"""

from collections.abc import Sequence

import numpy as np

from trainwright.schedule._draws import Cloud, Model
from trainwright.schedule._families import Family, Grid
from trainwright.schedule._shapes import DRAWS, Array, Noise

__all__ = ["walk"]

_WALKERS = 64
_STEPS = 300  # the first half is dropped
_BATCHES = 6  # of steps, of which the effective sample is judged
_LEAST_SAMPLE = 100.0
_NU = 5.0  # degrees of freedom of the distribution at the other end of the bridge
_LOG_T = -3.992048535833725  # log density of the centre of a t distribution in five dimensions


def walk(model: Model, start: Cloud, end: Grid, noise: Noise) -> Sequence[tuple[Family, Array, Array, float]]:
    """Return family, draws [5, S], weights and log evidence of each family whose walkers mixed."""
    kept, densities = _chain(model, _begin(start, noise.seed), noise.seed)
    found = []
    for row, family in enumerate(model.families):
        draws = kept[:, row].transpose(1, 0, 2).reshape(5, -1)
        ends = family.curve(draws.astype(float), end)[0].reshape(len(kept), -1)
        if _effective(ends) >= _LEAST_SAMPLE:
            evidence = _bridge(model.only(np.array([row])), draws[:, ::5], densities[:, row].ravel()[::5], noise.seed)
            found.append((family, draws, np.ones(draws.shape[1]), evidence))
    return [part for part in found if np.isfinite(part[3])]


def _begin(cloud: Cloud, seed: np.random.Generator) -> Array:
    """Return walkers [F, 5, W], drawn from a cloud by weight, each draw at most once."""
    rows = np.argsort(cloud.log_weights + seed.gumbel(size=cloud.log_weights.shape), axis=1)[:, -_WALKERS:]
    return np.take_along_axis(cloud.theta, rows[:, None], axis=2)


def _chain(model: Model, walkers: Array, seed: np.random.Generator) -> tuple[Array, Array]:
    """Return the second half of the chain [steps, F, 5, W] and its log densities [steps, F, W]."""
    density, half = model.log_density(walkers), _WALKERS // 2
    stretch = (1.0 + seed.random((_STEPS, 2, half))) ** 2 / 2.0  # density 1 / sqrt(z) on [1/2, 2]
    partner, chance = seed.integers(half, size=(_STEPS, 2, half)), np.log(seed.random((_STEPS, 2, half)))
    kept, densities = [], []
    for step in range(_STEPS):
        for side in (0, 1):
            mine, other = slice(side * half, (side + 1) * half), slice((1 - side) * half, (2 - side) * half)
            fixed, z = walkers[:, :, other][:, :, partner[step, side]], stretch[step, side]
            proposed = fixed + z * (walkers[:, :, mine] - fixed)
            found = model.log_density(proposed)
            taken = chance[step, side] < 4.0 * np.log(z) + found - density[:, mine]
            np.copyto(walkers[:, :, mine], proposed, where=taken[:, None])
            np.copyto(density[:, mine], found, where=taken)
        if step >= _STEPS // 2:
            kept.append(walkers.copy())
            densities.append(density.copy())
    return np.stack(kept), np.stack(densities)


def _effective(values: Array) -> float:
    """Return the effective size of a sample [steps, W] by the spread of the means of batches of steps; 0 if stuck."""
    spread = values.reshape(_BATCHES, -1).mean(axis=1).var(ddof=1)
    return float(_BATCHES * values.var() / spread) if np.isfinite(spread) and spread > 0 else 0.0


def _bridge(model: Model, draws: Array, densities: Array, seed: np.random.Generator) -> float:
    """Return the log evidence of one family from draws [5, S] of its posterior and their log densities; nan if none."""
    mean, covariance = draws.mean(axis=1, keepdims=True, dtype=float), np.cov(draws, dtype=float)
    try:
        root = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return np.nan
    other = mean + root @ seed.standard_normal((5, DRAWS)) * np.sqrt(_NU / seed.chisquare(_NU, DRAWS))
    densities_of_other = model.log_density(other[None].astype(np.float32))[0]

    def fitted(theta: Array) -> Array:
        square = np.square(np.linalg.solve(root, theta - mean)).sum(axis=0)
        found: Array = _LOG_T - 0.5 * (_NU + 5.0) * np.log1p(square / _NU) - np.log(np.diagonal(root)).sum()
        return found

    here, there = densities.astype(float) - fitted(draws), densities_of_other.astype(float) - fitted(other)
    centre, ratio = np.median(here), 1.0
    here, there = np.exp(np.clip(here - centre, -300, 300)), np.exp(np.clip(there - centre, -300, 300))
    share = here.size / (here.size + there.size)
    for _ in range(20):
        over = (there / (share * there + (1 - share) * ratio)).mean()
        ratio = float(over / (1.0 / (share * here + (1 - share) * ratio)).mean())
    return float(np.log(ratio) + centre)

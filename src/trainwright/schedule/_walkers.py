"""A chain of walkers for posteriors that importance draws do not reach.

Moves stretch the line to another walker (Goodman and Weare, 2010); the evidence is a bridge between the walkers and a t
distribution fitted to them (Meng and Wong, 1996).
"""

from collections.abc import Sequence

import numpy as np

from trainwright.schedule._draws import DRAWS, Array, Cloud, Model, Noise
from trainwright.schedule._families import Family, Grid

__all__ = ["walk"]

_WALKERS = 64
_STEPS = 300  # the first half is dropped
_BATCHES = 6  # of steps, of which the effective sample is judged
_LEAST_SAMPLE = 100.0
_LOG_T = -3.992048535833725  # log density of the centre of a t distribution in five dimensions


def walk(model: Model, start: Cloud, end: Grid, noise: Noise) -> Sequence[tuple[Family, Array, Array, float]]:
    """Return family, draws [5, S], weights and log evidence of each family whose walkers mixed."""
    kept, densities = _chain(model, _begin(start, noise.seed), noise.seed)
    draws = kept.transpose(1, 2, 0, 3).reshape(len(model.families), 5, -1)
    log_evidence = _bridge(model, draws[:, :, ::5], densities.transpose(1, 0, 2).reshape(len(draws), -1)[:, ::5], noise)
    found = []
    for row, family in enumerate(model.families):
        ends = family.curve(draws[row], end)[0].reshape(kept.shape[0], -1)
        if np.isfinite(log_evidence[row]) and _effective(ends) >= _LEAST_SAMPLE:
            found.append((family, draws[row], np.ones(draws.shape[2]), float(log_evidence[row])))
    return found


def _begin(cloud: Cloud, seed: np.random.Generator) -> Array:
    """Return walkers [F, 5, W], drawn from a cloud by weights that are made flat enough to give different ones."""
    scaled = 0.2 * (cloud.log_weights - cloud.log_weights.max(axis=1, keepdims=True))
    gumbel = seed.gumbel(size=scaled.shape)
    rows = np.argsort(scaled + gumbel, axis=1)[:, -_WALKERS:]  # without replacement
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
    """Return the effective size of a sample [steps, W] by the spread of the means of batches of steps."""
    means = values.reshape(_BATCHES, -1).mean(axis=1)
    return float(_BATCHES * values.var() / max(means.var(ddof=1), 1e-300))


def _bridge(model: Model, draws: Array, densities: Array, noise: Noise) -> Array:
    """Return log evidences [F] from draws [F, 5, S] of the posteriors and their log densities."""
    mean = draws.mean(axis=2, keepdims=True)
    gap = draws - mean
    root = np.linalg.cholesky(gap @ gap.transpose(0, 2, 1) / gap.shape[2] + 1e-9 * np.eye(5))
    normal = noise.seed.standard_normal((5, DRAWS)) * np.sqrt(5.0 / noise.seed.chisquare(5.0, DRAWS))
    other = mean + root @ normal
    steep = np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1, keepdims=True)

    def fitted(theta: Array) -> Array:
        square = np.square(np.linalg.inv(root) @ (theta - mean)).sum(axis=1)
        found: Array = _LOG_T - 5.0 * np.log1p(square / 5.0) - steep
        return found

    here, there = densities - fitted(draws), model.log_density(other) - fitted(other)
    centre = np.median(here, axis=1, keepdims=True)
    here, there = np.exp(np.clip(here - centre, -300, 300)), np.exp(np.clip(there - centre, -300, 300))
    share, ratio = here.shape[1] / (here.shape[1] + there.shape[1]), np.ones((len(here), 1))
    for _ in range(20):
        over = (there / (share * there + (1 - share) * ratio)).mean(axis=1, keepdims=True)
        under = (1.0 / (share * here + (1 - share) * ratio)).mean(axis=1, keepdims=True)
        ratio = over / under
    found: Array = (np.log(ratio) + centre)[:, 0]
    return found

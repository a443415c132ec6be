"""The posterior of a learning curve's end, families mixed by their evidence.

y_i ~ StudentT(4, f(z_i), sigma), sigma half-normal(1), parameters normal. Importance draws of all families at once;
where they fail, a chain of walkers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.schedule._draws import LEAST, Cloud, Curve, Model, cloud, search
from trainwright.schedule._families import Family, Grid
from trainwright.schedule._shapes import DRAWS, Array, Noise, Prior
from trainwright.schedule._walkers import walk

__all__ = ["Posterior", "fits", "pareto_k", "posterior", "sound"]

_FARTHEST = 1e9  # no end is, in scaled units
_HOPELESS = 9.0  # a family of a share below exp(-9) is left out
# The middles of 16 equal shares of the t distribution with 4 degrees of freedom.
_HALF = np.array([0.08345, 0.25333, 0.43276, 0.63066, 0.86159, 1.1547, 1.58792, 2.56208])
_T4 = np.concatenate([-_HALF[::-1], _HALF])
_AGAIN = 4  # clouds that count, until one is sound


@dataclass(frozen=True, slots=True)
class Posterior:
    """Draws of f at the end [S], with weights that sum to 1, and their sigmas."""

    ends: Array
    sigmas: Array
    weights: Array

    def above(self, loss: float) -> float:
        """Return P(f(R) >= loss)."""
        return float(self.weights[self.ends >= loss].sum())

    def interval(self, share: float) -> tuple[float, float]:
        """Return where the last reported loss is expected, noise included: `share` of it, as much on either side."""
        rows = np.arange(self.ends.size)
        places = self.ends + self.sigmas * _T4[(rows * 0.41421356237309515 % 1.0 * _T4.size).astype(int)]
        order = np.argsort(places)
        mass = np.cumsum(self.weights[order])
        low, high = places[order[np.searchsorted(mass, [0.5 - 0.5 * share, 0.5 + 0.5 * share])]]
        return float(low), float(high)

    def scaled(self, centre: float, scale: float) -> "Posterior":
        """Return it in units of the study."""
        return Posterior(self.ends * scale + centre, self.sigmas * scale, self.weights)


def fits(families: Sequence[Family], curve: Curve, seed: np.random.Generator) -> Array:
    """Return the means of the parameters [F, 4] under the broad prior."""
    with np.errstate(all="ignore"):
        found, _ = search(Model.of(families, curve, Prior.broad(len(families))), Noise.of(seed), rounds=2)
    weights = found.weights.astype(float)
    means: Array = np.einsum("fs,fps->fp", weights, found.theta[:, :4]) / weights.sum(axis=1, keepdims=True)
    return means


def posterior(
    families: Sequence[Family], curve: Curve, prior: Prior, end: Grid, seed: np.random.Generator
) -> Posterior | None:
    """Return the posterior of the curve at the one point `end`, families mixed by evidence; None if none is sound."""
    noise = Noise.of(seed)
    with np.errstate(all="ignore"):
        model = Model.of(families, curve, prior)
        first, shape = search(model, noise, rounds=3)
        worth, top = _worth(model, first), float(first.evidence.max())
        # No evidence is above the greatest likelihood, and few draws do not miss it by much.
        least = np.minimum(first.likelihood, first.evidence + _HOPELESS)
        hopeful = np.flatnonzero(worth * (top - least) <= _HOPELESS)
        model, shape, trust = model.only(hopeful, worth), shape.only(hopeful), first.trust[hopeful]
        parts: list[tuple[Family, Array, Array, float]] = []  # family, draws [5, S], weights, evidence
        pool: Cloud | None = None
        top = -np.inf
        for _ in range(_AGAIN):
            found = cloud(model, shape, noise, count=DRAWS, trust=trust)
            pool, noise = found if pool is None else pool.joined(found), Noise.of(seed)
            weights, evidence = pool.weights.astype(float), pool.evidence
            good = np.array([sound(row) for row in weights])
            parts += [
                (model.families[row], pool.theta[row], weights[row], float(evidence[row]))
                for row in np.flatnonzero(good)
            ]
            top = max(top, float(evidence.max()))
            left = np.flatnonzero(~good & (evidence >= top - _HOPELESS))
            if not left.size:
                break
            shape = pool.adapted(model.prior).only(left)
            model, trust, pool = model.only(left), found.trust[left], pool.only(left)
        else:
            parts += walk(model, pool, end, noise) if pool is not None else []
        if not parts:
            return None
        top = max(evidence for *_, evidence in parts)
        ends = np.concatenate([family.curve(theta.astype(float), end)[0] for family, theta, _, _ in parts])
        mixed = np.concatenate([np.exp(evidence - top) * weights / weights.sum() for _, _, weights, evidence in parts])
        sigmas = np.exp(np.concatenate([theta[4] for _, theta, _, _ in parts]).astype(float))
    ends, sigmas = (np.clip(np.nan_to_num(values), -_FARTHEST, _FARTHEST) for values in (ends, sigmas))
    return Posterior(ends, sigmas, mixed / mixed.sum())


def _worth(model: Model, found: Cloud) -> float:
    """Return what share of the points counts, as their residuals from the best curve follow each other.

    Of n points whose residuals correlate by r with the next, as many as n (1 - r) / (1 + r) are independent.
    """
    row = int(found.evidence.argmax())
    theta = found.theta[row, :, found.best[row], None].astype(float)
    gap = model.curve.values - model.families[row].curve(theta, model.curve.grid)[:, 0]
    gap = gap - np.median(gap)
    far = 4.0 * np.median(np.abs(gap))  # outliers tell nothing of their neighbours
    gap = np.clip(gap, -far, far)
    follows = float(gap[1:] @ gap[:-1]) / float(gap @ gap + gap.size * LEAST**2)
    follows = min(max(follows, 0.0), 0.9)
    return (1.0 - follows) / (1.0 + follows)


def sound(weights: Array) -> bool:
    """Return whether importance weights can be trusted: an effective sample of 100 and a Pareto k of at most 0.7."""
    total = weights.sum()
    return bool(np.isfinite(total)) and total**2 >= 100 * (weights**2).sum() and pareto_k(weights) <= 0.7


def pareto_k(weights: Array) -> float:
    """Return the shape of the generalised Pareto tail of importance weights.

    Zhang and Stephens (2009), as in Vehtari et al. (JMLR 25, 2024).
    """
    count = int(min(0.2 * len(weights), 3 * np.sqrt(len(weights))))
    tail = np.partition(weights, len(weights) - count - 1)[-count - 1 :]
    tail.sort()
    x = tail[1:] - tail[0]
    if not x[-1] > 0:
        return np.inf
    x = np.maximum(x, x[-1] * 1e-15)
    m = 30 + int(np.sqrt(count))
    b = 1 / x[-1] + (1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / (3 * x[count // 4])
    k = np.log(1.0 - b[:, None] * x).mean(axis=1)
    likelihood = count * (np.log(-b / k) - k - 1)
    share = 1 / np.exp(likelihood - likelihood[:, None]).sum(axis=1)
    best = (b * share / share.sum()).sum()
    found = np.log1p(-best * x).mean()
    return float((found * count + 0.5 * 10) / (count + 10))

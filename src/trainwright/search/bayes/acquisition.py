"""Acquisition functions, least where a trial is most wanted, and how their appetite for the unknown decays.

UCB: mu - kappa s. EI and PI: expected improvement and its probability over the best target less a margin xi (Jones et
al., 1998). Names that end in d take the epistemic deviation alone, the spread of the trees' means; the others add the
variance within leaves (Égelé et al., arXiv 2207.00479). `appetite` stands for kappa or xi.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["ACQUISITIONS", "APPETITES", "SCHEDULES", "Acquisition", "Schedule", "ei", "pi", "ucb"]

Array = NDArray[np.float64]
Acquisition = Literal["UCBd", "UCB", "EId", "EI", "PId", "PI"]
Schedule = Literal["periodic", "constant", "bandit"]

_LAMBDA, _DELTA = 0.2, 0.05  # of the bandit schedule (Srinivas et al., ICML 2010, scaled down)


def ucb(mu: Array, deviation: Array, appetite: float, best: float) -> Array:
    """Return the lower confidence bound; `best` plays no part."""
    del best
    return mu - appetite * deviation


def ei(mu: Array, deviation: Array, appetite: float, best: float) -> Array:
    """Return the expected improvement over `best` - xi, negated; where nothing is uncertain, the improvement itself."""
    from scipy.special import ndtr

    better = best - appetite - mu
    with np.errstate(divide="ignore", invalid="ignore"):
        z = better / deviation
        expected = better * ndtr(z) + deviation * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    return -np.where(deviation > 0.0, expected, np.maximum(better, 0.0))


def pi(mu: Array, deviation: Array, appetite: float, best: float) -> Array:
    """Return the probability of being below `best` - xi, negated; where nothing is uncertain, that it is so."""
    from scipy.special import ndtr

    better = best - appetite - mu
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = ndtr(better / deviation)
    return -np.where(deviation > 0.0, chance, (better > 0.0).astype(np.float64))


ACQUISITIONS: dict[str, Callable[[Array, Array, float, float], Array]] = {"UCB": ucb, "EI": ei, "PI": pi}
APPETITES = {"UCB": (1.96, 0.01), "EI": (0.1, 1e-4), "PI": (0.1, 1e-4)}  # at the start and the end of a period


def _periodic(i: int, start: float, final: float, period: int, columns: int) -> float:
    """Return an exponential decay that starts anew every period."""
    del columns
    return float(start * (final / start) ** (i % period / period))


def _constant(i: int, start: float, final: float, period: int, columns: int) -> float:
    """Return the start, always."""
    del i, final, period, columns
    return start


def _bandit(i: int, start: float, final: float, period: int, columns: int) -> float:
    """Return the slowly growing square root of 2 lambda ln(d i^2 pi^2 / (6 delta)), i from 1."""
    del start, final, period
    return float(np.sqrt(2.0 * _LAMBDA * np.log(columns * max(1, i + 1) ** 2 * np.pi**2 / (6.0 * _DELTA))))


SCHEDULES: dict[Schedule, Callable[[int, float, float, int, int], float]] = {
    "periodic": _periodic,
    "constant": _constant,
    "bandit": _bandit,
}

"""Other selectors, written from what is published of them, on one matrix of the true class's probability [L, N].

Each gives a list of ensembles, as picks of members (repeats count), that its front consists of; the last is its answer.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["METHODS", "loss_of"]

Array = npt.NDArray[Any]
Picks = tuple[int, ...]


def loss_of(true: Array, picks: Picks) -> float:
    """Return the cross-entropy of the plain mean of picks."""
    return float(-np.log(np.maximum(true[list(picks)].mean(axis=0, dtype=np.float64), 1e-7)).mean())


def single_best(true: Array, _seconds: Array) -> list[Picks]:
    return [(int(np.argmin([loss_of(true, (one,)) for one in range(len(true))])),)]


def top_k(true: Array, _seconds: Array, largest: int = 8) -> list[Picks]:
    """Give the k best with equal weights, k = 1 to 8; the answer is the k of least loss."""
    order = np.argsort([loss_of(true, (one,)) for one in range(len(true))], kind="stable").tolist()
    found = [tuple(order[:k]) for k in range(1, largest + 1)]
    return [*found, min(found, key=lambda picks: loss_of(true, picks))]


def caruana(true: Array, _seconds: Array, steps: int = 50) -> list[Picks]:
    """Caruana et al. 2004: forward selection with replacement, best prefix, no limit on members."""
    path = _forward(true, (), steps)
    return [*path, min(path, key=lambda picks: loss_of(true, picks))]


def autogluon(true: Array, seconds: Array, steps: int = 25) -> list[Picks]:
    """As AutoGluon's weighted ensembles: losses rounded to 6 decimals, members already in preferred, best prefix.

    Expanded along cost: the ensemble is fitted again for each subset of the N cheapest of its members, so that there
    are N - 1 further ensembles.
    """
    best = _rounded(true, list(range(len(true))), steps)
    members = sorted(set(best), key=lambda one: seconds[one])
    found = [_rounded(true, members[:count], steps) for count in range(1, len(members))]
    return [*found, best]


def deephyper(true: Array, _seconds: Array, start: int = 5, most: int = 8, least_gain: float = 1e-3) -> list[Picks]:
    """As DeepHyper's greedy selector: from the 5 best, add what helps most while it helps by 1e-3, up to 8 members."""
    order = np.argsort([loss_of(true, (one,)) for one in range(len(true))], kind="stable").tolist()
    picks: Picks = tuple(order[:start])
    found = [picks]
    while len(set(picks)) < most:
        longer = _forward(true, picks, 1)[0]
        if loss_of(true, picks) - loss_of(true, longer) < least_gain:
            break
        picks = longer
        found.append(picks)
    return found


METHODS: dict[str, Callable[[Array, Array], list[Picks]]] = {
    "single best": single_best,
    "top-k": top_k,
    "caruana": caruana,
    "autogluon expansion": autogluon,
    "deephyper greedy": deephyper,
}


def _forward(true: Array, picks: Picks, steps: int) -> list[Picks]:
    total = true[list(picks)].sum(axis=0, dtype=np.float64)
    found = []
    for _ in range(steps):
        losses = -np.log(np.maximum((total + true) / (len(picks) + 1), 1e-7)).mean(axis=1)
        one = int(losses.argmin())
        picks, total = (*picks, one), total + true[one]
        found.append(picks)
    return found


def _rounded(true: Array, members: list[int], steps: int) -> Picks:
    total, path = np.zeros(true.shape[1]), []
    picks: Picks = ()
    for _ in range(steps):
        losses = -np.log(np.maximum((total + true[members]) / (len(picks) + 1), 1e-7)).mean(axis=1).round(6)
        ties = [one for one, loss in zip(members, losses.tolist(), strict=True) if loss == losses.min()]
        one = next((tie for tie in ties if tie in picks), ties[0])
        picks, total = (*picks, one), total + true[one]
        path.append((float(losses.min()), picks))
    return min(path, key=lambda step: (step[0], len(step[1])))[1]

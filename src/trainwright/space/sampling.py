"""Legal rows from the priors: rejection in rounds, then repair, then a sentence that says what nothing meets."""

import math
from collections.abc import Callable

import numpy as np

from trainwright.errors import SpaceInfeasible
from trainwright.space.axes import Array
from trainwright.space.rules import Rows, Rules

__all__ = ["draw_legal"]

ROUNDS = 100
PATIENCE = 20  # rounds of plain rejection before repair is considered
RARE = 1 / 1000  # a share of legal rows below this calls for repair
LEAST_BATCH, MOST_BATCH = 64, 8192


def draw_legal(rules: Rules, latent: Callable[[int], Array], count: int) -> Array:
    """Return `count` settled rows that pass all rules; `latent(n)` draws n rows from the priors.

    Plain rejection keeps the priors' law, restricted to legal rows. If after 20 rounds fewer than one row in 1000
    has passed, each broken row keeps its values but those that its broken rules name, which are drawn again.
    """
    drawn = found = 0
    passes = np.zeros(len(rules.rules))
    kept: list[Array] = []
    repair = False
    L = latent(count)
    for number in range(1, ROUNDS + 1):
        U = rules.layout.settle(L)
        verdicts = rules.verdicts(Rows(rules, U))
        legal = verdicts.all(axis=1)
        kept.append(U[legal])
        found += len(kept[-1])
        if found >= count:
            return np.concatenate(kept)[:count]
        if not repair:
            drawn += len(U)
            passes += verdicts.sum(axis=0)
        repair = repair or (number >= PATIENCE and found < RARE * drawn)
        if repair:
            L = _redraw(rules, L, latent(len(L)), verdicts)
        else:
            wanted = 1.2 * (count - found) * drawn / max(found, 0.5)
            L = latent(math.ceil(min(max(wanted, LEAST_BATCH), max(MOST_BATCH, 16 * count))))
    broken = [
        f"{rule.text!r} passed {100 * share:.1f} % of draws"
        for rule, share in zip(rules.rules, passes / drawn, strict=True)
        if share < 1
    ]
    start = "no legal configuration" if found == 0 else f"only {found} of {count} legal configurations"
    raise SpaceInfeasible(f"{start} in {ROUNDS} rounds; {', '.join(broken)}")


def _redraw(rules: Rules, L: Array, fresh: Array, verdicts: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> Array:
    names = np.zeros((len(rules.rules), L.shape[1]), dtype=np.bool_)
    for index, rule in enumerate(rules.rules):
        names[index, list(rule.support.columns)] = True
    replace = (~verdicts).astype(np.int64) @ names > 0
    replace[verdicts.all(axis=1)] = True  # kept already: start a new row
    return np.where(replace, fresh, L)

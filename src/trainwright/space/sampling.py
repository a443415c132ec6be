"""Draws legal rows from the priors: rejection in rounds, then repair, then an error that names the failing rules."""

import math

import numpy as np

from trainwright.errors import SpaceInfeasible
from trainwright.space.axes import Array, Mask
from trainwright.space.rules import BoundRules, RowTable

__all__ = ["draw_legal"]

ROUNDS = 100
PATIENCE = 20  # rounds of plain rejection before repair is considered
LENDING = 80  # rounds before repair may copy what passed in other rows
RARE = 1 / 1000  # a share of legal rows below this calls for repair
LEAST_BATCH, MOST_BATCH = 64, 8192


def draw_legal(rules: BoundRules, generator: np.random.Generator, count: int) -> Array:
    """Return `count` settled rows that pass all rules, or raise SpaceInfeasible.

    Plain rejection keeps the priors' law, restricted to legal rows. If after 20 rounds fewer than one row in 1000
    has passed, a broken row keeps its values but those that its broken rules name: these are drawn again and, in the
    last 20 rounds, copied from rows that pass the rule, so that one lucky draw serves all.
    """
    layout = rules.layout

    def latent(size: float) -> Array:
        return layout.maps.quantile(generator.random((int(size), len(layout.columns))))

    drawn = found = 0
    passes = np.zeros(len(rules.rules))
    accepted: list[Array] = []
    lenders = np.empty((0, len(layout.columns)))
    repair = False
    L = latent(count)
    for number in range(1, ROUNDS + 1):
        U = layout.settle(L)
        verdicts = rules.verdicts(RowTable(rules, U))
        # Legal rows are taken as they come: rejection keeps the priors' law.
        legal: Mask = np.asarray(verdicts.all(axis=1))
        accepted.append(U[legal])
        found += len(accepted[-1])
        if found >= count:
            return np.concatenate(accepted)[:count]
        # Only plain draws count for the shares of the message: repaired rows are no sample of the priors.
        if not repair:
            drawn += len(U)
            passes += verdicts.sum(axis=0)
        # Less than one legal row in 1000 after 20 rounds: rejection alone would not end.
        repair = repair or (number >= PATIENCE and found < RARE * drawn)
        if repair:
            lenders = np.concatenate([lenders, L[legal]])
            fresh = latent(len(L))
            # In the last rounds entries are copied from rows that pass the broken rule.
            if number >= LENDING:
                passed = np.concatenate([np.ones((len(lenders), len(rules.rules)), dtype=np.bool_), verdicts])
                _copy_from_passing(rules, np.concatenate([lenders, L]), passed, fresh, generator)
            L = np.where(_entries_to_replace(rules, verdicts), fresh, L)
        else:
            # As many draws as the share of legal rows so far asks for, and a fifth more.
            wanted = 1.2 * (count - found) * drawn / max(found, 0.5)
            L = latent(math.ceil(min(max(wanted, LEAST_BATCH), max(MOST_BATCH, 16 * count))))
    broken = [
        f"{rule.text!r} passed {100 * share:.1f} % of draws"
        for rule, share in zip(rules.rules, passes / drawn, strict=True)
        if share < 1
    ]
    start = "no legal configuration" if found == 0 else f"only {found} of {count} legal configurations"
    raise SpaceInfeasible(f"{start} in {ROUNDS} rounds; {', '.join(broken)}")


def _entries_to_replace(rules: BoundRules, verdicts: Mask) -> Mask:
    """Return the entries to replace: what broken rules name, and the whole of legal rows, which are kept already."""
    names = np.zeros((len(rules.rules), len(rules.layout.columns)), dtype=np.int64)
    for index, rule in enumerate(rules.rules):
        names[index, list(rule.support.columns)] = 1
    named: Mask = (~verdicts) @ names > 0
    named[verdicts.all(axis=1)] = True
    return named


def _copy_from_passing(
    rules: BoundRules, pool: Array, passed: Mask, fresh: Array, generator: np.random.Generator
) -> None:
    """Copy what a rule names, from rows of the pool that pass it, into the fresh entries of those that do not.

    `fresh` belongs to the last rows of the pool.
    """
    for index, rule in enumerate(rules.rules):
        sources, targets = np.flatnonzero(passed[:, index]), np.flatnonzero(~passed[-len(fresh) :, index])
        if len(sources):
            columns = np.array(rule.support.columns, dtype=np.intp)
            fresh[np.ix_(targets, columns)] = pool[np.ix_(generator.choice(sources, len(targets)), columns)]

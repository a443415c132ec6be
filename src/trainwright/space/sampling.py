"""Samples rows from the priors and rejects those that violate a constraint: in rounds, then repair, then an error."""

import math

import numpy as np

from trainwright.aliases import Array, Mask
from trainwright.errors import SpaceInfeasible
from trainwright.space.rules import BoundRules, RowTable

__all__ = ["MOST_LEGAL", "enumerate_legal", "sample_legal"]

MOST_LEGAL = 1_000_000  # rows of a finite space that are listed
MOST_PARTIAL = 2 * MOST_LEGAL  # rows held on the way

ROUNDS = 100
PATIENCE = 20  # rounds of plain rejection before repair is considered
LENDING = 80  # rounds before repair may copy what passed in other rows
RARE = 1 / 1000  # a share of legal rows below this calls for repair
LEAST_BATCH, MOST_BATCH = 64, 8192


def sample_legal(rules: BoundRules, generator: np.random.Generator, count: int) -> Array:
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
    # Legal rows that were found during repair: others may copy from them.
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
    # Which columns each rule reads, as a matrix: one product then marks all entries to redraw.
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
    # Rule by rule: a row may take what different rules name from different rows.
    for index, rule in enumerate(rules.rules):
        sources, targets = np.flatnonzero(passed[:, index]), np.flatnonzero(~passed[-len(fresh) :, index])
        if len(sources):
            columns = np.array(rule.support.columns, dtype=np.intp)
            fresh[np.ix_(targets, columns)] = pool[np.ix_(generator.choice(sources, len(targets)), columns)]


def enumerate_legal(rules: BoundRules) -> Array | None:
    """Return all legal rows of a space whose columns are all discrete, or None if they are over a million.

    Rows are in lexicographic order of the columns, parents of conditions first.
    """
    layout = rules.layout
    # A single row without values, which each column multiplies by its own.
    U = np.full((1, len(layout.columns)), np.nan)
    waiting = list(rules.rules)
    done: set[int] = set()
    for name in layout.order:
        index, units = layout.index[name], layout.varying[name].axis.all_units
        points = layout.columns[index].points or 0
        # An inactive parameter has one value, NaN, and does not multiply the rows.
        active = layout.conditions[name](U) if name in layout.conditions else np.ones(len(U), dtype=np.bool_)
        repeats = np.where(active, points, 1)
        total = int(repeats.sum())
        # Cut off before the memory is taken.
        if points > MOST_PARTIAL or total > MOST_PARTIAL:
            return None
        turn = np.arange(total) - np.repeat(np.cumsum(repeats) - repeats, repeats)  # 0, 1, .. within each old row
        U = np.repeat(U, repeats, axis=0)
        U[:, index] = np.where(np.repeat(active, repeats), units()[turn], np.nan)
        done.add(index)
        rows, passed = RowTable(rules, U), np.ones(len(U), dtype=np.bool_)
        # A rule cuts rows as soon as all columns that it reads are there.
        for rule in waiting:
            if rule.support.reads <= done:
                rules.judge(rule, rows, passed)
        waiting = [rule for rule in waiting if not rule.support.reads <= done]
        U = U[passed]
    return U if len(U) <= MOST_LEGAL else None

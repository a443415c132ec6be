"""All legal rows of a finite space, column by column, cut back by each requirement as soon as its columns are there."""

import numpy as np

from trainwright.space.axes import Array
from trainwright.space.rules import BoundRules, RowTable

__all__ = ["MOST_LEGAL", "enumerate_legal"]

MOST_LEGAL = 1_000_000
MOST_PARTIAL = 2 * MOST_LEGAL  # rows held on the way


def enumerate_legal(rules: BoundRules) -> Array | None:
    """Return all legal rows of a space whose columns are all discrete, or None if they are over a million.

    Rows are in lexicographic order of the columns, parents of conditions first.
    """
    layout = rules.layout
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

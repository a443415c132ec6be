"""Dominance as a target: counts against brute force, kept up to date, whatever the order of asking."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainwright.randomness import rng
from trainwright.search import ForestSearcher, SearchView
from trainwright.search.bayes.dominance import Dominance, dominated_shares
from trainwright.space import Float, Space

CELLS = st.lists(st.tuples(*[st.integers(0, 3)] * 3, st.booleans()), min_size=1, max_size=14)


def dominates(a, b, bound):
    """Say the definition again, in words: objectives, then one constraint."""
    if (a[2] <= bound) != (b[2] <= bound):
        return a[2] <= bound
    ours, theirs = [[*row[:2], max(0.0, row[2] - bound)] for row in (a, b)]
    return all(x <= y for x, y in zip(ours, theirs, strict=True)) and ours != theirs


@given(CELLS, st.integers(0, 4), st.integers(0, 14))
def test_counts_are_those_of_the_definition(cells, bound, first):
    rows = np.array([cell[:3] for cell in cells], dtype=np.float64)
    failed = np.array([cell[3] for cell in cells])
    first = min(first, len(rows))
    dominance = Dominance(2, np.array([np.inf, np.inf, bound]))
    counts = np.full(len(rows), -1.0)
    for start, stop in ((0, first), (first, len(rows))):  # in one go, or in two
        dominance.take(rows[start:stop], failed[start:stop], start)
        dominance.enter(start, stop, counts)
    by_all = [
        sum(dominates(rows[k], rows[i], bound) for k in range(len(rows)) if not failed[k]) for i in range(len(rows))
    ]
    assert counts[~failed].tolist() == [count for count, lost in zip(by_all, failed, strict=True) if not lost]
    dominance.count(first, 0, len(rows), counts)
    by_some = [sum(dominates(rows[k], rows[i], bound) for k in range(first) if not failed[k]) for i in range(len(rows))]
    assert counts[~failed].tolist() == [count for count, lost in zip(by_some, failed, strict=True) if not lost]


def test_shares_are_mean_ranks_of_the_counts():
    losses = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    assert dominated_shares(losses).tolist() == [0.25, 0.25, 0.625, 0.875]


def test_a_forest_of_several_objectives_is_a_function_of_the_rows_in_their_order():
    """Asked at every trial, now and then, or once, with failures and a bound, it proposes the same."""
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0), z=Float(0.0, 1.0))
    often, seldom, once = (SearchView(space, 3, 2, bounds=[np.inf, np.inf, 0.8]) for _ in range(3))
    searcher = ForestSearcher(max_rows=60)
    configurations = space.configurations(space.sample(rng(0, "rows", 0), 130))
    for number, configuration in enumerate(configurations):
        x, y, z = (configuration.params[name] for name in "xyz")
        losses = None if number % 11 == 7 else [x + z, (1 - x) ** 2 + z, y]
        for view in (often, seldom, once):
            view.propose(number, configuration)
            view.result(number, losses, epoch=None, complete=losses is not None)
        if number > 10:
            searcher.learn(often)
        if number % 37 == 20:
            searcher.learn(seldom)
    proposals = [searcher.ask(view, [500, 501]) for view in (often, seldom, once)]
    assert proposals[0] == proposals[1] == proposals[2]


def test_the_front_is_found_where_it_bulges():
    """On a front that no weighted sum reaches but at its ends, proposals lie along it."""
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    view = SearchView(space, 0, 2)
    searcher = ForestSearcher()
    for number in range(60):
        [configuration] = searcher.ask(view, [number])
        angle, far = 0.5 * np.pi * configuration["x"], 1.0 + (configuration["y"] - 0.5) ** 2
        view.propose(number, configuration)
        view.result(number, [far * np.cos(angle), far * np.sin(angle)], epoch=None, complete=True)
    late = view.losses[30:]
    assert np.mean((late > 0.2).all(axis=1)) > 0.5
    assert np.mean(np.hypot(*late.T)) < 1.02

"""The search of many columns: the distribution follows the best, and what is proposed depends on nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.search import DefaultSearcher, QuasiRandomSearcher, SearchView
from trainwright.search.bayes.wide_searcher import WideSearcher, update_distribution
from trainwright.space import Choice, Float, Int, Space, greater
from trainwright.testing.searcher import SearcherConformance, play


class TestWide(SearcherConformance):
    def make_searcher(self):
        return WideSearcher()


def bowl(configuration, number):
    return [sum((float(value) - 0.3) ** 2 for value in configuration.params.values())]


def wide(columns=30):
    return Space.of({f"x{i}": Float(0.0, 1.0) for i in range(columns)})


def mixed():
    """Thirty columns: conditions on numbers, whole numbers, choices."""
    parameters = {f"x{i}": Float(0.0, 1.0, when=greater(f"n{i % 5}", 3) if i % 3 else None) for i in range(20)}
    return Space.of(
        {f"n{i}": Int(1, 9) for i in range(5)} | parameters | {f"c{i}": Choice("a", "b", "c") for i in range(5)}
    )


def test_the_distribution_moves_to_the_optimum_and_narrows():
    generator = np.random.default_rng(0)
    optimum, mean, deviation = np.linspace(0.2, 0.8, 10), np.full(10, 0.5), np.full(10, 1 / 6)
    rows = np.empty((0, 10))
    for _ in range(60):
        rows = np.concatenate([rows, mean + deviation * generator.standard_normal((10, 10))])
        mean, deviation = update_distribution(rows, ((rows - optimum) ** 2).sum(axis=1), 10)
    assert np.abs(mean - optimum).max() < 0.02
    assert deviation.max() < 0.03


@settings(max_examples=40)
@given(seed=st.integers(0, 1000), shift=st.floats(-5.0, 5.0), power=st.sampled_from([1.0, 3.0]))
def test_only_the_order_of_losses_counts(seed, shift, power):
    generator = np.random.default_rng(seed)
    rows, losses = generator.random((50, 7)), generator.standard_normal(50)
    for one, other in zip(
        update_distribution(rows, losses, 9), update_distribution(rows, losses**power + shift, 9), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("space", [wide(), mixed()], ids=["wide", "mixed"])
def test_the_order_in_which_trials_are_told_changes_nothing(space):
    # Fewer than a generation: a process, which rounds by the order of its rows, is not asked yet.
    made = QuasiRandomSearcher().ask(SearchView(space, 0), range(13))
    found = []
    for order in (range(13), reversed(range(13))):
        view = SearchView(space, 0)
        for number, configuration in enumerate(made):
            view.propose(number, configuration)
        for number in order:
            view.result(number, [float(made[number].number % 5)], epoch=None, complete=True)
        found.append(WideSearcher().ask(view, [13, 14]))
    assert found[0] == found[1]


def test_mixed_spaces_are_searched():
    view = SearchView(mixed(), 0)
    done = play(WideSearcher(), view, 80, lambda c, n: [sum(v == "a" for k, v in c.params.items() if k[0] == "c")])
    assert [view.space.check(configuration.params) for configuration in done] == [[]] * 80
    assert {configuration.origin["by"] for configuration in done} == {"gp", "cma-es"}
    # Choices are copied from the best: fewer of the bad value at the end.
    bad = [sum(configuration.params[f"c{i}"] == "a" for i in range(5)) for configuration in done]
    assert np.mean(bad[-20:]) < 0.5 * np.mean(bad[:20])


def test_trials_that_were_stopped_count_as_worse_than_those_that_went_on():
    """Though their losses are lower: those are of fewer epochs."""
    space = wide(25)
    view = SearchView(space, 0, epochs=9, rungs=(1, 3))
    made = QuasiRandomSearcher().ask(view, range(60))
    for number, configuration in enumerate(made):
        view.propose(number, configuration)
        good = configuration["x0"] < 0.5
        for epoch in range(1, 10 if good else 2):
            view.report(number, epoch, [10.0 + epoch if good else 1.0])
        view.result(number, [30.0] if good else [1.0], epoch=9 if good else 1, complete=good)
    proposed = [configuration["x0"] for configuration in WideSearcher().ask(view, range(60, 120, 2))]
    assert np.mean(proposed) < 0.45


def test_the_default_finds_more_in_many_columns_than_chance():
    best = {}
    for name, searcher in (("default", DefaultSearcher()), ("random", QuasiRandomSearcher())):
        done = play(searcher, SearchView(wide(), 0), 100, bowl)
        best[name] = min(bowl(configuration, 0)[0] for configuration in done)
    assert best["default"] < 0.5 * best["random"]

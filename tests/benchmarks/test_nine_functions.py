"""The test functions: their minima, their scale, and that they travel through a search as tables do."""

import numpy as np
import pytest
from benchmarks.search.cells import Cell, Key
from benchmarks.search.functions import FUNCTIONS, find_functions
from benchmarks.search.simulate import curve, search


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_the_stated_minimum_is_one(function):
    """No nearby point and no random one is better, and the regret there is 0."""
    generator = np.random.default_rng(0)
    low, high = np.array(function.bounds).T
    best = np.array(function.best)
    least = function.losses(best[None, :])[0]
    for size in (1.0, 1e-2, 1e-4):
        near = np.clip(best + size * (high - low) * generator.standard_normal((2000, len(best))), low, high)
        assert function.losses(near).min() >= least - 1e-9 * (1.0 + abs(least))
    assert function.regret([function.place(function.best)]) == pytest.approx(0.0, abs=1e-5)


def test_minima_are_those_of_the_literature():
    least = {f.name: f.losses(np.array([f.best]))[0] for f in FUNCTIONS}
    expected = {"branin2": 0.397887, "hartmann6": -3.32237, "michalewicz5": -4.687658, "shekel": -10.5364}
    assert {name: least[name] for name in expected} == pytest.approx(expected, abs=1e-4)
    rest = {name: value for name, value in least.items() if name not in expected}
    assert rest == pytest.approx(dict.fromkeys(rest, 0.0), abs=1e-9)


def test_half_of_all_points_have_a_regret_above_one():
    for function in FUNCTIONS:
        low, high = np.array(function.bounds).T
        drawn = low + (high - low) * np.random.default_rng(1).random((4000, len(low)))
        assert np.mean(function.regret(function.losses(drawn)) > 1.0) == pytest.approx(0.5, abs=0.03)


def test_names_are_chosen_or_refused():
    assert len(find_functions("all")) == 9
    assert [function.name for function in find_functions("shekel,branin2")] == ["shekel", "branin2"]
    with pytest.raises(SystemExit, match="'branin' is no function; known are all, wide, ackley5"):
        find_functions("branin")


class Counter:
    """A searcher that proposes 0.0, 0.1, .. and notes how many trials are under way."""

    def __init__(self):
        self.asked, self.told, self.most = 0, [], 0

    def ask(self, count):
        first, self.asked = self.asked, self.asked + count
        self.most = max(self.most, self.asked - len(self.told))
        return list(range(first, self.asked)), [[0.1 * i, 0.0] for i in range(first, self.asked)], 0.0

    def tell(self, tokens, losses):
        self.told += tokens
        return 0.0


def test_workers_are_always_busy_and_finish_out_of_order():
    [branin] = find_functions("branin2")
    orders = []
    for seed in (0, 0, 1):
        counter = Counter()
        cell = search(counter, branin, Key("count 1", branin.name, branin.digest, seed, 8), 30)
        assert counter.most == 8
        assert counter.asked == len(cell.rows) == 30
        assert sorted(counter.told) == list(range(30))
        orders.append(counter.told)
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_regret_of_the_incumbent_falls():
    [branin] = find_functions("branin2")
    losses = tuple(branin.place(point) for point in ([0.0, 0.0], [3.0, 2.0], [9.0, 9.0], branin.best))
    found = curve(branin, Cell(Key("count 1", "branin2", "1", 0, 1), losses, 0.0), 4)
    assert found[2] == found[1] < found[0]
    assert found[3] == pytest.approx(0.0, abs=1e-5)

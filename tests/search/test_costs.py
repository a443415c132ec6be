"""What a trial costs: where seconds differ, the process asks for what is gained per second; zero is no cost."""

import numpy as np
import pytest

from trainwright.errors import SearchError
from trainwright.search import GaussianProcessSearcher, SearchView
from trainwright.space import Float, Space

SPACE = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))


def loss_of(params):
    return (params["x"] - 0.3) ** 2 + (params["y"] - 0.6) ** 2


def played(cost, seconds_of, trials=14, seed=0):
    """Return a view after some trials, each of which took `seconds_of` its parameters."""
    view, searcher = SearchView(SPACE, seed), GaussianProcessSearcher(cost=cost, candidates=200)
    for number in range(trials):
        [asked] = searcher.ask(view, [number])
        view.propose(number, asked)
        view.spend(number, seconds_of(asked.params))
        view.result(number, [loss_of(asked.params)], epoch=None, complete=True)
    return view


def test_dear_regions_are_left_for_later():
    """Y costs up to a hundred seconds and the loss is the same for x: the search spends less for as many trials."""

    def seconds_of(params):
        return 100.0 ** params["y"]

    spent = {cost: sum(np.nansum(played(cost, seconds_of, seed=seed).costs) for seed in range(3)) for cost in (0, 1)}
    assert spent[1] < 0.8 * spent[0]


@pytest.mark.parametrize("seconds", [0.0, 7.0])
def test_costs_that_are_zero_or_equal_change_nothing(seconds):
    """Nothing is known of costs, or all are alike: the proposals are those of the plain acquisition."""
    rows = [played(cost, lambda params: seconds).rows for cost in (0.0, 1.0)]
    assert np.array_equal(*rows)


def test_a_resumed_search_weighs_the_same_costs():
    def seconds_of(params):
        return 100.0 ** params["y"] if params["x"] > 0.2 else 0.0

    whole = played(0.5, seconds_of)
    view = SearchView(SPACE, 0)
    for number, params in enumerate(SPACE.decode(whole.rows[:12])):
        view.propose(number, SPACE.configuration(whole.rows[number]))
        view.spend(number, seconds_of(params))
        view.result(number, [loss_of(params)], epoch=None, complete=True)
    [asked] = GaussianProcessSearcher(cost=0.5, candidates=200).ask(view, [12])
    assert np.array_equal(SPACE.encode(asked.params), whole.rows[12])


def test_a_power_beyond_one_is_refused():
    with pytest.raises(SearchError, match="cost: got 2; allowed: a number from 0 to 1"):
        GaussianProcessSearcher(cost=2)

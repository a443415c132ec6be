"""What an expert believes: a right prior helps from the first trial, a wrong one does not rule the best out."""

import numpy as np
import pytest

from trainwright.search import ForestSearcher, GaussianProcessSearcher, SearchView
from trainwright.space import Beta, Choice, Float, Normal, Space
from trainwright.testing.searcher import play

BEST = {"a": 0.9, "b": 0.1, "c": 0.9}


def loss_of(configuration, number):
    apart = sum((configuration[name] - best) ** 2 for name, best in BEST.items())
    return [apart + 0.3 * (configuration["kind"] != "y")]


def space_of(middles, weights=None):
    """Return a space whose priors lie at these places; None: without."""
    if middles is None:
        return Space(**{name: Float(0.0, 1.0) for name in BEST}, kind=Choice(*"wxyz"))
    a, b, c = (middles[name] for name in BEST)
    return Space(
        a=Float(0.0, 1.0, prior=Normal(a, 0.1)), b=Float(0.0, 1.0, prior=Normal(b, 0.1)),
        c=Float(0.0, 1.0, prior=Beta(1.0 + 16.0 * c, 17.0 - 16.0 * c)), kind=Choice(*"wxyz", weights=weights),
    )  # fmt: skip


def curve(searcher, space, trials):
    """Return the best loss after each trial, a mean over seeds."""
    curves = []
    for seed in range(3):
        view = SearchView(space, seed)
        play(searcher, view, trials, loss_of)
        curves.append(np.minimum.accumulate(view.losses[:, 0]))
    return np.mean(curves, axis=0)


@pytest.mark.parametrize("searcher", [ForestSearcher(), GaussianProcessSearcher()])
def test_a_right_prior_helps_at_once(searcher):
    without = curve(searcher, space_of(None), 10)
    right = curve(searcher, space_of(BEST, (1, 1, 8, 1)), 10)
    assert right.mean() < 0.6 * without.mean()


def test_a_wrong_prior_delays_the_search_and_does_not_end_it():
    wrong = curve(ForestSearcher(), space_of({name: 1.0 - best for name, best in BEST.items()}, (8, 1, 1, 1)), 60)
    assert wrong[4] > 0.3
    assert wrong[-1] < 0.1

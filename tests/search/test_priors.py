"""What an expert believes: a right prior helps from the first trial, a wrong one does not rule the best out."""

import numpy as np
import pytest

from trainwright.errors import SpaceError
from trainwright.search import ForestSearcher, GaussianProcessSearcher, SearchView
from trainwright.space import Beta, Choice, Float, Normal, Space, equals
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


def test_a_prior_multiplies_what_is_gained_and_fades():
    """The density counts with power 10 / n: of 3 results it decides, of 60 they do."""
    space = Space(x=Float(0.0, 1.0, prior=Normal(0.9, 0.05)))
    asked = []
    for results in (3, 60):
        view = SearchView(space, 0)
        for number, x in enumerate(np.linspace(0.0, 1.0, results)):
            view.propose(number, space.configuration(np.array([x])))
            view.result(number, [(x - 0.2) ** 2], epoch=None, complete=True)
        asked.append(GaussianProcessSearcher(initial=1).ask(view, [results])[0]["x"])
    assert asked[0] > 0.6  # towards the prior
    assert asked[1] < 0.4  # where the best is


def test_densities_follow_the_laws():
    """Up to a constant: ratios of densities at two units, weights, nothing for what has no prior or is inactive."""
    space = Space(
        a=Float(0.0, 1.0, prior=Normal(0.5, 0.1)), b=Float(0.0, 1.0, prior=Beta(2.0, 5.0)),
        kind=Choice("x", "y", weights=(1, 3)), free=Float(0.0, 1.0),
        level=Choice(1, 2, 3, ordered=True, weights=(1, 0, 1), when=equals("kind", "y")),
    )  # fmt: skip
    rows = np.array([[0.5, 0.2, 1.0, 0.1, 0.1], [0.7, 0.2, 1.0, 0.9, 0.1], [0.5, 0.5, 0.0, 0.1, np.nan]])
    density = space.log_density(rows)
    assert density[1] - density[0] == pytest.approx(-2.0)
    assert density[2] - density[0] == pytest.approx(np.log(0.5 / 0.2) + 4 * np.log(0.5 / 0.8) - np.log(3))
    rows[0, 4] = 0.5  # a level of weight 0: unlikely beyond all others, but finite
    assert -1e3 < space.log_density(rows)[0] < -500
    assert space.has_priors
    assert not Space(x=Float(0.0, 1.0)).has_priors


def test_a_prior_outside_the_bounds_is_refused():
    """The mean is a place between low and high, not a value."""
    with pytest.raises(SpaceError, match=r"rate: Normal\.mean: got 3; allowed: a number from 0 "):
        Space(rate=Float(1e-5, 1.0, log=True, prior=Normal(3, 0.1)))


def test_a_wrong_prior_delays_the_search_and_does_not_end_it():
    wrong = curve(ForestSearcher(), space_of({name: 1.0 - best for name, best in BEST.items()}, (8, 1, 1, 1)), 60)
    assert wrong[4] > 0.3
    assert wrong[-1] < 0.1

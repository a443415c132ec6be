"""Expected improvement counts per epoch that a trial is let to train."""

import numpy as np
import pytest

from trainwright.search import GaussianProcessSearcher, SearchView
from trainwright.search.bayes.gaussian_process import Embedding
from trainwright.search.bayes.gp_searcher import make_survival
from trainwright.space import Float, Space

SPACE = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))


def told(stop, trials=30, epochs=9):
    """Return a view of random trials: the first report is x, and `stop` says who ends there; the end is 1 - x."""
    view = SearchView(SPACE, 0, epochs=epochs, rungs=(1,))
    rows = np.random.default_rng(0).random((trials, 2))
    for number, configuration in enumerate(SPACE.configurations(rows)):
        view.propose(number, configuration)
        x = float(configuration["x"])
        view.report(number, 1, [x])
        if stop(x):
            view.result(number, [x], epoch=1, complete=False)
        else:
            view.result(number, [1.0 - x], epoch=epochs, complete=True)
    return view


def survival(view):
    embedding, places = Embedding(SPACE, fidelity=True), np.arange(view.count)
    searcher = GaussianProcessSearcher()
    _, posteriors = searcher._posteriors(view, embedding)
    targets, _ = searcher._make_targets(view, places)
    return make_survival(view, embedding, posteriors[0], targets[0], places)


def test_where_nobody_is_stopped_nothing_is_weighed():
    assert survival(told(lambda _: False)) is None


def test_where_trials_are_stopped_less_is_gained_and_never_more_than_all():
    found = survival(told(lambda x: x > 0.4))
    xs = np.linspace(0.05, 0.95, 19)
    weights = found(np.column_stack([xs, np.full(19, 0.5)]))
    assert (weights <= 1e-12).all()
    assert (weights[xs < 0.3] > np.log(0.8)).all()
    assert (weights[xs > 0.7] < np.log(0.5)).all()
    assert (np.diff(weights) < 1e-6).all()


def test_who_is_under_way_has_passed():
    view = told(lambda _: False, trials=6)
    rows = np.random.default_rng(1).random((6, 2))
    for number, configuration in enumerate(SPACE.configurations(rows), start=6):
        view.propose(number, configuration)
        view.report(number, 1, [0.5])
    assert survival(view) is None


@pytest.mark.parametrize("rungs", [(1,), (1, 3)])
def test_a_place_where_every_trial_is_stopped_is_left(rungs):
    """Early losses rank against the end: what would end best is stopped each time, and not proposed for ever."""
    view, searcher, chosen = SearchView(SPACE, 1, epochs=9, rungs=rungs), GaussianProcessSearcher(candidates=200), []
    for number in range(40):
        [configuration] = searcher.ask(view, [number])
        view.propose(number, configuration)
        x = float(configuration["x"])
        chosen.append(x)
        view.report(number, 1, [x])
        if x > 0.5:
            view.result(number, [x], epoch=1, complete=False)
            continue
        for rung in rungs[1:]:
            view.report(number, rung, [0.6 * x + 0.2 * (1.0 - x)])
        view.result(number, [1.0 - x], epoch=9, complete=True)
    assert np.mean(np.array(chosen[20:]) <= 0.6) > 0.8  # about the cut, at 0.5, it is worth a try
    assert min(1.0 - x for x in chosen if x <= 0.5) < 0.55

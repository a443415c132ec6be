"""The Gaussian process searcher: conformance, its limits, and that it searches."""

import math
import re

import numpy as np
import pytest

from trainwright.errors import SearchError
from trainwright.search import GaussianProcessSearcher, QuasiRandomSearcher, SearchView
from trainwright.search.bayes.gp_searcher import _fitted_sizes
from trainwright.search.bayes.targets import standardise_losses, thin_rows
from trainwright.space import Choice, Float, Int, Space, equals, require
from trainwright.testing.searcher import SearcherConformance, play


class TestGaussianProcess(SearcherConformance):
    def make_searcher(self):
        return GaussianProcessSearcher(initial=12, candidates=40)  # few candidates: what is promised holds for any

    # Long studies, each result of which means a fit.

    @pytest.mark.slow
    def test_two_objectives(self):
        super().test_two_objectives()

    @pytest.mark.slow
    def test_a_resumed_study_goes_on_as_if_never_interrupted(self):
        super().test_a_resumed_study_goes_on_as_if_never_interrupted()

    @pytest.mark.slow
    def test_intermediate_values_and_stops_are_understood(self):
        super().test_intermediate_values_and_stops_are_understood()

    @pytest.mark.slow
    def test_failures_and_strange_losses_are_survived(self):
        super().test_failures_and_strange_losses_are_survived()


@pytest.mark.slow
class TestEarly(SearcherConformance):
    def make_searcher(self):
        return GaussianProcessSearcher(initial=1, candidates=20)


def square_space():
    return Space(**{name: Float(-1.0, 1.0) for name in "abcd"})


def square(configuration, number):
    return [sum((value - 0.4) ** 2 for value in configuration.params.values())]


def best_of(searcher, trials=30, seeds=1, loss=square, space=None):
    losses = []
    for seed in range(seeds):
        view = SearchView(space or square_space(), seed)
        play(searcher, view, trials, loss)
        losses.append(np.min(view.losses))
    return float(np.mean(losses))


def test_it_climbs_to_the_bottom_of_a_smooth_bowl():
    assert best_of(GaussianProcessSearcher()) < 1e-3
    assert best_of(QuasiRandomSearcher()) > 1e-2


@pytest.mark.slow
def test_inactive_parameters_are_no_obstacle():
    space = Space(o=Choice("a", "b"), m=Float(0.0, 1.0, when=equals("o", "b")))

    def loss(configuration, number):
        return [0.2 if configuration["o"] == "a" else abs(configuration["m"] - 0.7)]

    assert best_of(GaussianProcessSearcher(), loss=loss, space=space) < 0.01


def test_integers_and_requirements_are_met_on_the_climb():
    """The best corner is illegal; the best legal point lies on the border of the requirement."""
    space = Space(require("x + y <= 1"), x=Float(0.0, 1.0), y=Float(0.0, 1.0), k=Int(1, 9))
    view = SearchView(space, 0)
    done = play(GaussianProcessSearcher(), view, 40, lambda c, n: [(c["k"] - 5) ** 2 - c["x"] - 2.0 * c["y"]])
    assert all(c["x"] + c["y"] <= 1.0 for c in done)
    assert view.losses.min() < -1.9


@pytest.mark.slow
def test_noise_is_not_chased():
    """With noise as large as the bowl is deep near its middle, the late proposals still gather there."""
    generator = np.random.default_rng(0)
    view = SearchView(Space(x=Float(-1.0, 1.0), y=Float(-1.0, 1.0)), 0)
    done = play(
        GaussianProcessSearcher(), view, 50,
        lambda c, n: [c["x"] ** 2 + c["y"] ** 2 + 0.1 * float(generator.standard_normal())],
    )  # fmt: skip
    assert np.median([math.hypot(c["x"], c["y"]) for c in done[25:]]) < 0.4


def test_pending_trials_push_proposals_away():
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    view = SearchView(space, 0)
    play(GaussianProcessSearcher(), view, 10, lambda c, n: [math.sin(9.0 * c["x"]) * math.cos(7.0 * c["y"])])
    asked = []
    for _ in range(6):
        [configuration] = GaussianProcessSearcher().ask(view, [10])  # the same number: only what is pending differs
        asked.append((configuration["x"], configuration["y"]))
        view.propose(10 + len(asked), configuration)
    nearest = [min(math.dist(a, b) for b in asked[:i]) for i, a in enumerate(asked) if i]
    assert min(nearest) > 1e-3


@pytest.mark.slow
def test_failures_are_avoided():
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    view = SearchView(space, 1)
    done = play(GaussianProcessSearcher(), view, 40, lambda c, n: None if c["x"] > 0.5 else [c["y"] - c["x"]])
    assert sum(c["x"] > 0.55 for c in done[20:]) < 6


def test_bounds_turn_the_search_away():
    """The constraint is met although the objective pulls the other way."""
    view = SearchView(Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)), 0, bounds=[math.inf, 0.5])
    done = play(GaussianProcessSearcher(), view, 30, lambda c, n: [-c["x"] + (c["y"] - 0.3) ** 2, c["x"]])
    assert np.median([c["x"] for c in done[15:]]) < 0.65


@pytest.mark.slow
def test_objectives_are_weighted_anew_for_each_trial():
    view = SearchView(Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)), 0, objectives=2)
    done = play(
        GaussianProcessSearcher(), view, 30, lambda c, n: [c["x"] ** 2 + c["y"], (1 - c["x"]) ** 2 + c["y"]]
    )  # fmt: skip
    weights = np.array([c.origin["weights"] for c in done[3:]])
    assert weights.sum(axis=1) == pytest.approx(1.0)
    assert len(np.unique(weights[:, 0])) == 27
    assert np.mean([c["y"] for c in done[15:]]) < 0.15  # bad for both
    assert np.std([c["x"] for c in done[15:]]) > 0.15  # the front is spread


def test_targets_are_nearly_normal_whatever_the_losses_are():
    """Skewed either way, or with a failure: mean 0, deviation 1, little skew, order kept, failures as the worst."""
    drawn = np.random.default_rng(0).standard_normal(200)
    for losses in (np.exp(2.0 * drawn), -np.exp(drawn), 1e300 * drawn, np.append(drawn, np.inf)):
        y, bound = standardise_losses(losses, float(np.median(losses)))
        fine = np.isfinite(losses)
        assert y[fine].mean() == pytest.approx(0.0, abs=1e-9)
        assert y[fine].std() == pytest.approx(1.0)
        assert abs((y[fine] ** 3).mean()) < 0.8
        assert np.all(np.diff(y[np.argsort(losses, kind="stable")]) >= 0.0)
        assert y[fine].min() < bound < y[fine].max()


def test_more_results_than_it_holds_are_thinned():
    """All of the highest rungs, below them the best and an even sample."""
    searcher = GaussianProcessSearcher(max_rows=40, candidates=16)
    view = SearchView(Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)), 0, epochs=9, rungs=(1, 3))
    for number, configuration in enumerate(QuasiRandomSearcher().ask(view, range(60))):
        view.propose(number, configuration)
        last = 9 if number % 6 == 0 else 3 if number % 2 == 0 else 1
        for epoch in range(1, last + 1):
            view.report(number, epoch, [abs(configuration["x"] - 0.3) + 1.0 / epoch])
        view.result(number, [abs(configuration["x"] - 0.3)], epoch=last, complete=last == 9)
    kept = thin_rows(view, view.count, 40)
    assert len(kept) == 40
    assert np.all(np.diff(kept) > 0)
    counts = {rung: int((view.rungs == rung).sum()) for rung in np.unique(view.rungs).tolist()}
    found = {rung: int((view.rungs[kept] == rung).sum()) for rung in counts}
    assert found[view.top] == counts[view.top] == 10
    assert found[1] == counts[1] == 30  # at epoch 3
    assert found[0] == 0
    lowest = thin_rows(view, view.count, 60)
    below = lowest[view.rungs[lowest] == 0]
    assert len(below) == 20
    assert set(np.flatnonzero(view.rungs == 0)[np.argsort(view.losses[view.rungs == 0, 0])[:10]]) <= set(below)
    [proposal] = searcher.ask(view, [60])
    assert view.space.check(proposal.params) == []


def test_fits_leave_room_for_what_comes_until_the_next():
    for most in (20, 137, 500):
        for count in range(1, 3 * most):
            size, later = _fitted_sizes(count, most // 10)
            assert size <= count < later
    view = SearchView(Space(x=Float(0.0, 1.0)), 0)
    searcher = GaussianProcessSearcher(max_rows=20, candidates=8)
    play(QuasiRandomSearcher(), view, 15, lambda c, n: [c["x"]])
    for number in range(15, 50):
        play(searcher, view, 1, lambda c, n: [c["x"]], start=number)
        assert len(view.memo[searcher].posteriors[0].points) <= 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"initial": -1}, "initial: got -1; allowed: a whole number >= 0"),
        ({"max_rows": 10}, "max_rows: got 10; allowed: a whole number >= 20"),
        ({"candidates": 4}, "candidates: got 4; allowed: a whole number >= 8"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(SearchError, match=re.escape(message)):
        GaussianProcessSearcher(**settings)


def test_one_thread_of_blas_answers(monkeypatch):
    """Beside workers on all cores its threads would wait for one another; what the process has set comes back."""
    import scipy.linalg  # noqa: F401 -- has a BLAS of its own
    from threadpoolctl import ThreadpoolController, threadpool_info

    def threads():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    seen = []
    ask = GaussianProcessSearcher._ask_surrogate
    monkeypatch.setattr(
        GaussianProcessSearcher, "_ask_surrogate", lambda *given: (seen.append(threads()), ask(*given))[1]
    )
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        view = SearchView(Space(x=Float(0, 1)), seed=0)
        play(GaussianProcessSearcher(initial=2, candidates=8), view, 4, lambda configuration, _: [configuration["x"]])
        assert threads() == {2}
    assert seen
    assert set().union(*seen) == {1}

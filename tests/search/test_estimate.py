"""Best by estimate: what a forest believes."""

import numpy as np
import pytest

import trainwright as tw
from trainwright.search import SearchView
from trainwright.search.bayes.estimate import Estimate
from trainwright.testing.searcher import play

SPACE = tw.Space(x=tw.Float(0.0, 1.0), y=tw.Float(0.0, 1.0))


def bowl(configuration, number):
    del number
    return [(configuration["x"] - 0.3) ** 2 + (configuration["y"] - 0.6) ** 2]


def noisy(configuration, number):
    return [bowl(configuration, number)[0] + 0.3 * np.random.default_rng(number).standard_normal()]


def told(trials, loss=bowl, seed=0):
    view = SearchView(SPACE, seed)
    play(tw.RandomSearcher(), view, trials, loss)
    return view


class TestEstimate:
    def test_without_noise_leaves_are_small(self):
        """Every trial is then a leaf of its own, and its estimate what was seen."""
        view = told(60)
        estimate = Estimate.of(view)
        means, deviation = estimate.predict(view.rows)
        assert means == pytest.approx(np.minimum(view.losses[:, 0], means.max()), abs=0.02)
        assert deviation.max() < 0.05

    def test_with_noise_leaves_are_large(self):
        """Estimates are nearer to the truth than what was seen."""
        view = told(100, noisy)
        estimate = Estimate.of(view)
        assert estimate.least_rows > Estimate.of(told(100)).least_rows
        truth = np.array([bowl({"x": x, "y": y}, 0)[0] for x, y in view.rows])
        means = estimate.predict(view.rows)[0]
        assert np.abs(means - truth).mean() < 0.7 * np.abs(view.losses[:, 0] - truth).mean()

    def test_failures_stops_and_few_results(self):
        """Failed rows are left out, partial ones teach; one result is enough."""
        view = SearchView(SPACE, 0, epochs=9)
        for number, configuration in enumerate(tw.RandomSearcher().ask(view, range(20))):
            view.propose(number, configuration)
            view.report(number, 1, [1.0 + configuration["x"]])
            if number % 3:
                view.result(number, None if number % 3 == 1 else [configuration["x"]], epoch=9, complete=True)
        assert np.isfinite(Estimate.of(view).predict(view.rows)[0]).all()
        assert Estimate.of(told(1)).predict(told(1).rows)[0] == pytest.approx(told(1).losses[:, 0])

    def test_huge_losses(self):
        view = told(30, lambda c, n: [1e300 * (-1) ** n])
        assert np.isfinite(Estimate.of(view).predict(view.rows)[0]).all()


@pytest.mark.slow
def test_recommended_by_estimate():
    """Over many noisy studies, the trial recommended is truly better than the best observed."""
    regrets = {"estimate": [], "observed": []}
    for seed in range(40):
        study = tw.Study(SPACE, "min loss", seed=seed, searcher=tw.RandomSearcher())
        for configuration in study.ask(80):
            study.tell(configuration, loss=noisy(configuration, 1000 * seed + (configuration.number or 0))[0])
        for by, found in regrets.items():
            found.append(bowl(study.recommend(by=by).params, 0)[0])
        assert study.recommend() == study.recommend()
    assert np.mean(regrets["estimate"]) < 0.85 * np.mean(regrets["observed"])

"""Best by estimate and stopping by expected gain: what a forest believes, when it hopes for nothing more."""

import math

import numpy as np
import pytest

import trainwright as tw
from trainwright.errors import InputError, SearchError
from trainwright.search import SearchView
from trainwright.search.bayes.estimate import Estimate
from trainwright.study.driver.budget import Budget
from trainwright.study.notes import JobNote
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


class TestExpectedGain:
    def test_it_falls_as_a_search_goes_on(self):
        """In the units of the objective, whatever they are."""
        gains = []
        for trials in (20, 120):
            view = SearchView(SPACE, 0)
            play(tw.ForestSearcher(), view, trials, bowl)
            gains.append(tw.ExpectedGain(1e-9).gain(view))
        assert gains[1] < 0.5 * gains[0]
        view = SearchView(SPACE, 0)
        play(tw.ForestSearcher(), view, 20, lambda c, n: [1000.0 * loss for loss in bowl(c, n)])
        assert tw.ExpectedGain(1e-9).gain(view) == pytest.approx(1000.0 * gains[0], rel=0.5)

    def test_it_is_asked_now_and_then(self):
        rule = tw.ExpectedGain(0.1)
        assert [rule.step(told(trials)) for trials in (19, 20, 21, 40, 41, 43)] == [0, 20, 21, 40, 42 - 2, 42]
        assert tw.ExpectedGain(0.1, results=5).step(told(6)) == 6
        assert not tw.ExpectedGain(1e9).met(told(19))
        assert tw.ExpectedGain(1e9).met(told(20))

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ((0,), "ExpectedGain.least: got 0; allowed: a number > 0"),
            ((math.nan,), "ExpectedGain.least: got nan; allowed: a number > 0"),
            ((True,), "ExpectedGain.least: got True; allowed: a number > 0"),
            ((0.1, 3), "ExpectedGain.results: got 3; allowed: a whole number >= 5"),
        ],
    )
    def test_refusals(self, arguments, sentence):
        with pytest.raises(SearchError) as caught:
            tw.ExpectedGain(*arguments)
        assert sentence in str(caught.value)


def train(trial):
    trial.report(loss=bowl(trial.params, 0)[0])


class TestInAStudy:
    def test_a_run_ends(self, capsys):
        """No trial is started that would gain less, and it is said why."""
        study = tw.Study(SPACE, "min loss")
        study.run(train, trials=500, stop_when=tw.ExpectedGain(0.02), engine=tw.Local(workers=0))
        assert 20 <= len(study.trials) < 300
        assert "less than 0.02: the search ends" in capsys.readouterr().err
        assert study.best.values["loss"] < 0.02

    def test_it_is_part_of_the_job(self):
        """A worker that joins later finds the rule in the ledger."""
        study = tw.Study(SPACE, "min loss")
        rule = tw.ExpectedGain(1e9, 7)
        study.run(train, trials=50, stop_when=rule, engine=tw.Local(workers=0), progress=False)
        assert len(study.trials) == 7
        assert JobNote.last(study.state).complete(Budget()) == Budget(trials=50, stop_when=rule)
        worker = tw.Worker(where=study, engine=tw.Local(workers=0))
        assert worker.run(trials=60, progress=False) == 7
        assert len(study.trials) == 7

    def test_refusals(self):
        several = tw.Study(SPACE, ["min loss", "min cost"])
        with pytest.raises(SearchError, match="looks at one objective, the study has 2; leave it out"):
            several.run(train, trials=5, stop_when=tw.ExpectedGain(0.1), progress=False)
        with pytest.raises(InputError, match=r"run.stop_when: got 0.1; allowed: tw.ExpectedGain\(...\)"):
            tw.Study(SPACE, "min loss").run(train, trials=5, stop_when=0.1, progress=False)


def test_an_estimate_is_of_the_loss_at_the_last_epoch():
    """However many trials were stopped early, at losses that are far higher."""
    view = SearchView(tw.Space(x=tw.Float(0.0, 1.0)), 0, epochs=27, rungs=(1, 3, 9))
    for number, configuration in enumerate(tw.QuasiRandomSearcher().ask(view, range(60))):
        view.propose(number, configuration)
        last = 27 if number % 3 == 0 else 1
        for epoch in range(1, last + 1):
            view.report(number, epoch, [configuration["x"] + 50.0 / epoch**2])
        view.result(number, [configuration["x"]], epoch=last, complete=last == 27)
    means, _ = Estimate.of(view).predict(view.rows)
    assert np.all(means < 3.0)

"""A rule whose rungs change in the middle of a study, and a metric that is not finite at some of them."""

import math

import pytest

import trainwright as tw
from trainwright.ledger import Status

HERE = tw.Local(workers=0)
SPACE = tw.Space(x=tw.Float(0.0, 1.0), y=tw.Float(0.0, 1.0))
RULES = {
    "longer": (tw.ASHA(max_epochs=9), tw.ASHA(max_epochs=27, min_epochs=2)),
    "shorter": (tw.ASHA(max_epochs=27), tw.ASHA(max_epochs=4, eta=2)),
    "other rule": (tw.ASHA(max_epochs=9), tw.Median(max_epochs=9)),
    "promotion": (tw.ASHA(max_epochs=9), tw.ASHA(max_epochs=9, min_epochs=3, kind="promotion")),
}


def train(trial):
    x, y = trial.params["x"], trial.params["y"]
    for epoch in trial.epochs():
        trial.report(loss=(x - 0.3) ** 2 + 0.1 * y + 1 / epoch)


@pytest.mark.parametrize(
    "searcher",
    [tw.DefaultSearcher(), pytest.param(tw.ForestSearcher(), marks=pytest.mark.slow)],
    ids=["default", "forest"],
)
@pytest.mark.parametrize("name", RULES)
def test_the_search_goes_on_as_if_the_study_had_been_opened_anew(tmp_path, name, searcher):
    first, second = RULES[name]
    found = []
    for reopened in (False, True):
        directory = tmp_path / f"{reopened}"
        study = tw.Study(SPACE, "min loss", directory=directory, seed=1, searcher=searcher)
        study.run(train, trials=14, scheduler=first, engine=HERE, progress=False)
        if reopened:
            study.close()
            study = tw.Study.open(directory)
        study.run(train, trials=28, scheduler=second, engine=HERE, progress=False)
        found.append([trial.params for trial in study.trials])
        study.close()
    assert len(found[0]) >= 28
    assert found[0] == found[1]


def test_a_loss_that_is_not_finite_at_a_rung_fails_its_trial_alone():
    def breaks(trial):
        for epoch in trial.epochs():
            bad = trial.number % 3 == 0 and epoch == 3
            trial.report(loss=math.nan if bad else trial.params["x"] + 1 / epoch)

    with tw.Study(SPACE, "min loss") as study:
        study.run(breaks, trials=24, scheduler=tw.ASHA(max_epochs=9), engine=HERE, progress=False)
        failed = [trial for trial in study.trials if trial.status is Status.FAILED]
        assert failed
        assert all(trial.number % 3 == 0 and trial.epoch <= 3 for trial in failed)
        assert math.isfinite(study.best.reports[study.best.epoch].metrics["loss"])
        # The next proposals come from a model that takes a failure for the worst result.
        assert all(0.0 <= study.ask().params["x"] <= 1.0 for _ in range(3))

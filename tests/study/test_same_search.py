"""A simulated study is the study that runs: the same training gives the same proposals, trial by trial."""

import pytest

import trainwright as tw
from trainwright.cluster import Cluster

SPACE = tw.Space(
    x=tw.Float(0.0, 1.0),
    width=tw.Int(1, 64, log=True),
    momentum=tw.Float(0.0, 1.0, when=tw.greater("x", 0.5)),
)


def loss_of(params, epoch):
    return abs(params["x"] - 0.6) + 0.01 * params["width"] + 0.1 * params.get("momentum", 0.5) + 1.0 / epoch


def train(trial):
    for epoch in trial.epochs():
        trial.report(loss=loss_of(trial.params, epoch))


class LearningCurve:
    def __init__(self, params):
        self.params = dict(params)

    def losses(self, epoch):
        return (loss_of(self.params, epoch),)

    def seconds(self, epoch):
        return float(epoch)


class LearningCurves:
    substitutions = 0

    def __init__(self, asked):
        self.asked = asked

    def of(self, trial, params):
        self.asked.append(dict(params))
        return LearningCurve(params)


class Training:
    """The same training, simulated; notes what was asked."""

    def __init__(self):
        self.asked = []

    def learning_curves(self, seed):
        return LearningCurves(self.asked)


RULES = {
    "asha": tw.ASHA(max_epochs=26),
    "asha, which pauses": tw.ASHA(max_epochs=26, kind="promotion"),
    "hyperband": tw.Hyperband(max_epochs=26),
    "halving": tw.SuccessiveHalving(n=9, max_epochs=9),
    "median": tw.Median(max_epochs=26),
    "median, seldom": tw.Median(max_epochs=26, min_epochs=4, interval=5),
    "full length": tw.FixedEpochs(26),
    "two rules": tw.AnyOf(tw.ASHA(max_epochs=26, min_epochs=2), tw.Patience(epochs=3)),
}
SEARCHERS = {
    "forest": tw.ForestSearcher(candidates=60),
    "gp": tw.GaussianProcessSearcher(candidates=24, initial=10),
    "default": tw.DefaultSearcher(),
}


# The default meets every rule, the forest those that pause trials and that do not.
QUICK = {*(("default", rule) for rule in RULES), *(("forest", rule) for rule in list(RULES)[:3])}


@pytest.mark.parametrize(
    ("searcher", "rule"),
    [
        pytest.param(searcher, rule, marks=[] if (searcher, rule) in QUICK else pytest.mark.slow)
        for searcher in SEARCHERS
        for rule in RULES
    ],
)
def test_a_simulated_study_asks_what_the_study_asks(searcher, rule):
    trials = 24 if searcher == "forest" else 18
    study = tw.Study(SPACE, "min loss", seed=3)
    study.run(
        train,
        trials=trials,
        searcher=SEARCHERS[searcher],
        scheduler=RULES[rule],
        engine=tw.Local(workers=0),
        progress=False,
    )
    training = Training()
    study.simulate(
        RULES[rule],
        engine=tw.Simulated(cluster=Cluster(1, 1), task=training),
        searcher=SEARCHERS[searcher],
        trials=trials,
        seeds=1,
    )
    ran = [trial.params for trial in study.trials]
    assert training.asked == ran[: len(training.asked)]
    assert len(training.asked) >= min(trials, len(ran))

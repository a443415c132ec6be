"""A study that grows, call by call, is the study that was asked for all its trials at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_spaces import random_space

import trainwright as tw

TRIALS = 24
SEARCHERS = {
    "default": tw.DefaultSearcher(),
    "forest": tw.ForestSearcher(candidates=40),
    "process": tw.GaussianProcessSearcher(candidates=24),
    "evolution": tw.EvolutionSearcher(),
}
RULES = {
    "no epochs": tw.FixedEpochs(1),
    "epochs": tw.FixedEpochs(3),
    "ASHA": tw.ASHA(max_epochs=9, min_epochs=1),
    "median": tw.Median(max_epochs=4),
    "Hyperband": tw.Hyperband(max_epochs=9),
}


def train(trial):
    level = sum(map(ord, repr(sorted(trial.params.items())))) % 97 / 97
    for epoch in trial.epochs():
        trial.report(loss=level + 1 / epoch)


def grown(number, searcher, rule, budgets):
    """Return what is proposed in space `number` when the budget grows so."""
    with tw.Study(random_space(number), "min loss", seed=number) as study:
        for trials in budgets:
            study.run(
                train, trials=trials, searcher=searcher, scheduler=rule, engine=tw.Local(workers=0), progress=False
            )
        return [(trial.params, trial.origin, trial.epoch) for trial in study.trials]


# The default asks the process, so that the process alone is met by fewer examples.
@pytest.mark.parametrize(
    "searcher", [pytest.param(name, marks=[pytest.mark.slow] if name == "process" else []) for name in SEARCHERS]
)
@settings(max_examples=5, deadline=None)
@given(
    number=st.integers(0, 200),
    rule=st.sampled_from(sorted(RULES)),
    cuts=st.sets(st.integers(1, TRIALS - 1), max_size=TRIALS),
)
def test_however_a_budget_is_cut_into_calls_the_trials_are_the_same(searcher, number, rule, cuts):
    ways = [[TRIALS], [*sorted(cuts), TRIALS]]
    whole, cut = (grown(number, SEARCHERS[searcher], RULES[rule], budgets) for budgets in ways)
    assert cut == whole


@pytest.mark.parametrize(
    ("searcher", "rule"),
    [
        pytest.param(name, rule, marks=[pytest.mark.slow] if name == "process" and rule != "ASHA" else [])
        for name in SEARCHERS
        for rule in RULES
    ],
)
def test_one_trial_a_call_is_one_run(searcher, rule):
    ways = [range(1, TRIALS + 1), [TRIALS]]
    one_by_one, whole = (grown(3, SEARCHERS[searcher], RULES[rule], budgets) for budgets in ways)
    assert one_by_one == whole


def test_ask_and_tell_is_the_run_of_what_never_reports():
    with tw.Study(random_space(5), "min loss", seed=5) as run, tw.Study(random_space(5), "min loss", seed=5) as told:

        def level(trial):
            return sum(map(ord, repr(sorted(trial.params.items())))) % 97 / 97

        run.run(level, trials=TRIALS, searcher=tw.DefaultSearcher(), engine=tw.Local(workers=0), progress=False)
        for _ in range(TRIALS):
            asked = told.ask()
            told.tell(asked, loss=level(asked))
        assert [trial.params for trial in told.trials] == [trial.params for trial in run.trials]

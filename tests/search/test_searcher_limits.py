"""Every searcher run to twice each of its limits, under a rule that reports: none of them dies of its own cap."""

import pytest

import trainwright as tw

SPACE = tw.Space(x=tw.Float(0, 1), y=tw.Float(0, 1))
WIDE = tw.Space.of({f"x{i}": tw.Float(0, 1) for i in range(40)})


def train(trial):
    for epoch in trial.epochs():
        trial.report(loss=(next(iter(trial.params.values())) - 0.3) ** 2 + 1 / epoch)


def run(searcher, trials, rule, space=SPACE):
    study = tw.Study(space, "min loss", searcher=searcher)
    study.run(train, trials=trials, scheduler=rule, engine=tw.Local(workers=0), progress=False)
    assert study.state.results == trials


# Rows: four a trial.
@pytest.mark.parametrize("rule", [tw.FixedEpochs(27), tw.ASHA(max_epochs=27)])
@pytest.mark.parametrize(
    ("searcher", "trials"),
    [
        (tw.GaussianProcessSearcher(max_rows=40, candidates=16), 80),
        (tw.ForestSearcher(max_rows=20, candidates=16), 40),
        (tw.EvolutionSearcher(population=10, tournament=20), 40),
    ],
)
def test_twice_the_rows_that_a_searcher_holds(searcher, trials, rule):
    run(searcher, trials, rule)


@pytest.mark.slow
def test_twice_the_rows_that_a_process_holds():
    run(tw.GaussianProcessSearcher(candidates=100), 250, tw.FixedEpochs(27))


@pytest.mark.slow
def test_twice_the_trials_up_to_which_a_process_is_asked():
    run(None, 400, tw.ASHA(max_epochs=9))
    run(None, 400, tw.FixedEpochs(1))


def test_twice_the_columns_up_to_which_a_process_is_asked():
    run(None, 50, tw.ASHA(max_epochs=9), WIDE)

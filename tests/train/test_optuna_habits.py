"""What an Optuna user writes in a native training function: it does what they mean, or one sentence says what does."""

import contextlib
import copy

import pytest

import trainwright as tw

optuna = pytest.importorskip("optuna")


def run(train, trials=8, **settings):
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", searcher=tw.RandomSearcher())
    rule = tw.ASHA(max_epochs=9, kind="stopping")
    settings = {"scheduler": rule, "engine": tw.Local(workers=0), "progress": False} | settings
    study.run(train, trials=trials, **settings)
    return study


def plain(trial):
    for epoch in trial.epochs():
        trial.report(loss=trial.params["x"] / epoch)


def after_and_return(trial):
    for epoch in trial.epochs():
        trial.report(loss=trial.params["x"] / epoch)
        if trial.should_prune():
            return


def after_and_raise(trial):
    for epoch in trial.epochs():
        trial.report(loss=trial.params["x"] / epoch)
        if trial.should_prune():
            raise optuna.TrialPruned


def before(trial):
    for epoch in trial.epochs():
        if trial.should_prune():
            raise optuna.TrialPruned
        trial.report(loss=trial.params["x"] / epoch)


def caught(trial):
    """Catch the very end that the report raises."""
    for epoch in trial.epochs():
        with contextlib.suppress(BaseException):
            trial.report(loss=trial.params["x"] / epoch)
        if trial.should_prune():
            raise optuna.TrialPruned


def ends(study):
    return [(str(trial.status), trial.epoch, dict(trial.values)) for trial in study.trials]


@pytest.mark.parametrize("habit", [after_and_return, after_and_raise, before, caught])
def test_should_prune_in_any_place_changes_nothing(habit):
    """Survivors train to their end, the others are stopped where a rule says so, none fails."""
    expected = ends(run(plain))
    assert {status for status, _, _ in expected} == {"complete", "stopped"}
    assert ends(run(habit)) == expected


def test_a_trial_that_prunes_itself_is_stopped_with_its_last_report():
    def train(trial):
        for epoch in trial.epochs():
            trial.report(loss=trial.params["x"] / epoch)
            if trial.number % 2 and epoch == 2:
                raise optuna.TrialPruned("not worth it")

    study = run(train, trials=4, scheduler=tw.FixedEpochs(3))
    assert [(str(trial.status), trial.epoch) for trial in study.trials] == [
        ("complete", 3), ("stopped", 2), ("complete", 3), ("stopped", 2),
    ]  # fmt: skip
    assert study.trials[1].values == {"loss": study.trials[1].params["x"] / 2}


def test_a_trial_that_prunes_itself_before_any_report_has_failed():
    def train(trial):
        raise optuna.TrialPruned("no reason")

    with pytest.raises(tw.StudyFailed, match="TrialPruned: no reason"):
        run(train)


OURS = {"number", "params", "report", "should_prune"}
NAMES = sorted({name for name in dir(optuna.trial.Trial) if not name.startswith("_")} - OURS)


@pytest.mark.parametrize("name", [*NAMES, "prams", "best"])
def test_a_name_that_is_not_ours_says_what_is_and_ends_the_run_at_once(name):
    """At once, though other trials have results: each survivor would fail at it."""

    def train(trial):
        trial.report(loss=trial.params["x"])
        if trial.number:
            getattr(trial, name)

    with pytest.raises(tw.StudyFailed) as caught:
        run(train, scheduler=tw.FixedEpochs(3))
    sentence = str(caught.value)
    assert sentence.startswith(f"trial.{name}: no such attribute; ")
    assert "tw.from_optuna" in sentence
    assert "test_optuna_habits.py:" in sentence
    assert "\n" not in sentence


def test_what_is_meant_is_named():
    def said(call):
        with pytest.raises(tw.StudyFailed) as caught:
            run(call)
        return str(caught.value)

    assert "values are in trial.params" in said(lambda trial: trial.suggest_float("lr", 0, 1))
    assert "number, params, prepare" in said(lambda trial: trial.set_user_attr("model", "a"))
    assert "did you mean 'params'" in said(lambda trial: trial.prams)
    sentence = said(lambda trial: trial.report(0.5, 1))
    assert sentence.startswith("trial.report: got 0.5 without a name; give trial.report(loss=...), with epoch= if")


def test_a_trial_can_still_be_asked_and_copied():
    def train(trial):
        assert not hasattr(trial, "suggest_float")
        assert getattr(trial, "study", None) is None
        assert copy.copy(trial).number == trial.number
        return 1.0

    assert run(train, trials=2).state.results == 2

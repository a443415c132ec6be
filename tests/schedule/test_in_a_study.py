"""Rules at work in a study: what they stop, what completes, and what is refused before anything runs."""

from contextlib import suppress

import pytest

import trainwright as tw
from trainwright.errors import ScheduleError, SchedulerStalled
from trainwright.ledger import Status

HERE = tw.Local(workers=0)


def curves(trial):
    """Report more epochs than asked for; lower x is better at every epoch."""
    for epoch in range(1, 20):
        trial.report(val_loss=trial.params["x"] + 1 / epoch, accuracy=-trial.params["x"] - 1 / epoch)


def run(scheduler, objectives="min val_loss", train=curves, trials=12, **where):
    space = tw.Space(x=tw.Float(0, 1))
    study = tw.Study(space, objectives, seed=1, searcher=tw.RandomSearcher(), **where)
    study.run(train, trials=trials, scheduler=scheduler, engine=HERE, progress=False)
    return study


def verdicts(study):
    return [(d.trial, d.epoch, d.verdict, abs(d.value)) for d in study.state.decisions.values()]


def test_asha_stops_at_rungs_and_completes_at_the_end():
    """Stopped trials end at a rung and with its report, the others at max_epochs, though their loop is longer."""
    study = run(tw.ASHA(max_epochs=9))
    ends = {(trial.status, trial.epoch) for trial in study.trials}
    assert ends == {(Status.STOPPED, 1), (Status.STOPPED, 3), (Status.COMPLETE, 9)}
    assert all(trial.values == trial.reports[trial.epoch].metrics for trial in study.trials)
    assert {reason[2] for reason in verdicts(study)} == {"continue", "stop"}


def test_maximising_is_minimising_the_negative():
    assert verdicts(run(tw.ASHA(max_epochs=9))) == verdicts(run(tw.ASHA(max_epochs=9), "max accuracy"))


def test_the_last_epoch_stops_nobody():
    """A trial that has come to its full length is complete, whatever the rule thinks of its last report."""
    study = run(tw.Median(min_epochs=4, min_trials=1, max_epochs=4))
    assert {(trial.status, trial.epoch) for trial in study.trials} == {(Status.COMPLETE, 4)}
    assert study.state.decisions == {}


def test_the_rule_remembers_over_a_restart(tmp_path):
    """A study in two runs decides as one in a single run: the rungs are folded from the ledger."""
    whole = run(tw.ASHA(max_epochs=9), directory=tmp_path / "whole")
    run(tw.ASHA(max_epochs=9), trials=5, directory=tmp_path / "parts").close()
    parts = run(tw.ASHA(max_epochs=9), directory=tmp_path / "parts")
    assert verdicts(parts) == verdicts(whole)


def test_several_objectives_need_a_rule_for_several():
    """Refused before the first trial; FixedEpochs compares nothing and will do."""
    both = ["min val_loss", "max accuracy"]
    with pytest.raises(ScheduleError, match="Median compares trials by one objective, the study has 2"):
        run(tw.Median(), both)
    assert len(run(tw.FixedEpochs(2), both, trials=2).trials) == 2


def test_an_objective_that_is_not_reported_fails_the_trial():
    """The sentence names the objective, the epoch and what there was."""
    study = run(tw.ASHA(max_epochs=9), train=without_loss, trials=1)
    failure = study.trials[0].failure
    assert (failure.kind, failure.message) == (
        "bad_objective",
        "objective 'val_loss' is missing at epoch 1; reported: accuracy, speed",
    )


def without_loss(trial):
    """Forget the objective in the first trial."""
    if trial.number == 0:
        trial.report(speed=1.0, accuracy=0.5)
    curves(trial)


def test_a_policy_too_large_is_refused_before_anything_runs():
    with pytest.raises(ScheduleError, match=r"Fixed.devices: got 2, the engine has 1 slots"):
        run(tw.Fixed(2))


@pytest.mark.parametrize(
    ("scheduler", "sentence"),
    [
        (tw.ASHA(max_epochs=4, min_epochs=4), "ASHA: there are no rungs below max_epochs=4: every trial trains to its"),
        (
            tw.Scheduler(tw.ASHA(max_epochs=2), tw.DoublingAsPublished()),
            "DoublingAsPublished: a trial that passes all rungs wants 2 devices, the engine has 1: it would wait",
        ),
    ],
)
def test_what_may_surprise_is_said_first(scheduler, sentence, capsys):
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min val_loss", seed=1, searcher=tw.RandomSearcher())
    with suppress(SchedulerStalled):
        study.run(curves, trials=1, scheduler=scheduler, engine=HERE)
    assert capsys.readouterr().err.startswith(sentence)

"""Optuna objectives as training functions: they run unchanged, prune as Optuna's do, and contradictions are told."""

import pytest

import trainwright as tw
from trainwright.errors import SpaceError, StudyError, TrialError
from trainwright.ledger import Status

SPACE = tw.Space(
    rate=tw.Float(1e-5, 1e-1, log=True),
    drop=tw.Float(0.0, 0.5, step=0.1),
    depth=tw.Int(2, 8, step=2),
    optimizer=tw.Choice("sgd", "adamw"),
    momentum=tw.Float(0.0, 0.99, when=tw.equals("optimizer", "sgd")),
)


class TrialPruned(Exception):
    """What Optuna raises, where there is no Optuna."""


def run(objective, trials=6, space=SPACE, objectives="min loss", **options):
    study = tw.Study(space, objectives, searcher=tw.RandomSearcher())
    options = {"engine": tw.Local(workers=0), "progress": False, **options}
    study.run(tw.from_optuna(objective), trials=trials, **options)
    return study


def plain(trial):
    rate = trial.suggest_float("rate", 1e-5, 1e-1, log=True)
    drop = trial.suggest_float("drop", 0.0, 0.5, step=0.1)
    depth = trial.suggest_int("depth", 2, 8, step=2)
    assert trial.suggest_float("rate", 1e-5, 1e-1, log=True) == rate
    if trial.suggest_categorical("optimizer", ["sgd", "adamw"]) == "sgd":
        drop += trial.suggest_float("momentum", 0.0, 0.99)
    trial.set_user_attr("params", list(trial.params))
    return rate + drop + depth


def test_an_objective_runs_unchanged():
    """Values come from the space, of the types that Optuna gives; attributes are notes in the ledger."""
    study = run(plain)
    assert [trial.status for trial in study.trials] == [Status.COMPLETE] * 6
    for trial in study.trials:
        assert trial.values["loss"] == pytest.approx(
            sum(v for n, v in trial.params.items() if n != "optimizer"), rel=1e-12
        )
    notes = {trial: value for trial, name, value in study.state.notes.values() if name == "params"}
    assert {number: set(names) for number, names in notes.items()} == {
        trial.number: set(trial.params) for trial in study.trials
    }


def test_it_runs_in_worker_processes(tmp_path):
    """The engine ships the objective by its name."""
    study = tw.Study(SPACE, "min loss", directory=tmp_path / "study", searcher=tw.RandomSearcher())
    study.run(tw.from_optuna(plain), trials=2, engine=tw.Local(workers=1), progress=False)
    assert study.state.counts["complete"] == 2


def reporting(trial, steps, said):
    for step in steps:
        trial.report(1.0 / (step + 1), step)
        if trial.should_prune():
            said.append((trial.number, step))
            raise TrialPruned
    return 0.5


@pytest.mark.parametrize(("steps", "epochs"), [(range(4), [1, 2, 3, 4]), (range(1, 4), [1, 2, 3]), ([0, 10], [1, 11])])
def test_steps_are_epochs(steps, epochs):
    """Steps from 0 are counted from 1, others stay."""
    study = run(lambda trial: reporting(trial, steps, []), 1)
    assert list(study.trials[0].reports) == epochs
    assert study.trials[0].values == {"loss": 0.5}


def test_a_scheduler_prunes():
    """The objective hears of a stop from should_prune; its last report is what the trial is worth."""
    said = []

    def objective(trial):
        bad = 2.0 * trial.number
        for step in range(9):
            trial.report(bad + 1.0 / (step + 1), step)
            if trial.should_prune():
                said.append(trial.number)
                raise TrialPruned
        return bad

    study = run(objective, scheduler=tw.ASHA(max_epochs=9))
    assert said == [trial.number for trial in study.trials if trial.status is Status.STOPPED] != []
    stopped = study.trials[said[0]]
    assert stopped.values["loss"] == stopped.reports[stopped.epoch].metrics["loss"]


def test_an_objective_that_does_not_ask_goes_on_in_vain():
    """A stop that was not heeded stays a stop; later reports are nobody's."""

    def objective(trial):
        for step in range(9):
            trial.report(2.0 * trial.number + 1.0 / (step + 1), step)
        return -1.0

    study = run(objective, scheduler=tw.ASHA(max_epochs=9))
    stopped = [trial for trial in study.trials if trial.status is Status.STOPPED]
    assert stopped
    assert all(trial.values["loss"] > 0 for trial in stopped)


def test_an_objective_prunes_itself():
    """With a report it is stopped with that value; without one it has failed."""

    def objective(trial):
        if trial.number % 2:
            trial.report(0.25, 0)
        raise TrialPruned("hopeless")

    study = run(objective, 3)
    assert [trial.status for trial in study.trials[:2]] == [Status.FAILED, Status.STOPPED]
    assert study.trials[0].failure.message == "TrialPruned: hopeless"
    assert study.trials[1].values == {"loss": 0.25}
    assert study.state.results == 3


def test_several_objectives():
    study = run(lambda trial: (trial.suggest_int("depth", 2, 8, step=2), 1.0), 2, objectives=["min size", "max score"])
    assert study.trials[0].values == {"size": study.trials[0].params["depth"], "score": 1.0}


# Without a space.


def growing(trial):
    """Suggest a little of everything, some of it only in branches."""
    layers = trial.suggest_int("layers", 1, 3)
    sizes = [trial.suggest_int(f"size {i}", 8, 64, log=True) for i in range(layers)]
    optimizer = trial.suggest_categorical("optimizer", ["sgd", "adamw", "rmsprop"])
    if optimizer != "adamw":
        trial.suggest_float("momentum", 0.0, 0.9, step=0.1)
        if trial.suggest_categorical("nesterov", [True, False]):
            trial.suggest_float("damping", 0.0, 1.0)
    if trial.suggest_float("rate", 1e-5, 1e-1, log=True) > 1e-3:
        trial.suggest_int("warmup", 1, 9, step=2)
    trial.suggest_float("fixed", 0.5, 0.5)
    for step in range(3):
        trial.report(float(sum(sizes)), step)
        if trial.should_prune():
            raise TrialPruned
    return float(sum(sizes))


def test_the_space_is_found_by_dry_runs():
    """Ranges as they were suggested, and the conditions that the branches make."""
    space = tw.from_optuna(growing).space()
    rate = space.parameters["warmup"].when
    assert 5e-4 < rate.values[0] <= 1e-3
    assert space == tw.Space.of(
        {
            "layers": tw.Int(1, 3),
            "size 0": tw.Int(8, 64, log=True),
            "size 1": tw.Int(8, 64, log=True, when=tw.greater("layers", 1)),
            "optimizer": tw.Choice("sgd", "adamw", "rmsprop"),
            "momentum": tw.Float(0.0, 0.9, step=0.1, when=tw.one_of("optimizer", "sgd", "rmsprop")),
            "nesterov": tw.Choice(True, False, when=tw.one_of("optimizer", "sgd", "rmsprop")),
            "damping": tw.Float(0.0, 1.0, when=tw.equals("nesterov", True)),
            "rate": tw.Float(1e-5, 1e-1, log=True),
            "warmup": tw.Int(1, 9, step=2, when=rate),
            "fixed": tw.Constant(0.5),
            "size 2": tw.Int(8, 64, log=True, when=tw.greater("layers", 2)),
        }
    )
    assert tw.from_optuna(growing).space() == space


def test_a_name_that_no_dry_run_saw_fails_the_trial():
    """With what to add to the space."""
    space = tw.from_optuna(growing).space(draws=1)
    failures = [trial.failure for trial in run(growing, 4, space).trials if trial.failure is not None]
    assert all("is not among the values of this trial" in failure.message for failure in failures)
    assert failures


def nothing(trial):
    raise ValueError("no data")


def two_ranges(trial):
    return trial.suggest_int("k", 0, trial.number + 1)


def sometimes_fails(trial):
    x = trial.suggest_float("x", 0.0, 1.0)
    if x > 0.5:
        raise MemoryError
    trial.suggest_float("y", 0.0, 1.0)
    raise TrialPruned


def test_dry_runs_that_go_wrong():
    """One that fails counts with what it suggested; it says nothing of conditions."""
    assert tw.from_optuna(sometimes_fails).space() == tw.Space(x=tw.Float(0.0, 1.0), y=tw.Float(0.0, 1.0))
    with pytest.raises(
        TrialError, match=r"suggested nothing in 2 dry runs \(ValueError: no data\); declare a tw.Space"
    ):
        tw.from_optuna(nothing).space(draws=2)
    with pytest.raises(SpaceError, match=r"k: the objective suggests it as Int\(0, 1\) and as Int\(0, 2\); give each"):
        tw.from_optuna(two_ranges).space()
    with pytest.raises(TrialError, match="draws: got 0; allowed"):
        tw.from_optuna(growing).space(draws=0)


def test_workers_find_the_objective_by_its_name(tmp_path):
    """A worker that joins is told nothing but the directory; one without a name to go by says so."""
    study = tw.Study(SPACE, "min loss", directory=tmp_path / "named", searcher=tw.RandomSearcher())
    study.run(tw.from_optuna(plain), trials=2, engine=tw.Local(workers=0), progress=False)
    study.close()
    worker = tw.Worker(where=tmp_path / "named", engine=tw.Local(workers=0))
    assert worker.run(trials=4, progress=False) == 2
    with pytest.raises(StudyError, match=r"run from_optuna\(test_optuna_objectives:plain\) .* run test_optuna_obj"):
        tw.Worker(where=tmp_path / "named", train=plain, engine=tw.Local(workers=0)).run(trials=6, progress=False)
    study = tw.Study(SPACE, "min loss", directory=tmp_path / "nameless", searcher=tw.RandomSearcher())
    study.run(tw.from_optuna(lambda trial: 1.0), trials=2, engine=tw.Local(workers=0), progress=False)
    study.close()
    with pytest.raises(StudyError, match="training function cannot be found by name; give it: --train"):
        tw.Worker(where=tmp_path / "nameless", engine=tw.Local(workers=0)).run(trials=4, progress=False)


def failing(call):
    def objective(trial):
        call(trial)
        return 1.0

    with pytest.raises(tw.StudyFailed) as failed:
        run(objective, 1)
    return str(failed.value).split("none has a result: ")[1]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda t: t.suggest_float("rate", 1.0, 2.0), "rate=Float(1.0, 2.0) does not allow rate="),
        (lambda t: t.suggest_int("depth", 3, 9, step=2), "depth=Int(3, 9, step=2) does not allow depth="),
        (lambda t: t.suggest_int("rate", 0, 1), "does not allow rate="),
        (lambda t: t.suggest_float("optimizer", 0, 1), "does not allow optimizer="),
        (lambda t: t.suggest_categorical("optimizer", ["adam", 1]), "optimizer=Choice('adam', 1) does not allow"),
        (
            lambda t: t.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
            "add weight_decay=tw.Float(1e-06, 0.01, log=True) to the space, or mend its when=",
        ),
        (lambda t: t.suggest_int("heads", 1, 8), "add heads=tw.Int(1, 8) to the space"),
        (lambda t: t.set_user_attr("model", object()), "user attribute 'model' is no plain data"),
        (lambda t: t.study, "AttributeError: from_optuna: its trial has no 'study'; it has number, params"),
    ],
)
def test_contradictions_are_sentences(call, sentence):
    assert sentence in failing(call)


def test_values_must_fit_the_objectives():
    def objective(trial):
        return 1.0, 2.0

    with pytest.raises(tw.StudyFailed, match=r"returned 2 values, the study has 1 objectives \(loss\); return one"):
        run(objective, 1)
    with pytest.raises(tw.StudyFailed, match="report gives one value, the study has 2 objectives"):
        run(lambda trial: trial.report(1.0, 0), 1, objectives=["min a", "min b"])
    with pytest.raises(TrialError, match="got 3; allowed: a function of an Optuna trial"):
        tw.from_optuna(3)

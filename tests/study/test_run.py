"""`study.run`: results, budgets, failures, and the sentences for what cannot work. In this process, so it is fast."""

import gc
import math
import time
from collections import Counter

import pytest
import small_study

import trainwright as tw
from trainwright.errors import InputError, ObjectiveError, ScheduleError, StudyError, TrialError
from trainwright.study import StudyFailed

SPACE = tw.Space(x=tw.Float(0.0, 1.0))


def make(objectives="min loss", directory=None, space=SPACE):
    return tw.Study(space, objectives=objectives, directory=directory, seed=1, searcher=tw.RandomSearcher())


def run(study, train, **settings):
    study.run(train, **{"engine": tw.Local(workers=0), "progress": False} | settings)


def epochs(trial):
    for epoch in trial.epochs(4):
        trial.report(loss=trial.params["x"] / epoch, seen=epoch)


def counts(study):
    return {str(status): count for status, count in study.state.counts.items() if count}


# Results.


def test_the_last_report_is_the_result():
    study = make()
    run(study, epochs, trials=3)
    assert counts(study) == {"complete": 3}
    for trial in study.trials:
        assert sorted(trial.reports) == [1, 2, 3, 4]
        assert trial.values == {"loss": trial.params["x"] / 4, "seen": 4.0}
    assert study.best.params["x"] == min(trial.params["x"] for trial in study.trials)


@pytest.mark.parametrize("returned", [0.5, {"loss": 0.5}, {"loss": 0.5, "other": 1}])
def test_what_train_returns_is_the_result(returned):
    study = make()
    run(study, lambda _: returned, trials=2)
    assert [trial.values["loss"] for trial in study.trials] == [0.5, 0.5]


def test_what_train_returns_overrides_what_it_reported():
    def train(trial):
        trial.report(loss=1.0, other=2.0)
        return 0.5

    study = make()
    run(study, train, trials=1)
    assert study.best.values == {"loss": 0.5, "other": 2.0}


def test_several_objectives():
    study = make(["min loss", "max speed"])
    run(study, lambda trial: {"loss": trial.params["x"], "speed": trial.params["x"]}, trials=5)
    assert len(study.front) == 5


def test_a_stopped_trial_keeps_its_last_report():
    def train(trial):
        for epoch in trial.epochs():
            trial.report(loss=trial.number + 1 / epoch)

    study = make()
    run(study, train, trials=6, scheduler=tw.ASHA(max_epochs=9))
    assert study.trials[0].status == "complete"
    stopped = [trial for trial in study.trials if trial.status == "stopped"]
    assert stopped
    for trial in stopped:
        assert trial.epoch < 9
        assert trial.values == trial.reports[trial.epoch].metrics
        decision = study.state.decisions[trial.number, trial.epoch]
        assert (decision.verdict, decision.rule) == ("stop", "ASHA")
        assert decision.value > decision.threshold


def test_a_number_whose_trial_was_not_started_is_used_again():
    class Broken:
        start = 1
        resizes = False

        def check(self, slots, slots_per_node, rule):
            pass

        def free_slots(self, slots, slots_per_node):
            return tw.Fixed().free_slots(slots, slots_per_node)

        def planner(self):
            return self

        def plan(self, device_allocator):
            device_allocator.start_next()
            raise RuntimeError("no plan")

    study = make()
    with pytest.raises(RuntimeError, match="no plan"):
        run(study, epochs, trials=2, scheduler=Broken())
    with pytest.raises(StudyError, match="a policy of its user's own making"):
        run(study, epochs, trials=2)
    run(study, epochs, trials=2, scheduler=tw.FixedEpochs())
    assert [trial.number for trial in study.trials] == [0, 1]


def test_the_garbage_collector_passes_over_what_is_there_while_a_study_runs():
    """A worker of many reads so much that stays that it would look through all modules again and again.

    Afterwards nothing is frozen, not even what was before: to count that takes a worker 17 ms.
    """
    frozen = []

    def train(trial):
        frozen.append(gc.get_freeze_count() > 0)
        return 1.0

    gc.unfreeze()  # as these tests leave it to the run
    try:
        run(make(), train, trials=1)
        assert frozen == [True]
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()
    run(make(), train, trials=1)
    assert gc.get_freeze_count() == 0


# Budgets.


def test_trials_count_over_the_life_of_a_study(tmp_path):
    study = make(directory=tmp_path / "study")
    run(study, epochs, trials=3)
    run(study, epochs, trials=3)
    assert counts(study) == {"complete": 3}
    study.close()
    study = tw.Study.open(tmp_path / "study", searcher=tw.RandomSearcher())
    run(study, epochs, trials=5)
    assert counts(study) == {"complete": 5}
    run(study, epochs, trials=2)
    assert counts(study) == {"complete": 5}


def test_failures_do_not_use_up_the_budget():
    def train(trial):
        if trial.number in {1, 2, 5}:
            raise ValueError(f"no luck with {trial.number}")
        return 1.0

    study = make()
    run(study, train, trials=5)
    assert counts(study) == {"complete": 5, "failed": 3}
    failure = study.trials[2].failure
    assert (failure.kind, failure.message) == ("exception", "ValueError: no luck with 2")
    assert "test_run.py" in failure.traceback
    assert "no luck with 2" in failure.traceback


def test_told_results_count():
    study = make()
    study.tell({"x": 0.5}, loss=1.0)
    study.tell({"x": 0.6}, failed="no")
    run(study, epochs, trials=3)
    assert counts(study) == {"complete": 3, "failed": 1}


def test_wall_seconds_count_over_one_call(monkeypatch):
    passed = 0.0

    def clock():
        nonlocal passed
        passed += 1e-6
        return passed

    def train(trial):
        nonlocal passed
        passed += 0.3
        return 1.0

    monkeypatch.setattr(time, "monotonic", clock)
    study = make()
    for calls in (1, 2):
        run(study, train, wall_seconds=1.0, grace_seconds=0.0)
        assert counts(study) == {"complete": 4 * calls}


def test_device_seconds_count_over_the_life_of_a_study():
    def train(trial):
        time.sleep(0.05)
        return 1.0

    study = make()
    run(study, train, device_seconds=0.2)
    done = len(study.trials)
    assert 1 <= done <= 4
    assert study.state.device_seconds >= 0.2
    run(study, train, device_seconds=0.2)
    assert len(study.trials) == done


def test_device_seconds_end_a_run_in_the_middle_of_a_trial(tmp_path):
    """What runs then is paused, and goes on with more budget."""
    study = make(directory=tmp_path / "study", space=small_study.SPACE)
    settings = {"engine": tw.Local(workers=1), "scheduler": tw.FixedEpochs(50)}
    run(study, small_study.train, trials=1, device_seconds=0.5, **settings)
    assert counts(study) == {"paused": 1}
    assert study.state.device_seconds >= 0.5
    run(study, small_study.train, trials=1, **settings)
    assert counts(study) == {"complete": 1}


def test_what_others_wrote_meanwhile_counts(tmp_path):
    study = make(directory=tmp_path / "study")
    with make(directory=tmp_path / "study") as other:
        run(other, epochs, trials=2)
        other.tell(other.ask(), failed="no")
    run(study, epochs, trials=4)
    assert counts(study) == {"complete": 4, "failed": 1}
    assert sorted(study.state.trials) == [0, 1, 2, 3, 4]


def test_a_space_that_is_used_up_ends_the_run():
    study = make(space=tw.Space(k=tw.Int(1, 4)))
    for _ in range(2):
        run(study, lambda trial: trial.params["k"])
        assert counts(study) == {"complete": 4}
    run(study, lambda trial: trial.params["k"], trials=100)
    assert counts(study) == {"complete": 4}


def test_no_configuration_comes_twice():
    study = make(space=tw.Space(k=tw.Int(1, 30)))
    asked = study.ask(5)
    study.tell({"k": 30}, loss=1.0)
    run(study, lambda trial: trial.params["k"], trials=15)
    assert max(Counter(trial.key for trial in study.trials[5:]).values()) <= 2  # the told one may be an asked one
    assert len({trial.key for trial in study.trials if trial.origin["searcher"] == "random"}) == len(study.trials) - 1
    assert all(study.trials[configuration.number].status == "proposed" for configuration in asked)


# Failures.


def test_ten_failures_without_success_end_the_run():
    kinds = [ValueError, TypeError, KeyError, RuntimeError, IndexError]  # of one kind two would do

    def train(trial):
        if trial.number % 2:
            raise kinds[trial.number // 2]("broken")
        raise kinds[trial.number // 2]("no luck")

    study = make()
    with pytest.raises(StudyFailed) as caught:
        run(study, train, trials=50)
    assert str(caught.value).startswith("10 trials have failed, 0 have a result; the last: IndexError: broken at ")
    assert counts(study) == {"failed": 10}
    assert not isinstance(caught.value, InputError)  # exit status 1


def test_failures_after_a_success_end_the_run_at_their_limit():
    def train(trial):
        if trial.number:
            raise RuntimeError("broken")
        return 1.0

    study = make()
    with pytest.raises(StudyFailed, match="15 trials have failed, 1 have a result"):
        run(study, train, trials=50, max_failures=15)


def test_many_failures_do_not_end_a_run_of_which_most_trials_succeed():
    def train(trial):
        return 1.0 if trial.number % 5 > 1 else math.nan

    study = make()
    run(study, train, trials=165)
    assert counts(study) == {"complete": 165, "failed": 110}
    with pytest.raises(StudyFailed, match=r"165 trials have failed, .*; a larger max_failures lets it go on"):
        run(study, lambda _: math.nan, trials=300)


@pytest.mark.parametrize("wrong", ["tpe", tw.RandomSearcher, tw.Local, 3])
@pytest.mark.parametrize("part", ["searcher", "engine"])
def test_a_part_of_another_kind_is_refused_before_anything_runs(part, wrong):
    study = make()
    with pytest.raises(InputError, match=rf"^{part}: got .*; allowed: an? {part} such as "):
        study.run(lambda trial: trial.params["x"], trials=2, progress=False, **{part: wrong})
    assert not study.trials


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lambda trial: trial.report(other=1.0), "objective 'loss' is missing at epoch 1; reported: other"),
        (lambda trial: trial.report(loss=math.nan), "objective 'loss' is nan at epoch 1"),
        (lambda trial: trial.report(epoch=3, loss=-math.inf), "objective 'loss' is -inf at epoch 3"),
        (lambda _: None, "objective 'loss' is missing in the result; reported: nothing"),
        (lambda _: {"other": 1.0}, "objective 'loss' is missing in the result; reported: other"),
        (lambda _: math.inf, "objective 'loss' is inf in the result"),
        (lambda _: "done", "train returned 'done'; return a number, a dict of numbers, or None"),
        (lambda _: [1.0, 2.0], "train returned [1.0, 2.0]; return a number, a dict of numbers, or None"),
    ],
)
def test_an_objective_that_never_comes(train, message):
    """Never reported, or no number: two such trials end the run. Not finite: ten, as other configurations may do."""
    study = make()
    with pytest.raises(StudyFailed):
        run(study, train, trials=50)
    assert counts(study) == {"failed": 10 if " is nan " in message or "inf " in message else 2}
    assert {(trial.failure.kind, trial.failure.message) for trial in study.trials} == {("bad_objective", message)}


@pytest.mark.parametrize("value", ["abc", None, [1.0]])
def test_a_report_that_is_no_number(value):
    study = make()
    with pytest.raises(StudyFailed):
        run(study, lambda trial: trial.report(loss=value), trials=20)
    sentence = f"trial 0: loss must be a number, got {value!r} ({type(value).__name__})"
    assert sentence in study.trials[0].failure.message


def test_a_report_after_the_end():
    kept = []

    def train(trial):
        kept.append(trial)
        return 1.0

    study = make()
    run(study, train, trials=1)
    with pytest.raises(TrialError) as caught:
        kept[0].report(loss=0.5)
    assert str(caught.value) == "trial 0 has ended; report before the training function returns"
    assert study.best.values == {"loss": 1.0}


def test_two_objectives_and_one_returned_number():
    study = make(["min loss", "max speed"])
    with pytest.raises(StudyFailed, match=r"train returned 1.0; return a dict of metrics, or report them"):
        run(study, lambda _: 1.0, trials=20)


# Mistakes in the call.


@pytest.mark.parametrize("name", ["trials", "wall_seconds", "device_seconds", "max_failures"])
@pytest.mark.parametrize("value", [0, -1, math.nan, "3", True])
def test_budgets_that_are_no_budgets(name, value):
    with pytest.raises(InputError) as caught:
        run(make(), epochs, **{"trials": 1, name: value})
    assert f"run.{name}: got {value!r}; allowed: a " in str(caught.value)


@pytest.mark.parametrize("value", [2.5, math.inf])
def test_a_part_of_a_trial(value):
    with pytest.raises(InputError) as caught:
        run(make(), epochs, trials=value)
    assert str(caught.value) == f"run.trials: got {value!r}; allowed: a whole number >= 1, or None"


def test_an_endless_run():
    with pytest.raises(StudyError, match=r"no budget for an endless space; give trials=, deadline= or wall_seconds="):
        run(make(), epochs)


def test_a_scheduler_that_is_none():
    with pytest.raises(ScheduleError, match=r"scheduler: got 'asha'; allowed: a rule such as ASHA\(max_epochs=27\)"):
        run(make(), epochs, trials=1, scheduler="asha")


def test_more_devices_than_there_are():
    with pytest.raises(ScheduleError, match=r"Fixed.devices: got 2, the engine has 1 slots; allowed: 1 to 1"):
        run(make(), epochs, trials=1, scheduler=tw.Fixed(2))


@pytest.mark.parametrize("seed", [-1, 1.5, "x", True, None])
def test_seeds_that_are_no_seeds(seed):
    with pytest.raises(StudyError) as caught:
        tw.Study(SPACE, objectives="min loss", seed=seed)
    assert str(caught.value) == f"seed: got {seed!r}; allowed: a whole number >= 0"


def test_a_space_that_is_none():
    with pytest.raises(StudyError, match=r"space: got \{'x': 1\}; allowed: tw.Space\(lr=tw.Float\(...\), ...\)"):
        tw.Study({"x": 1}, objectives="min loss")


@pytest.mark.parametrize("objectives", ["loss", [], ["min a", "min a"], "min a >= 3", 7])
def test_objectives_that_are_none(objectives, tmp_path):
    with pytest.raises(ObjectiveError):
        tw.Study(SPACE, objectives=objectives, directory=tmp_path / "study")
    assert not (tmp_path / "study").exists()  # refused before anything is written


def test_a_bracket_is_drawn_by_the_seed_of_the_study():
    """Hyperband knows the study's seed, so two seeds spread their trials otherwise over the brackets."""

    def stopped_at(seed):
        study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", seed=seed, searcher=tw.RandomSearcher())
        rule = tw.Hyperband(max_epochs=9)
        study.run(climbs, trials=12, scheduler=rule, engine=tw.Local(workers=0), progress=False)
        return {epoch for _, epoch in study.state.decisions}, sorted(study.state.decisions)

    (epochs, first), (_, second) = stopped_at(0), stopped_at(1)
    assert epochs <= {1, 3}
    assert first != second


def climbs(trial):
    """Report a loss that grows with the trial's number: all but the first stop where they are compared."""
    for _ in trial.epochs():
        trial.report(loss=trial.number)

"""Ask and tell: numbered proposals, results, what is best; in memory, in a directory, across processes' ends."""

import math

import numpy as np
import pytest

import trainwright as tw
from trainwright.errors import ObjectiveError, SpaceExhausted, StudyError, TrialError

SPACE = tw.Space(x=tw.Float(0.0, 1.0), k=tw.Int(1, 100), kind=tw.Choice("a", "b", ("c", 1)))


@pytest.fixture(params=["memory", "directory"])
def study(request, tmp_path):
    directory = None if request.param == "memory" else tmp_path / "study"
    with tw.Study(SPACE, objectives="min loss", directory=directory, seed=3, searcher=tw.RandomSearcher()) as study:
        yield study


def test_asked_told_and_best(study):
    with pytest.raises(StudyError, match="none of 0 trials has a result yet"):
        _ = study.best
    losses = [0.3, 0.1, 0.2]
    for number, loss in enumerate(losses):
        configuration = study.ask()
        assert configuration.number == number
        assert SPACE.check(configuration.params) == []
        trial = study.tell(configuration, loss=loss, note=7)
        assert (trial.number, trial.status, trial.values) == (number, "complete", {"loss": loss, "note": 7.0})
    assert study.best.number == 1
    assert study.best.params == study.trials[1].params
    assert [trial.number for trial in study.front] == [1]
    assert [trial.number for trial in study.trials] == [0, 1, 2]
    assert study.state.results == 3


def test_a_batch(study):
    batch = study.ask(8)
    assert [configuration.number for configuration in batch] == list(range(8))
    assert len({configuration.key for configuration in batch}) == 8
    assert study.ask(1)[0].number == 8
    for configuration in reversed(batch):
        study.tell(configuration, loss=configuration["x"])
    assert study.best.params["x"] == min(configuration["x"] for configuration in batch)
    assert study.state.counts["proposed"] == 1


def test_a_maximised_objective_and_ties():
    study = tw.Study(SPACE, objectives="max accuracy", searcher=tw.RandomSearcher())
    for accuracy in (0.5, 0.9, 0.9):
        study.tell(study.ask(), accuracy=accuracy)
    assert study.best.number == 1
    assert study.best.values["accuracy"] == 0.9


def test_numbers_of_any_library(study):
    for value in (1, np.float32(0.5), np.int64(2), np.array(3.0)):
        trial = study.tell(study.ask(), loss=value)
        assert type(trial.values["loss"]) is float


def test_telling_a_mapping_makes_a_trial(study):
    params = {"x": 0.25, "k": 7, "kind": ("c", 1)}
    trial = study.tell(params, loss=1.0)
    assert (trial.number, trial.params, trial.origin) == (0, params, {"searcher": "told"})
    assert study.ask().key != trial.key
    again = study.tell(params, loss=2.0)
    assert (again.number, again.key) == (2, trial.key)


def test_repeat_records_a_second_result(study):
    configuration = study.ask()
    first = study.tell(configuration, loss=0.3)
    second = study.tell(configuration, loss=0.4, repeat=True)
    assert (second.number, second.params, second.values) == (1, first.params, {"loss": 0.4})
    assert first.values == {"loss": 0.3}


def test_failures_are_no_results(study):
    trial = study.tell(study.ask(), failed="diverged")
    assert (trial.status, trial.failure.kind, trial.failure.message) == ("failed", "exception", "diverged")
    with pytest.raises(StudyError, match="none of 1 trials has a result yet"):
        _ = study.best
    assert study.state.results == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_objective_that_is_not_finite_fails_the_trial(study, value):
    trial = study.tell(study.ask(), loss=value)
    assert (trial.status, trial.failure.kind) == ("failed", "bad_objective")
    assert trial.failure.message == f"objective 'loss' is {value} in tell"
    assert not study.front


def test_a_configuration_of_another_study_is_not_mistaken_for_ours(study):
    ours = study.ask()
    theirs = tw.Study(SPACE, objectives="min loss", seed=99, searcher=tw.RandomSearcher()).ask()
    assert theirs.number == ours.number
    trial = study.tell(theirs, loss=0.1)
    assert trial.number != ours.number
    assert trial.params == theirs.params
    assert study.trials[ours.number].status == "proposed"


def test_several_objectives_and_their_front():
    study = tw.Study(SPACE, objectives=["max accuracy >= 0.8", "min seconds"], searcher=tw.RandomSearcher())
    points = [(0.9, 3.0), (0.85, 2.0), (0.85, 2.5), (0.5, 1.0), (0.85, 2.0), (0.95, 9.0)]
    for accuracy, seconds in points[3:4]:
        study.tell(study.ask(), accuracy=accuracy, seconds=seconds)
    assert [trial.number for trial in study.front] == [0]  # outside the bound, as long as there is no other
    for accuracy, seconds in points[:3] + points[4:]:
        study.tell(study.ask(), accuracy=accuracy, seconds=seconds)
    assert [trial.values["seconds"] for trial in study.front] == [3.0, 2.0, 2.0, 9.0]
    with pytest.raises(StudyError, match=r"2 objectives \(max accuracy >= 0.8, min seconds\); use study.front"):
        _ = study.best


def test_the_front_is_what_its_definition_says():
    generator = np.random.default_rng(0)
    points = generator.integers(0, 6, (60, 3)).astype(float)
    study = tw.Study(SPACE, objectives=["min a", "max b", "min c"], searcher=tw.RandomSearcher())
    for a, b, c in points:
        study.tell(study.ask(), a=a, b=b, c=c)
    losses = points * [1, -1, 1]
    expected = [
        i for i, row in enumerate(losses) if not any((other <= row).all() and (other < row).any() for other in losses)
    ]
    assert [trial.number for trial in study.front] == expected


def test_memory_and_directory_propose_alike(tmp_path):
    """Proposals depend on seed, number and results only; another seed gives others."""
    studies = [
        tw.Study(SPACE, objectives="min loss", seed=seed, directory=directory, searcher=tw.QuasiRandomSearcher())
        for seed, directory in ((1, None), (1, tmp_path / "one"), (2, None))
    ]
    keys = [[study.ask().key for _ in range(10)] for study in studies]
    assert keys[0] == keys[1]
    assert not set(keys[0]) & set(keys[2])


def test_a_finite_space_is_used_up_without_a_gap(tmp_path):
    space = tw.Space(k=tw.Int(1, 5))
    study = tw.Study(space, objectives="min loss", directory=tmp_path / "study", searcher=tw.RandomSearcher())
    asked = study.ask(3)
    with pytest.raises(SpaceExhausted, match="tried"):
        study.ask(3)
    asked += study.ask(2)
    assert sorted(configuration["k"] for configuration in asked) == [1, 2, 3, 4, 5]
    assert [configuration.number for configuration in asked] == [0, 1, 2, 3, 4]  # the refused batch left no hole
    with pytest.raises(SpaceExhausted, match="tried"):
        study.ask()


# Across the ends of processes.


def reopened(study):
    return tw.Study.open(study.directory, searcher=tw.RandomSearcher())


@pytest.fixture
def kept(tmp_path):
    return tw.Study(SPACE, objectives="min loss", directory=tmp_path / "study", seed=3, searcher=tw.RandomSearcher())


def test_reopening_gives_the_same_state(kept):
    for loss in (0.3, 1e-300, 12345.678901):
        kept.tell(kept.ask(), loss=loss)
    kept.tell(kept.ask(), failed="no")
    kept.ask()
    assert reopened(kept).state == kept.state
    kept.close()
    again = reopened(kept)
    assert again.resumed
    assert [trial.values for trial in again.trials[:3]] == [{"loss": 0.3}, {"loss": 1e-300}, {"loss": 12345.678901}]
    assert (again.seed, again.space, again.objectives) == (kept.seed, kept.space, kept.objectives)


def test_the_constructor_resumes_a_study_of_the_same_settings(kept):
    kept.tell(kept.ask(), loss=0.3)
    kept.close()
    again = tw.Study(SPACE, objectives="min loss", directory=kept.directory, seed=3)
    assert again.resumed
    assert not kept.resumed
    assert again.best.values == {"loss": 0.3}


def test_orphaned_proposals_are_handed_out_again_once(kept):
    """A process that ends without telling leaves proposals, which come first and not twice."""
    told, *orphans = kept.ask(3)
    kept.tell(told, loss=0.3)
    kept.close()
    again = reopened(kept)
    asked = [again.ask() for _ in range(3)]
    assert [configuration.number for configuration in asked] == [1, 2, 3]
    assert [configuration.key for configuration in asked[:2]] == [configuration.key for configuration in orphans]
    assert again.tell(asked[0], loss=0.1).number == 1
    again.close()
    third = reopened(kept)
    assert [configuration.number for configuration in third.ask(3)] == [2, 3, 4]


def test_orphans_go_to_one_of_several_processes(kept):
    kept.ask(4)
    kept.close()
    one, other = reopened(kept), reopened(kept)
    numbers = [study.ask().number for study in (one, other, one, other)]
    assert sorted(numbers) == [0, 1, 2, 3]


def test_orphans_are_found_though_others_told_what_was_asked_here(kept):
    other = reopened(kept)
    other.ask(2)
    for configuration in kept.ask(2):
        other.refresh()
        other.tell(configuration, loss=0.5)
    other.close()
    kept.refresh()
    assert [configuration.number for configuration in kept.ask(3)] == [0, 1, 4]


def test_proposals_of_the_living_are_left_to_them(kept):
    kept.ask(2)
    assert reopened(kept).ask().number == 2


def test_many_at_once_never_get_the_same_number(kept):
    studies = [kept, *(reopened(kept) for _ in range(3))]
    asked = [studies[i % 4].ask() for i in range(20)]
    assert sorted(configuration.number for configuration in asked) == list(range(20))
    for i, configuration in enumerate(asked):
        studies[i % 4].tell(configuration, loss=float(i))
    for study in studies:
        study.refresh()
        assert study.state.counts["complete"] == 20
        assert study.best.number == asked[0].number
        assert study.state == studies[0].state


def test_a_closed_study_can_be_used_again(kept):
    first = kept.ask()
    kept.close()
    kept.close()
    kept.tell(kept.ask(), loss=0.5)
    kept.tell(first, loss=0.4)
    assert reopened(kept).best.number == 0


def test_a_failed_write_in_tell_can_be_repeated(kept, monkeypatch):
    """The disk was full and is not any more: the same call again goes through, once."""
    import os

    from trainwright.errors import LedgerError

    configuration = kept.ask()

    def write(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(LedgerError, match="no space left on device"):
            kept.tell(configuration, loss=0.5)
    assert kept.ask().number == 1  # the first is still with its caller
    kept.tell(configuration, loss=0.5)
    assert kept.state.counts["complete"] == 1
    again = reopened(kept)
    assert again.state.counts["complete"] == 1
    assert again.state == kept.state
    assert len(again.state.writers) == 2  # the one before the failure and the one after it, both named


# Mistakes.


@pytest.mark.parametrize("count", [0, -1, 2.5, "3", True])
def test_asking_for_no_number(study, count):
    with pytest.raises(StudyError) as caught:
        study.ask(count)
    assert str(caught.value) == f"ask: count: got {count!r}; allowed: a whole number >= 1, or None"


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ({"acc": 0.3}, "trial 0: objective 'loss' is missing; got: acc"),
        ({}, "trial 0: objective 'loss' is missing; got: nothing"),
        ({"loss": "abc"}, "trial 0: loss must be a number, got 'abc' (str)"),
        ({"loss": None}, "trial 0: loss must be a number, got None (NoneType)"),
        ({"loss": 1.0, "note": [1]}, "trial 0: note must be a number, got [1] (list)"),
    ],
)
def test_telling_no_result(study, metrics, sentence):
    configuration = study.ask()
    with pytest.raises(ObjectiveError) as caught:
        study.tell(configuration, **metrics)
    assert str(caught.value) == sentence
    assert study.trials[0].status == "proposed"
    study.tell(configuration, loss=1.0)


def test_telling_twice(study):
    configuration = study.ask()
    study.tell(configuration, loss=0.3)
    with pytest.raises(TrialError) as caught:
        study.tell(configuration, loss=0.4)
    assert str(caught.value) == (
        "trial 0 already has loss=0.3; pass repeat=True to record loss=0.4 as a new trial of the same configuration"
    )
    failed = study.ask()
    study.tell(failed, failed="diverged")
    with pytest.raises(TrialError, match=r"trial 1 has already ended \(failed\); pass repeat=True to record this"):
        study.tell(failed, failed="again")
    assert len(study.trials) == 2


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"x": 3.0, "k": 1, "kind": "a"}, ["x=3.0", "[0.0, 1.0]"]),
        ({"x": 0.5, "k": 1, "kind": "z"}, ["kind", "'z'", "'a'"]),
        ({"x": 0.5, "kind": "a"}, ["k"]),
        ({"x": 0.5, "k": 1, "kind": "a", "extra": 1}, ["extra"]),
    ],
)
def test_telling_a_configuration_outside_the_space(study, params, words):
    with pytest.raises(TrialError) as caught:
        study.tell(params, loss=0.3)
    for word in words:
        assert word in str(caught.value)
    assert study.trials == []


@pytest.mark.parametrize("configuration", [7, None, "x=1", [1, 2]])
def test_telling_something_that_is_no_configuration(study, configuration):
    with pytest.raises(TrialError, match=r"tell: got .*; allowed: a configuration from ask, or a mapping of values"):
        study.tell(configuration, loss=0.3)


def test_telling_a_failure_with_metrics_or_without_words(study):
    configuration = study.ask()
    with pytest.raises(TrialError, match=r"got failed='no' beside loss; allowed: a text alone, or metrics"):
        study.tell(configuration, failed="no", loss=0.3)
    with pytest.raises(TrialError, match=r"got failed=True; allowed: a text alone, or metrics"):
        study.tell(configuration, failed=True)

"""Known configurations are put in front of what a searcher proposes, for whoever comes first."""

import pytest

import trainwright as tw
from trainwright.errors import TrialError

SPACE = tw.Space(x=tw.Float(0.0, 1.0), kind=tw.Choice("a", "b"), m=tw.Float(0.0, 1.0, when=tw.equals("kind", "b")))
KNOWN = [{"x": 0.5, "kind": "a"}, {"x": 0.25, "kind": "b", "m": 0.75}]
HERE = tw.Local(workers=0)


def make(directory=None):
    return tw.Study(SPACE, objectives="min loss", directory=directory, seed=1)


def train(trial):
    return trial.params["x"]


@pytest.mark.parametrize("kept", [False, True])
def test_they_are_asked_first_and_once(tmp_path, kept):
    with make(tmp_path / "study" if kept else None) as study:
        study.tell(study.ask(), loss=1.0)
        entered = [study.enqueue(params) for params in KNOWN]
        assert [trial.number for trial in entered] == [1, 2]
        asked = study.ask(3)
        assert [configuration.params for configuration in asked[:2]] == KNOWN
        assert [configuration.number for configuration in asked] == [1, 2, 3]
        assert [configuration.origin["searcher"] for configuration in asked] == ["enqueued", "enqueued", "gp"]
        for configuration in asked:
            study.tell(configuration, loss=configuration["x"])
        assert study.trials[2].values == {"loss": 0.25}


def test_a_script_that_runs_again_enters_nothing_again():
    study = make()
    first = study.enqueue(KNOWN[0])
    assert study.enqueue(KNOWN[0]) is first
    study.tell(study.ask(), loss=0.1)
    assert study.enqueue(KNOWN[0]).values == {"loss": 0.1}
    assert len(study.trials) == 1


def test_what_is_no_configuration_is_refused():
    with pytest.raises(TrialError, match=r"x=2.0 is outside \[0.0, 1.0\]; 'm' is missing"):
        make().enqueue({"x": 2.0, "kind": "b"})


def test_the_searcher_does_not_propose_them_again():
    space = tw.Space(k=tw.Int(1, 4))
    study = tw.Study(space, objectives="min loss", searcher=tw.RandomSearcher())
    study.enqueue({"k": 3})
    assert sorted(configuration["k"] for configuration in study.ask(4)) == [1, 2, 3, 4]


def test_any_process_may_take_them_but_one_only(tmp_path):
    """The process that enqueued is alive all the while."""
    with make(tmp_path / "study") as owner:
        for params in KNOWN:
            owner.enqueue(params)
        with tw.Study.open(tmp_path / "study") as other:
            mine, theirs = other.ask(), owner.ask()
            assert [mine.params, theirs.params] == KNOWN
            other.refresh()
            assert other.ask().origin["searcher"] == "gp"
            owner.refresh()
            assert owner.ask().origin["searcher"] == "gp"
            other.tell(mine, loss=0.5)
            owner.tell(theirs, loss=0.25)
        owner.refresh()
        assert [trial.values.get("loss") for trial in owner.trials[:2]] == [0.5, 0.25]


def test_one_that_was_asked_for_by_a_process_that_ended_comes_again(tmp_path):
    with make(tmp_path / "study") as study:
        study.enqueue(KNOWN[0])
        study.ask()
    with tw.Study.open(tmp_path / "study") as study:
        assert study.ask().params == KNOWN[0]


def test_a_run_begins_with_them_within_its_budget(tmp_path):
    with make(tmp_path / "study") as study:
        for params in KNOWN:
            study.enqueue(params)
        with tw.Study.open(tmp_path / "study") as other:
            other.run(train, trials=1, engine=HERE, progress=False)
            assert [trial.status for trial in other.trials] == ["complete", "proposed"]
        study.refresh()
        study.run(train, trials=4, engine=HERE, progress=False)
        assert [trial.status for trial in study.trials] == ["complete"] * 4
        assert [trial.params for trial in study.trials[:2]] == KNOWN


def test_what_is_enqueued_while_a_run_is_under_way_comes_next(tmp_path):
    with make(tmp_path / "study") as study, tw.Study.open(tmp_path / "study") as other:
        seen = []

        def enqueueing(trial):
            seen.append(trial.params)
            if len(seen) == 2:
                other.refresh()
                other.enqueue(KNOWN[1])
            return trial.params["x"]

        study.run(enqueueing, trials=20, engine=HERE, progress=False)
        assert KNOWN[1] in seen[2:]
        assert len(seen) == 20

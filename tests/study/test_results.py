"""Fronts, ranks and hypervolume of studies: by hand, in any order of ends, fixed for good, failures left out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainwright as tw
from trainwright.errors import StudyError
from trainwright.ledger import DirectoryLedger, state_of

SPACE = tw.Space(x=tw.Float(0.0, 1.0))  # so three results fix the reference point
GOALS = ["min cost", "max accuracy"]


def told(values, **settings):
    study = tw.Study(SPACE, GOALS, searcher=tw.RandomSearcher(), **settings)
    for cost, accuracy in values:
        study.tell(study.ask(), cost=cost, accuracy=accuracy)
    return study


def test_by_hand():
    """Worst cost 4 of range 2 and worst accuracy 0 of range 1: the reference is (4.2, -0.1)."""
    study = told([(2.0, 0.0), (4.0, 1.0)])
    with pytest.raises(StudyError, match="fixed after 3 results, so far there are 2"):
        _ = study.hypervolume
    study.tell(study.ask(), cost=3.0, accuracy=0.5)
    assert study.state.reference == pytest.approx({"cost": 4.2, "accuracy": -0.1})
    assert study.hypervolume == pytest.approx(2.2 * 0.1 + 1.2 * 0.5 + 0.2 * 0.5)
    study.tell(study.ask(), failed="no")
    study.tell(study.ask(), cost=9.0, accuracy=9.0)  # beyond the reference: on the front, no volume
    numbers, volumes = zip(*study.hypervolume_over_time(), strict=True)
    assert numbers == (0, 1, 2, 4)
    assert volumes == pytest.approx((2.2 * 0.1, 2.0 * 0.1 + 0.2 * 1.1, 0.92, 0.92))
    assert study.ranks == {0: 0, 1: 0, 2: 0, 4: 0}
    study.tell(study.ask(), cost=3.0, accuracy=0.4)
    assert study.ranks[5] == 1


def test_one_objective_has_a_best():
    study = tw.Study(SPACE, "min loss", searcher=tw.RandomSearcher())
    with pytest.raises(StudyError, match=r"hypervolume: the study has one objective \(min loss\); use study.best"):
        _ = study.hypervolume
    with pytest.raises(StudyError, match="recommend: by must be 'estimate' or 'observed', got 'luck'"):
        study.recommend(by="luck")


def test_several_objectives_have_no_best():
    study = told([(1.0, 1.0)] * 3)
    for look in (lambda: study.best, study.recommend):
        with pytest.raises(StudyError, match="the study has 2 objectives"):
            look()


def test_infeasible_results_count_nothing():
    study = told([(2.0, 0.0), (4.0, 1.0), (3.0, 0.5)])
    limited = tw.Study(SPACE, ["min cost <= 3", "max accuracy"], searcher=tw.RandomSearcher())
    for trial in study.trials:
        limited.tell(limited.ask(), **trial.values)
    assert limited.state.reference == study.state.reference
    assert limited.hypervolume == pytest.approx(2.2 * 0.1 + 1.2 * 0.5)
    assert [trial.number for trial in limited.front] == [0, 2]
    assert limited.ranks == {0: 0, 1: 1, 2: 0}


values = st.lists(st.tuples(*[st.floats(-5, 5)] * 2), min_size=3, max_size=12)


@settings(max_examples=40)
@given(values)
def test_it_never_falls(points):
    """Whatever comes, after each result the volume is that of the moment, and at least that before."""
    study = told([])
    seen = []
    for cost, accuracy in points:
        study.tell(study.ask(), cost=cost, accuracy=accuracy)
        if len(study.trials) >= 3:
            seen.append(study.hypervolume)
    assert (np.diff(seen) >= -1e-12).all()
    assert [volume for _, volume in study.hypervolume_over_time()][2:] == pytest.approx(seen)


def test_the_reference_is_noted_once(tmp_path):
    """Two writers of one study agree on it, a late result does not move it, and who only looks writes nothing."""
    where = tmp_path / "study"
    study = told([(2.0, 0.0), (4.0, 1.0)], directory=where)
    late = study.ask()
    with tw.Study.open(where) as second:
        second.tell({"x": 0.5}, cost=3.0, accuracy=0.5)
        fixed = second.state.reference
    study.refresh()
    study.tell(late, cost=100.0, accuracy=-100.0)
    assert study.state.reference == fixed == pytest.approx({"cost": 4.2, "accuracy": -0.1})
    study.close()
    state = state_of(DirectoryLedger(where / "ledger"))
    assert sum(name == "reference" for _, name, _ in state.notes.values()) == 1
    with tw.Study.open(where) as opened:
        assert opened.hypervolume == pytest.approx(0.92)
        assert not opened.state.writers.keys() - state.writers.keys()


def test_above_six_objectives_there_is_no_volume():
    names = [f"loss{i}" for i in range(7)]
    study = tw.Study(SPACE, [f"min {name}" for name in names], searcher=tw.RandomSearcher())
    for value in (1.0, 0.0, 1.0):
        study.tell(study.ask(), **dict.fromkeys(names, value))
    with pytest.raises(StudyError, match="the study has 7 objectives; allowed: up to 6"):
        _ = study.hypervolume
    assert len(study.front) == 1

"""Constraints and bounds: what is feasible, what is best then, what the searcher is told, and the sentences."""

import math

import numpy as np
import pytest

import trainwright as tw
from trainwright.errors import ObjectiveError, StudyError
from trainwright.ledger import Constraint, Objective
from trainwright.ledger.objectives import parse_constraints
from trainwright.search import SearchView

SPACE = tw.Space(x=tw.Float(0.0, 1.0), y=tw.Float(0.0, 1.0))
LIMITS = ["bytes <= 0.5", "accuracy > 0.25"]


@pytest.fixture(params=["memory", "directory"])
def study(request, tmp_path):
    directory = None if request.param == "memory" else tmp_path / "study"
    searcher = tw.RandomSearcher()
    with tw.Study(SPACE, "min loss", constraints=LIMITS, directory=directory, searcher=searcher) as study:
        yield study


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("peak_bytes <= 8e9", Constraint("peak_bytes", "<=", 8e9)),
        (" latency_ms<10 ", Constraint("latency_ms", "<", 10.0)),
        ("accuracy >= 0.123456789", Constraint("accuracy", ">=", 0.123456789)),
        ("accuracy > -1", Constraint("accuracy", ">", -1.0)),
    ],
)
def test_parse(text, expected):
    assert Constraint.parse(text) == expected
    assert Constraint.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["bytes"], "constraint 'bytes' is not of the form 'METRIC <= BOUND' or 'METRIC >= BOUND'"),
        (["min bytes <= 3"], "constraint 'min bytes <= 3' is not of the form"),
        (["bytes == 3"], "constraint 'bytes == 3' is not of the form"),
        ([7], "constraint 7 is not of the form"),
        (7, "constraints: got 7; allowed: a text such as 'peak_bytes <= 8e9', or a list of them"),
        ("bytes <= few", "constraint 'bytes <= few': the bound 'few' is not a number"),
        ("bytes <= inf", "constraint 'bytes <= inf': the bound must be finite"),
        (
            "loss <= 3",
            "constraint 'loss <= 3': 'loss' is an objective; write its bound there, 'min loss <= BOUND'",
        ),
    ],
)
def test_texts_that_mean_nothing(texts, sentence):
    with pytest.raises(ObjectiveError) as caught:
        parse_constraints(texts, [Objective("loss", "min")])
    assert sentence in str(caught.value)


def test_what_keeps_a_constraint():
    """A strict sign leaves the bound itself out, and no other number."""
    for text, kept, broken in (
        ("x <= 3", [3.0, -9.0], [np.nextafter(3.0, 4.0), math.nan, -math.inf]),
        ("x < 3", [np.nextafter(3.0, 0.0)], [3.0]),
        ("x >= 3", [3.0], [np.nextafter(3.0, 0.0), math.inf]),
        ("x > 3", [np.nextafter(3.0, 4.0)], [3.0]),
    ):
        constraint = Constraint.parse(text)
        assert all(constraint.loss(value) <= constraint.limit for value in kept)
        assert not any(constraint.loss(value) <= constraint.limit for value in broken)


def test_the_best_is_feasible(study):
    """A trial that breaks a constraint has a result and counts, but is not the best."""
    for values in (
        {"loss": 1.0, "bytes": 0.5, "accuracy": 0.3},
        {"loss": 0.1, "bytes": 0.6, "accuracy": 0.3},
        {"loss": 0.2, "bytes": 0.1, "accuracy": 0.25},
        {"loss": 0.9, "bytes": 0.1, "accuracy": 0.9},
    ):
        study.tell(study.ask(), **values)
    assert study.state.results == 4
    assert study.best.number == study.recommend(by="observed").number == 3
    assert [trial.number for trial in study.feasible] == [0, 3]
    assert [trial.number for trial in study.front] == [3]
    assert study.ranks == {0: 1, 1: 2, 2: 3, 3: 0}


def test_nothing_is_feasible(study):
    """It is said which constraints, and which trial comes nearest; the front is that of all then."""
    study.tell(study.ask(), loss=1.0, bytes=0.9, accuracy=0.3)
    study.tell(study.ask(), loss=2.0, bytes=0.6, accuracy=0.9)
    with pytest.raises(StudyError) as caught:
        _ = study.best
    assert str(caught.value) == (
        "best: none of 2 results keeps bytes <= 0.5, accuracy > 0.25; the nearest is trial 1 with bytes=0.6, "
        "accuracy=0.9"
    )
    assert study.feasible == []
    assert [trial.number for trial in study.front] == [0]


def test_a_missing_metric(study):
    asked = study.ask()
    with pytest.raises(ObjectiveError, match="trial 0: constraint 'bytes' is missing; got: accuracy, loss"):
        study.tell(asked, loss=1.0, accuracy=0.5)
    assert study.tell(asked, loss=1.0, bytes=math.nan, accuracy=0.5).failure.message == (
        "constraint 'bytes' is nan in tell"
    )


def test_a_report_without_the_metric():
    study = tw.Study(SPACE, "min loss", constraints="bytes <= 1", searcher=tw.RandomSearcher())

    def train(trial):
        trial.report(loss=1.0, **({"bytes": 2.0} if trial.number else {}))

    study.run(train, trials=1, engine=tw.Local(workers=0), progress=False)
    assert study.trials[0].failure.message == "constraint 'bytes' is missing at epoch 1; reported: loss"
    assert study.trials[1].has_result
    assert study.feasible == []


def test_reopened(tmp_path):
    """Constraints are part of the study: kept to the last bit, and compared."""
    where = tmp_path / "study"
    limits = ["bytes <= 0.123456789012", "accuracy > 0.25"]
    tw.Study(SPACE, "min loss", constraints=limits, directory=where).close()
    with tw.Study(SPACE, "min loss", constraints=limits, directory=where) as again:
        assert list(map(str, again.constraints)) == limits
    with tw.Study.open(where) as again:
        assert list(map(str, again.constraints)) == limits
    with pytest.raises(StudyError, match=r"was made with constraints bytes <= .*, accuracy > 0.25, now none; use a"):
        tw.Study(SPACE, "min loss", directory=where)


class Watching:
    """A searcher that keeps the views that it is shown."""

    def __init__(self):
        self.views = []

    def ask(self, view: SearchView, numbers):
        self.views.append(view)
        return tw.RandomSearcher().ask(view, numbers)


def test_the_searcher_sees_bounds_and_outcomes():
    """In ask and tell, and in a run: losses of objectives, then of constraints, and the greatest wanted of each."""

    def train(trial):
        trial.report(accuracy=0.5, cost=2.0, bytes=3.0)

    searcher = Watching()
    goals, limits = ["max accuracy >= 0.85", "min cost"], ["bytes <= 7", "speed > 1"]
    study = tw.Study(SPACE, goals, constraints=limits, searcher=searcher)
    study.tell(study.ask(), accuracy=0.9, cost=1.0, bytes=5.0, speed=2.0)
    study.ask()
    other = tw.Study(SPACE, goals, constraints="bytes <= 7", searcher=searcher)
    other.run(train, trials=2, engine=tw.Local(workers=0), progress=False)
    first, last = searcher.views[0], searcher.views[-1]
    assert first.bounds.tolist() == [-0.85, math.inf, 7.0, np.nextafter(-1.0, -2.0)]
    assert first.outcomes.tolist() == [[-0.9, 1.0, 5.0, -2.0]]
    assert first.losses.tolist() == [[-0.9, 1.0]]
    assert last.bounds.tolist() == [-0.85, math.inf, 7.0]
    assert last.outcomes.tolist() == [[-0.5, 2.0, 3.0]] * last.count


@pytest.mark.parametrize("searcher", [tw.ForestSearcher(), tw.GaussianProcessSearcher(), tw.EvolutionSearcher()])
def test_constraints_steer_the_search(searcher):
    """The least loss is where the constraint forbids it: proposals leave that corner for the rest."""
    shares = {}
    for constraints in ((), ("bytes <= 0.5",)):
        study = tw.Study(SPACE, "min loss", constraints=constraints, searcher=searcher)
        for _ in range(36):
            asked = study.ask()
            study.tell(asked, loss=(asked["x"] - 0.1) ** 2 + asked["y"] ** 2, bytes=1.0 - asked["x"])
        shares[constraints] = np.mean([trial.values["bytes"] <= 0.5 for trial in study.trials[18:]])
    assert shares[()] < 0.4
    assert shares[("bytes <= 0.5",)] > 0.6


def test_bounds_of_objectives_steer_the_search():
    """With a bound on the accuracy, a study looks for cheap trials among the accurate ones, in runs too."""

    def train(trial):
        trial.report(accuracy=trial.params["x"], cost=trial.params["x"] + trial.params["y"])

    shares = {}
    for goal in ("max accuracy", "max accuracy >= 0.8"):
        study = tw.Study(SPACE, [goal, "min cost"])
        study.run(train, trials=60, engine=tw.Local(workers=0), progress=False)
        shares[goal] = np.mean([trial.values["accuracy"] >= 0.8 for trial in study.trials[30:]])
    assert shares["max accuracy"] + 0.2 < shares["max accuracy >= 0.8"]

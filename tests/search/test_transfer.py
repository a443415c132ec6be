"""Transfer: what an earlier study found helps another one, whose space may differ, and is kept as plain data."""

import json
import re

import numpy as np
import pytest

import trainwright as tw
from trainwright.errors import SearchError, StudyError
from trainwright.ledger import facts
from trainwright.search import SearchView
from trainwright.search.bayes.mixture import Mixture
from trainwright.search.transfer import Experience, Recalled
from trainwright.space import Choice, Float, Int, Space, equals, require
from trainwright.testing.searcher import play

WAYS = ("surrogate", "generative", "priors")
OLD = Space(
    rate=Float(1e-5, 1.0, log=True), width=Int(1, 64), optimizer=Choice("sgd", "adam", "lion"),
    momentum=Float(0.0, 1.0, when=equals("optimizer", "sgd")),
)  # fmt: skip
NEW = Space(
    rate=Float(1e-6, 0.1, log=True), width=Int(1, 64), optimizer=Choice("adam", "sgd"), decay=Float(0.0, 1.0),
    momentum=Float(0.0, 1.0, when=equals("optimizer", "sgd")),
)  # fmt: skip


def loss_of(configuration, number=0):
    values = configuration.params if hasattr(configuration, "params") else configuration
    loss = (np.log10(values["rate"]) + 3.0) ** 2 + abs(values["width"] - 20) / 20 + values.get("decay", 0.0) ** 2
    return [loss + (values["optimizer"] != "sgd") + abs(values.get("momentum", 0.0) - 0.9)]


@pytest.fixture(scope="module")
def old():
    study = tw.Study(OLD, objectives="min loss", seed=7)
    for _ in range(40):
        configuration = study.ask()
        study.tell(configuration, loss=loss_of(configuration)[0])
    return study


@pytest.mark.parametrize("way", WAYS)
def test_it_helps_in_another_space(old, way):
    """The mean loss over the first dozen trials falls; the parameter that is new was drawn, or in the middle."""
    means = []
    for searcher in (tw.ForestSearcher(), tw.ForestSearcher(warm_start=old, transfer=way)):
        losses = []
        for seed in range(3):
            view = SearchView(NEW, seed)
            play(searcher, view, 12, loss_of)
            losses.append(np.minimum.accumulate(view.losses[:, 0]).mean())
        means.append(np.mean(losses))
    assert means[1] < 0.5 * means[0]


@pytest.mark.parametrize("way", WAYS)
def test_the_first_trial_is_the_best_of_the_earlier_study(old, way):
    [first] = tw.ForestSearcher(warm_start=old, transfer=way).ask(SearchView(NEW, 0), [0])
    best = old.best.params
    assert first.origin == {"searcher": "forest", "design": "recalled"}
    assert {name: first.params[name] for name in ("width", "optimizer", "momentum")} == {
        name: best[name] for name in ("width", "optimizer", "momentum")
    }
    assert first["rate"] == pytest.approx(best["rate"])
    assert first["decay"] == 0.5


@pytest.mark.parametrize("way", WAYS)
def test_proposals_depend_on_settings_view_and_numbers_only(old, way):
    """After a resume, from what JSON kept, and whatever the earlier study has come to since."""
    study = tw.Study(OLD, objectives="min loss", seed=7)
    for trial in old.trials:
        study.tell(trial.params, loss=trial.values["loss"])
    searcher = tw.ForestSearcher(warm_start=study, transfer=way)
    view = SearchView(NEW, 3)
    whole = play(searcher, view, 20, loss_of)
    study.tell({"rate": 1e-3, "width": 20, "optimizer": "sgd", "momentum": 0.9}, loss=-1.0)
    kept = json.loads(json.dumps(searcher.warm_start.to_json()))
    again = tw.ForestSearcher(warm_start=kept, transfer=way)
    assert again == searcher
    for cut in (1, 7, 19):
        resumed = SearchView(NEW, 3)
        for number, configuration in enumerate(whole[:cut]):
            resumed.propose(number, configuration)
            resumed.result(number, loss_of(configuration), epoch=None, complete=True)
        assert play(again, resumed, 20 - cut, loss_of, start=cut) == whole[cut:]
    assert len({c.key for c in again.ask(view, range(20, 60))} | {c.key for c in whole}) == 60
    view.memo.clear()
    assert searcher.ask(view, [20]) == again.ask(view, [20])


@pytest.mark.parametrize("way", WAYS)
def test_failures_requirements_and_objectives_are_survived(old, way):
    space = Space(require("width * decay <= 10"), **NEW.parameters)
    view = SearchView(space, 1)
    done = play(tw.ForestSearcher(warm_start=old, transfer=way), view, 15, lambda c, n: None)
    assert all(space.check(c.params) == [] for c in done)
    if way != "surrogate":
        view = SearchView(space, 1, objectives=2, bounds=[np.inf, 1.0])
        play(tw.ForestSearcher(warm_start=old, transfer=way), view, 15, lambda c, n: [*loss_of(c), c["decay"]])


def test_several_objectives_are_told_each_in_its_ranks():
    earlier = tw.Study(Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)), objectives=["min a", "max b"])
    generator = np.random.default_rng(0)
    for x, y in generator.random((60, 2)):
        earlier.tell({"x": x, "y": y}, a=x + y, b=x - y)
    for way in WAYS:
        view = SearchView(Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)), 0, objectives=2)
        searcher = tw.ForestSearcher(warm_start=earlier, transfer=way)
        done = play(searcher, view, 12, lambda c, n: [c["x"] + c["y"], c["y"] - c["x"]])
        assert np.mean([c["y"] for c in done]) < 0.25  # bad for both


def test_ranks_are_those_of_the_study_and_who_got_less_far_was_worse(tmp_path):
    study = tw.Study(Space(x=Int(1, 9)), objectives="max score", directory=tmp_path / "old")
    for x, score in ((1, 0.1), (2, 0.7), (3, 0.7)):
        study.tell({"x": x}, score=score)
    study.tell({"x": 4}, failed="diverged")
    trial = study.enqueue({"x": 5})
    study._log.append(  # only a rule under an engine stops a trial
        facts.reported(trial.number, 1, epoch=1, step=None, metrics={"score": 9.0}, wall_seconds=0.0),
        facts.finished(trial.number, 1, reason="stopped", values={"score": 9.0}, wall_seconds=0.0),
    )
    study.enqueue({"x": 6})
    for given in (study, tmp_path / "old", str(tmp_path / "old")):
        experience = Experience.of(given, "surrogate")
        assert [row["x"] for row in experience.rows] == [1, 2, 3, 4, 5]
        assert np.array(experience.ranks)[:, 0] == pytest.approx([0.5, 0.2, 0.2, 0.9, 0.7])
        assert (experience.complete, experience.source) == (3, str(tmp_path / "old"))


def test_long_studies_are_thinned():
    study = tw.Study(Space(x=Float(0.0, 1.0)), objectives="min loss")
    for x in np.linspace(0.0, 1.0, 700):
        study.tell({"x": x}, loss=x)
    told = Experience.of(study, "surrogate")
    assert len(told.rows) == 500
    assert [row["x"] for row in told.rows[:100]] == list(np.linspace(0.0, 1.0, 700)[:100])
    assert told.rows[-1]["x"] == 1.0
    assert [row["x"] for row in Experience.of(study, "generative").rows] == list(np.linspace(0.0, 1.0, 700)[:70])


def test_values_outside_and_parameters_unknown():
    """A row with a value outside says nothing here; a number need not lie on the new grid."""
    experience = Experience(
        source="runs/old", complete=4,
        rows=({"x": 0.26, "n": 3}, {"x": 5.0, "n": 1}, {"x": 0.5, "n": 2}, {"x": 0.9, "n": 2, "k": "new"}),
        ranks=((0.1,), (0.3,), (0.6,), (0.9,)),
    )  # fmt: skip
    space = Space(x=Float(0.0, 1.0, step=0.25), n=Choice(1, 2, 3), y=Float(0.0, 1.0, prior=tw.Normal(0.8, 0.01)))
    recalled = Recalled(experience, "surrogate", space, 0, 1)
    values = space.decode(recalled.rows)
    assert [(row["x"], row["n"]) for row in values] == [(0.25, 3), (0.5, 2), (1.0, 2)]
    assert all(0.7 < row["y"] < 0.9 for row in values)
    assert recalled.ranks[:, 0].tolist() == [0.1, 0.6, 0.9]
    assert space.decode(recalled.best)[0] == {"x": 0.25, "n": 3, "y": pytest.approx(0.8)}


def told(count, space=None, objectives="min loss"):
    study = tw.Study(space or Space(x=Float(0.0, 1.0)), objectives=objectives)
    for i in range(count):
        study.tell({"x": i / 10}, loss=float(i))
    return study


def test_what_cannot_be_learnt_from_is_refused(tmp_path):
    wrong = {
        "transfer='generative' needs at least 10 completed trials, the earlier study has 4; use transfer='priors'": (
            lambda: tw.ForestSearcher(warm_start=told(4), transfer="generative")
        ),
        "transfer='surrogate' needs at least a completed trial, the earlier study has 0; leave warm_start out": (
            lambda: tw.ForestSearcher(warm_start=told(0))
        ),
        "warm_start: got 7; allowed: a study, as of tw.Study.open('runs/old'), or its directory": (
            lambda: tw.ForestSearcher(warm_start=7)
        ),
        "ForestSearcher.transfer: got 'all'; allowed: 'surrogate', 'generative', 'priors'": (
            lambda: tw.ForestSearcher(transfer="all")
        ),
        "warm_start: the earlier study has x, this study y: they share nothing": (
            lambda: tw.ForestSearcher(warm_start=told(3)).ask(SearchView(Space(y=Float(0, 1)), 0), [0])
        ),
        "warm_start: no configuration of the earlier study lies within this study's space": (
            lambda: tw.ForestSearcher(warm_start=told(3)).ask(SearchView(Space(x=Float(5, 6)), 0), [0])
        ),
        "transfer='surrogate' needs as many objectives as the earlier study has, 1; this study has 2; use "
        "transfer='generative'": (
            lambda: tw.ForestSearcher(warm_start=told(3)).ask(SearchView(Space(x=Float(0, 1)), 0, objectives=2), [0])
        ),
    }  # fmt: skip
    for message, call in wrong.items():
        with pytest.raises(SearchError, match=re.escape(message)):
            call()
    with pytest.raises(StudyError):
        tw.ForestSearcher(warm_start=tmp_path / "nothing")


def test_a_mixture_finds_where_rows_lie():
    """Two clusters, each with its own code; what rows say nothing of follows the space's prior."""
    space = Space(x=Float(0.0, 1.0), kind=Choice("a", "b", "c"), y=Float(0.0, 1.0, prior=tw.Normal(0.5, 0.02)))
    generator = np.random.default_rng(0)
    rows = np.full((40, 3), np.nan)
    rows[:, 0] = np.repeat([0.2, 0.8], 20) + 0.02 * generator.standard_normal(40)
    rows[:, 1] = np.repeat([0.0, 2.0], 20)
    drawn = Mixture.fitted(space, rows).draw(generator, 4000)
    left = drawn[:, 0] < 0.5
    assert left.mean() == pytest.approx(0.5, abs=0.1)
    assert drawn[left, 0].mean() == pytest.approx(0.2, abs=0.02)
    assert drawn[~left, 0].mean() == pytest.approx(0.8, abs=0.02)
    assert (drawn[left, 1] == 0.0).mean() > 0.8
    assert (drawn[~left, 1] == 2.0).mean() > 0.8
    assert (drawn[:, 1] == 1.0).mean() > 0.005  # nothing is ruled out
    assert drawn[:, 2].std() == pytest.approx(0.02, rel=0.1)


def test_a_prior_lies_around_one_row():
    space = Space(x=Float(0.0, 1.0), kind=Choice("a", "b", "c"), y=Float(0.0, 1.0))
    drawn = Mixture.around_row(space, np.array([0.5, 1.0, np.nan])).draw(np.random.default_rng(0), 20_000)
    assert drawn[:, 0].mean() == pytest.approx(0.5, abs=0.01)
    assert drawn[:, 0].std() == pytest.approx(0.125, rel=0.05)
    assert [(drawn[:, 1] == code).mean() for code in range(3)] == pytest.approx([1 / 12, 10 / 12, 1 / 12], abs=0.01)
    assert drawn[:, 2].std() == pytest.approx(12**-0.5, rel=0.05)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_mixture_of_few_rows_is_a_law(rows):
    space = Space(x=Float(0.0, 1.0), kind=Choice("a", "b"), m=Float(0.0, 1.0, when=equals("kind", "b")))
    given = space.sample(np.random.default_rng(rows), rows)
    drawn = Mixture.fitted(space, given).draw(np.random.default_rng(0), 500)
    assert len(drawn) == 500
    assert np.array_equal(np.isnan(drawn[:, 2]), drawn[:, 1] == 0.0)
    assert len(np.unique(drawn[:, 0])) > 400

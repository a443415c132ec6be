"""Transfer: what an earlier study found helps another one, whose space may differ, and is kept as plain data."""

import json
import re

import numpy as np
import pytest

import trainwright as tw
from trainwright.errors import SearchError, StudyError
from trainwright.ledger import facts
from trainwright.search import SearchView
from trainwright.search.transfer import WarmStart, WarmStartRows
from trainwright.space import Choice, Float, Int, Space, equals, require
from trainwright.testing.searcher import play

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


def test_it_helps_in_another_space(old):
    """The mean loss over the first dozen trials falls; the parameter that is new was drawn, or in the middle."""
    means = []
    for searcher in (tw.ForestSearcher(), tw.ForestSearcher(warm_start=old)):
        losses = []
        for seed in range(3):
            view = SearchView(NEW, seed)
            play(searcher, view, 12, loss_of)
            losses.append(np.minimum.accumulate(view.losses[:, 0]).mean())
        means.append(np.mean(losses))
    assert means[1] < 0.5 * means[0]


def test_the_first_trial_is_the_best_of_the_earlier_study(old):
    [first] = tw.ForestSearcher(warm_start=old).ask(SearchView(NEW, 0), [0])
    best = old.best.params
    assert first.origin == {"searcher": "forest", "design": "recalled"}
    assert {name: first.params[name] for name in ("width", "optimizer", "momentum")} == {
        name: best[name] for name in ("width", "optimizer", "momentum")
    }
    assert first["rate"] == pytest.approx(best["rate"])
    assert first["decay"] == 0.5


def test_proposals_depend_on_settings_view_and_numbers_only(old):
    """After a resume, from what JSON kept, and whatever the earlier study has come to since."""
    study = tw.Study(OLD, objectives="min loss", seed=7)
    for trial in old.trials:
        study.tell(trial.params, loss=trial.values["loss"])
    searcher = tw.ForestSearcher(warm_start=study)
    view = SearchView(NEW, 3)
    whole = play(searcher, view, 20, loss_of)
    study.tell({"rate": 1e-3, "width": 20, "optimizer": "sgd", "momentum": 0.9}, loss=-1.0)
    kept = json.loads(json.dumps(searcher.warm_start.to_json()))
    again = tw.ForestSearcher(warm_start=kept)
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


def test_failures_requirements_and_objectives_are_survived(old):
    space = Space(require("width * decay <= 10"), **NEW.parameters)
    view = SearchView(space, 1)
    done = play(tw.ForestSearcher(warm_start=old), view, 15, lambda c, n: None)
    assert all(space.check(c.params) == [] for c in done)


def test_several_objectives_are_told_each_in_its_ranks():
    earlier = tw.Study(Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)), objectives=["min a", "max b"])
    generator = np.random.default_rng(0)
    for x, y in generator.random((60, 2)):
        earlier.tell({"x": x, "y": y}, a=x + y, b=x - y)
    view = SearchView(Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)), 0, objectives=2)
    searcher = tw.ForestSearcher(warm_start=earlier)
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
        experience = WarmStart.of(given)
        assert [row["x"] for row in experience.rows] == [1, 2, 3, 4, 5]
        assert np.array(experience.ranks)[:, 0] == pytest.approx([0.5, 0.2, 0.2, 0.9, 0.7])
        assert (experience.sources, experience.owners) == ((str(tmp_path / "old"),), (0,) * 5)


def test_long_studies_are_thinned():
    study = tw.Study(Space(x=Float(0.0, 1.0)), objectives="min loss")
    for x in np.linspace(0.0, 1.0, 700):
        study.tell({"x": x}, loss=x)
    told = WarmStart.of(study)
    assert len(told.rows) == 500
    assert [row["x"] for row in told.rows[:100]] == list(np.linspace(0.0, 1.0, 700)[:100])
    assert told.rows[-1]["x"] == 1.0


def test_values_outside_and_parameters_unknown():
    """A row with a value outside says nothing here; a number need not lie on the new grid."""
    experience = WarmStart(
        sources=("runs/old",), owners=(0,) * 4,
        rows=({"x": 0.26, "n": 3}, {"x": 5.0, "n": 1}, {"x": 0.5, "n": 2}, {"x": 0.9, "n": 2, "k": "new"}),
        ranks=((0.1,), (0.3,), (0.6,), (0.9,)),
    )  # fmt: skip
    space = Space(x=Float(0.0, 1.0, step=0.25), n=Choice(1, 2, 3), y=Float(0.0, 1.0, prior=tw.Normal(0.8, 0.01)))
    recalled = WarmStartRows(experience, space, 0, 1)
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


def told_two():
    study = tw.Study(Space(x=Float(0.0, 1.0)), objectives=["min a", "min b"])
    study.tell({"x": 0.5}, a=0.0, b=1.0)
    return study


def other():
    study = tw.Study(Space(y=Float(0.0, 1.0)), objectives="min loss")
    study.tell({"y": 0.5}, loss=0.0)
    return study


def test_what_cannot_be_learnt_from_is_refused(tmp_path):
    wrong = {
        "warm_start: the earlier study has 0 completed trials; allowed: one or more, or leave warm_start out": (
            lambda: tw.ForestSearcher(warm_start=told(0))
        ),
        "warm_start: got 7; allowed: a study, as of tw.Study.open('runs/old'), its directory, or a list of them": (
            lambda: tw.ForestSearcher(warm_start=7)
        ),
        "warm_start: got no study; allowed: one or more, or None": lambda: tw.ForestSearcher(warm_start=[]),
        "warm_start: the studies differ in their number of objectives: the earlier study 1, the earlier study 2": (
            lambda: tw.ForestSearcher(warm_start=[told(3), told_two()])
        ),
        "warm_start: the earlier study has y, this study x: they share nothing": (
            lambda: tw.ForestSearcher(warm_start=[told(3), other()]).ask(SearchView(Space(x=Float(0, 1)), 0), [0])
        ),
        "warm_start: the earlier study has x, this study y: they share nothing": (
            lambda: tw.ForestSearcher(warm_start=told(3)).ask(SearchView(Space(y=Float(0, 1)), 0), [0])
        ),
        "warm_start: no configuration of the earlier study lies within this study's space": (
            lambda: tw.ForestSearcher(warm_start=told(3)).ask(SearchView(Space(x=Float(5, 6)), 0), [0])
        ),
        "warm_start: the earlier study has 1 objectives, this study 2; allowed: as many, or leave warm_start out": (
            lambda: tw.ForestSearcher(warm_start=told(3)).ask(SearchView(Space(x=Float(0, 1)), 0, objectives=2), [0])
        ),
    }  # fmt: skip
    for message, call in wrong.items():
        with pytest.raises(SearchError, match=re.escape(message)):
            call()
    with pytest.raises(StudyError):
        tw.ForestSearcher(warm_start=tmp_path / "nothing")


PLANE = Space(**{name: Float(0.0, 1.0) for name in "abcd"})
PEAK = np.array([0.2, 0.7, 0.4, 0.8])


def bowl_of(configuration, number=0):
    return [float(((np.array([configuration.params[name] for name in "abcd"]) - PEAK) ** 2).sum())]


def earlier_study(sign, seed=5, trials=60):
    study = tw.Study(PLANE, objectives="min loss", seed=seed, searcher=tw.RandomSearcher())
    for _ in range(trials):
        configuration = study.ask()
        study.tell(configuration, loss=sign * bowl_of(configuration)[0])
    return study


def means_of(seeds=range(6), trials=30, **settings):
    """Return the mean over seeds of the best loss so far, averaged over the trials."""
    means = []
    for seed in seeds:
        view = SearchView(PLANE, seed)
        play(tw.ForestSearcher(**settings), view, trials, bowl_of)
        means.append(np.minimum.accumulate(view.losses[:, 0]).mean())
    return float(np.mean(means))


def test_several_studies_teach_together():
    """The best of each opens the new study, in their order; rows of the second are not rows of the first."""
    first, second = earlier_study(1.0), earlier_study(1.0, seed=6, trials=20)
    searcher = tw.ForestSearcher(warm_start=[first, second])
    view = SearchView(PLANE, 0)
    opened = play(searcher, view, 2, bowl_of)
    assert [c.origin["design"] for c in opened] == ["recalled", "recalled"]
    for found, study in zip(opened, (first, second), strict=True):
        assert found.params == pytest.approx(study.best.params)
    kept = json.loads(json.dumps(searcher.warm_start.to_json()))
    assert tw.ForestSearcher(warm_start=kept) == searcher
    assert set(searcher.warm_start.owners) == {0, 1}
    alone = [WarmStart.of(study) for study in (first, second)]
    assert searcher.warm_start.rows == alone[0].rows + alone[1].rows


def test_each_study_has_its_share_and_its_own_mark():
    searcher = tw.ForestSearcher(warm_start=[earlier_study(1.0, seed=seed, trials=300) for seed in range(3)])
    assert np.bincount(searcher.warm_start.owners).tolist() == [166, 166, 166]
    recalled = WarmStartRows(searcher.warm_start, PLANE, 0, 1)
    view = SearchView(PLANE, 0)
    play(searcher, view, 5, bowl_of)
    told = view.recalling(recalled.rows, recalled.owners)
    assert np.unique(told.progress).tolist() == [-3.0, -2.0, -1.0, 1.0]
    assert not told.complete[: len(recalled.rows)].any()


def test_studies_that_contradict_each_other():
    """One of two says the opposite of what is found: both still help; alone, before it is left out, it costs much."""
    agreeing, opposite = earlier_study(1.0), earlier_study(-1.0, seed=6)
    nothing = means_of()
    for pair in ([agreeing, opposite], [opposite, agreeing]):
        assert means_of(warm_start=pair) < nothing
    searcher = tw.ForestSearcher(warm_start=[agreeing, opposite])
    recalled = WarmStartRows(searcher.warm_start, PLANE, 0, 1)
    view = SearchView(PLANE, 0)
    play(searcher, view, 3, bowl_of)
    assert recalled.trusted(view).all()
    play(searcher, view, 13, bowl_of, start=3)
    assert set(recalled.owners[recalled.trusted(view)]) == {0}
    assert means_of(warm_start=opposite) < 3.0 * nothing


def test_judging_studies_survives_a_resume():
    """The set of studies that count is a function of what was told, so a resumed study proposes alike."""
    searcher = tw.ForestSearcher(warm_start=[earlier_study(1.0), earlier_study(-1.0, seed=6)])
    view = SearchView(PLANE, 3)
    whole = play(searcher, view, 40, bowl_of)
    for cut in (3, 4, 9, 17, 33):
        resumed = SearchView(PLANE, 3)
        for number, configuration in enumerate(whole[:cut]):
            resumed.propose(number, configuration)
            resumed.result(number, bowl_of(configuration), epoch=None, complete=True)
        assert play(searcher, resumed, 40 - cut, bowl_of, start=cut) == whole[cut:]

"""A study keeps its searcher: through every door that opens it, a resumed study is an uninterrupted one."""

import json
import re

import pytest

import trainwright as tw
from trainwright.errors import StudyError
from trainwright.study.notes import SearcherNote

TRIALS, CUT = 16, 10
SPACE = tw.Space(
    lr=tw.Float(1e-5, 1e-1, log=True),
    width=tw.Int(1, 64),
    kind=tw.Choice("a", "b", (1, 2)),
    momentum=tw.Float(0.0, 1.0, when=tw.greater("lr", 1e-3)),
)
HERE = {"engine": tw.Local(workers=0), "progress": False}


def score(params):
    return abs(params["width"] - 20) + 10 * abs(params.get("momentum", 0.5) - 0.2) + (params["kind"] == "a")


def train(trial):
    for epoch in trial.epochs():
        trial.report(loss=score(trial.params) + 1 / epoch)


class Own:
    """A searcher of a user's own."""

    def __init__(self, shift=0):
        self.shift = shift

    def ask(self, view, numbers):
        return tw.RandomSearcher().ask(view, [number + self.shift for number in numbers])


SEARCHERS = {
    "default": None,
    "evolution": lambda _: tw.EvolutionSearcher(population=5, tournament=2, initial=4),
    "forest": lambda _: tw.ForestSearcher(kappa=5.0, initial=3, candidates=40),
    "gp": lambda _: tw.GaussianProcessSearcher(initial=6, candidates=16, max_rows=20),
    "grid": lambda _: tw.GridSearcher(points=2),
    "halton": lambda _: tw.QuasiRandomSearcher(),
    "random": lambda _: tw.RandomSearcher(),
    "optuna": lambda _: tw.OptunaSearcher("TPESampler"),
    "botorch": lambda _: tw.BoTorchSearcher(initial=TRIALS - 2, candidates=8, samples=8),
    "surrogate": lambda earlier: tw.ForestSearcher(candidates=40, warm_start=earlier),
    "two earlier": lambda earlier: tw.ForestSearcher(candidates=40, warm_start=[earlier, earlier]),
}


FORESTS = {"forest", "surrogate", "two earlier"}  # whose kappas are a worker's own


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    directory = tmp_path_factory.mktemp("earlier") / "study"
    with tw.Study(SPACE, "min loss", directory=directory, seed=8, searcher=tw.RandomSearcher()) as study:
        told(study, 12)
    return directory


def made(name, earlier):
    return None if SEARCHERS[name] is None else SEARCHERS[name](earlier)


def told(study, trials):
    for _ in range(trials):
        asked = study.ask()
        study.tell(asked, loss=score(asked))


def shown(study):
    return [(trial.params, trial.origin) for trial in study.trials]


@pytest.mark.parametrize("name", SEARCHERS)
def test_ask_and_tell_resumed_is_ask_and_tell_uninterrupted(tmp_path, earlier, name):
    searcher = made(name, earlier)
    with tw.Study(SPACE, "min loss", searcher=searcher, seed=2) as study:
        told(study, TRIALS)
        whole = shown(study)
    doors = {
        "open": tw.Study.open,
        "constructor": lambda directory: tw.Study(SPACE, "min loss", directory=directory, seed=2),
        "open with it": lambda directory: tw.Study.open(directory, searcher=searcher),
    }
    for door, opened in doors.items():
        directory = tmp_path / door
        with tw.Study(SPACE, "min loss", directory=directory, searcher=searcher, seed=2) as study:
            told(study, CUT)
        with opened(directory) as study:
            told(study, TRIALS - CUT)
            assert shown(study) == whole, door
            notes = [value for _, kind, value in study.state.notes.values() if kind == "searcher"]
            assert len(notes) == 1


# Each searcher meets the rule with rungs, and each rule the default; BoTorch takes longest and meets the simplest.
RULES = {
    "fixed": tw.FixedEpochs(3),
    "asha": tw.ASHA(max_epochs=9, min_epochs=1, eta=2.5),
    "median": tw.Median(max_epochs=4),
}
QUICK = {("botorch", "fixed"), *(("default", rule) for rule in RULES)}
QUICK |= {(name, "asha") for name in SEARCHERS if name != "botorch"}


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param(name, rule, marks=[] if (name, rule) in QUICK else pytest.mark.slow)
        for name in SEARCHERS
        if name != "optuna"
        for rule in RULES
    ],
)
def test_a_run_resumed_through_any_door_is_a_run_uninterrupted(tmp_path, earlier, name, rule):
    searcher = made(name, earlier)
    with tw.Study(SPACE, "min loss", seed=2) as study:
        study.run(train, trials=TRIALS, searcher=searcher, scheduler=RULES[rule], **HERE)
        whole = shown(study)
    doors = {
        "open": tw.Study.open,
        "constructor": lambda directory: tw.Study(SPACE, "min loss", directory=directory, seed=2),
    }
    for door, opened in doors.items():
        directory = tmp_path / door
        with tw.Study(SPACE, "min loss", directory=directory, seed=2) as study:
            study.run(train, trials=CUT, searcher=searcher, scheduler=RULES[rule], **HERE)
        with opened(directory) as study:
            study.run(train, trials=TRIALS, **HERE)
            assert shown(study) == whole, door


@pytest.mark.parametrize("name", [name for name in SEARCHERS if name not in FORESTS | {"optuna"}])
def test_a_worker_that_joins_asks_the_same_searcher(tmp_path, earlier, name):
    """The forest alone draws a kappa for each slot; all others propose as the study itself would."""
    searcher = made(name, earlier)
    with tw.Study(SPACE, "min loss", seed=2) as study:
        study.run(train, trials=TRIALS, searcher=searcher, scheduler=tw.FixedEpochs(2), **HERE)
        whole = shown(study)
    directory = tmp_path / "study"
    with tw.Study(SPACE, "min loss", directory=directory, seed=2) as study:
        study.run(train, trials=CUT, searcher=searcher, scheduler=tw.FixedEpochs(2), **HERE)
    tw.Worker(where=directory, train=train, engine=tw.Local(workers=0)).run(trials=TRIALS, progress=False)
    with tw.Study.open(directory) as study:
        assert shown(study) == whole


@pytest.mark.parametrize("name", [*sorted(FORESTS), "optuna"])
def test_a_worker_has_the_settings_of_the_studys_searcher(tmp_path, earlier, name):
    searcher = made(name, earlier)
    with tw.Study(SPACE, "min loss", directory=tmp_path / "study", seed=2) as study:
        study.run(train, trials=CUT, searcher=searcher, scheduler=tw.FixedEpochs(2), **HERE)
        labels = {trial.origin["searcher"] for trial in study.trials}
    with tw.Study.open(tmp_path / "study") as study:
        tw.Worker(where=study, train=train, engine=tw.Local(workers=0)).run(trials=TRIALS, progress=False)
        assert {trial.origin["searcher"] for trial in study.trials} == labels
        assert SearcherNote.of(study.searching.choose(None, "")) == SearcherNote.of(searcher)


# What cannot be made from records, and what differs.


def test_a_searcher_of_a_users_own_has_to_be_given_again(tmp_path):
    directory = tmp_path / "study"
    with tw.Study(SPACE, "min loss", directory=directory, searcher=Own(), seed=2) as study:
        told(study, 4)
    message = "the study is searched by Own, which cannot be made from its records; give it: "
    with tw.Study.open(directory) as study:
        assert len(study.trials) == 4  # to look at it nothing is needed
        with pytest.raises(StudyError, match=re.escape(f"{message}Study.open(..., searcher=...)")):
            study.ask()
        with pytest.raises(StudyError, match=re.escape(f"{message}study.run(..., searcher=...)")):
            study.run(train, trials=8, **HERE)
        assert len(study.trials) == 4
    with tw.Study.open(directory, searcher=Own()) as study:
        told(study, 4)
        assert len(study.trials) == 8


def test_a_worker_without_the_studys_own_searcher_is_refused(tmp_path):
    directory = tmp_path / "study"
    with tw.Study(SPACE, "min loss", directory=directory, seed=2) as study:
        study.run(train, trials=4, searcher=Own(), scheduler=tw.FixedEpochs(2), **HERE)
    worker = {"where": directory, "train": train, "engine": tw.Local(workers=0)}
    with pytest.raises(StudyError, match=re.escape("searched by Own, which cannot be made")):
        tw.Worker(**worker).run(trials=8, progress=False)
    message = "the study is searched by Own, this worker would search by ForestSearcher(kappa=2.0); start it with the"
    with pytest.raises(StudyError, match=re.escape(message)):
        tw.Worker(**worker, searcher=tw.ForestSearcher(kappa=2.0)).run(trials=8, progress=False)
    assert tw.Worker(**worker, searcher=Own()).run(trials=8, progress=False) == 4
    forest = tw.ForestSearcher(kappa=2.0)
    assert tw.Worker(**worker, searcher=forest, other_job=True).run(trials=12, progress=False) == 4
    with tw.Study.open(directory, searcher=Own()) as study:
        notes = [value["text"] for _, kind, value in study.state.notes.values() if kind == "searcher"]
        assert notes == ["Own"]


def test_another_searcher_is_a_new_fact(tmp_path):
    directory = tmp_path / "study"
    with tw.Study(SPACE, "min loss", directory=directory, searcher=tw.RandomSearcher(), seed=2) as study:
        told(study, 3)
    with tw.Study.open(directory, searcher=tw.QuasiRandomSearcher()) as study:
        told(study, 3)
    with tw.Study.open(directory) as study:
        told(study, 3)
        assert [trial.origin["searcher"] for trial in study.trials] == ["random"] * 3 + ["halton"] * 6
        notes = {value["session"]: value["text"] for _, kind, value in study.state.notes.values() if kind == "searcher"}
        assert [notes[session] for session in sorted(notes)] == ["RandomSearcher()", "QuasiRandomSearcher()"]


def test_a_study_keeps_its_rule(tmp_path):
    directory = tmp_path / "study"
    with tw.Study(SPACE, "min loss", directory=directory, seed=2) as study:
        study.run(train, trials=6, scheduler=tw.ASHA(max_epochs=9, min_epochs=1, eta=2), **HERE)
    with tw.Study.open(directory) as study:
        study.run(train, trials=12, **HERE)
        jobs = [value["rule"] for _, kind, value in study.state.notes.values() if kind == "job"]
        assert [job["name"] for job in jobs] == ["ASHA"] * len(jobs)
        assert json.dumps(jobs[-1]) == json.dumps(jobs[0])
        assert any(trial.epoch < 9 for trial in study.trials[6:])

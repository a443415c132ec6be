"""A warm start outlives its process: what was learnt is in the ledger, and whoever joins later proposes with it."""

import json
import shutil

import pytest

import trainwright as tw
from trainwright.plugins import describe, make
from trainwright.study.notes import SearcherNote

SPACE = tw.Space(x=tw.Float(0.0, 1.0), kind=tw.Choice("a", ("b", 1)))
HERE = tw.Local(workers=0)


def train(trial):
    return abs(trial.params["x"] - 0.7) + (trial.params["kind"] == "a")


@pytest.fixture
def old(tmp_path):
    with tw.Study(SPACE, objectives="min loss", directory=tmp_path / "old", seed=1) as study:
        study.run(train, trials=15, engine=HERE, progress=False)
    return study  # closed, and still known


def test_a_worker_proposes_with_it_although_the_earlier_study_is_gone(old, tmp_path):
    made = {}
    for directory in ("whole", "shared"):
        searcher = tw.ForestSearcher(warm_start=old, initial=2)
        with tw.Study(SPACE, objectives="min loss", directory=tmp_path / directory, seed=2) as study:
            trials = 8 if directory == "whole" else 4
            study.run(train, trials=trials, searcher=searcher, engine=HERE, progress=False)
            made[directory] = [trial.params for trial in study.trials]
    shutil.rmtree(tmp_path / "old")
    assert tw.Worker(where=tmp_path / "shared", engine=HERE).run(trials=8, progress=False) == 4
    with tw.Study.open(tmp_path / "shared") as study:
        found = study.trials
        known = make("searcher", SearcherNote.last(study.state).table)
    assert [trial.params for trial in found[:4]] == made["whole"][:4]
    assert known == searcher
    assert all(trial.origin["searcher"] == "forest" for trial in found)


def test_a_table_may_name_the_directory(old, tmp_path):
    """As a study file does: [searcher] name, warm_start."""
    table = {"name": "ForestSearcher", "warm_start": str(tmp_path / "old")}
    searcher = make("searcher", table)
    assert searcher == tw.ForestSearcher(warm_start=tmp_path / "old")
    kept = describe("searcher", searcher)
    assert make("searcher", json.loads(json.dumps(kept))) == searcher


def test_a_cut_run_goes_on_as_if_it_had_not_been(old, tmp_path):
    searcher = tw.ForestSearcher(warm_start=old, initial=2)  # by default it depends on trials=
    made = []
    for cuts in ((10,), (3, 6, 10)):
        directory = tmp_path / f"cut{len(cuts)}"
        for trials in cuts:
            with tw.Study(SPACE, objectives="min loss", directory=directory, seed=2) as study:
                study.run(train, trials=trials, searcher=searcher, engine=HERE, progress=False)
                params = [trial.params for trial in study.trials]
        made.append(params)
    assert made[0] == made[1]

"""What a study makes of damage in its ledger: what is missing is trained again, and said."""

import zlib

import pytest

import trainwright as tw

SPACE = tw.Space(x=tw.Float(0, 1))


def run(directory, trials, *, progress=False, **settings):
    trained = []

    def train(trial):
        trained.append(trial.number)
        return trial.params["x"]

    with tw.Study(SPACE, objectives="min loss", directory=directory, seed=0) as study:
        study.run(
            train,
            trials=trials,
            searcher=tw.RandomSearcher(),
            engine=tw.Local(workers=0),
            progress=progress,
            **settings,
        )
        return trained, study.state.results


def journal_of(directory):
    (path,) = (directory / "ledger" / "journal").glob("*.jsonl")
    return path


def test_a_zero_byte_costs_a_trial(tmp_path):
    """In the same process and in another: one record is lost, and said; the budget is exact."""
    run(tmp_path, 12)
    path = journal_of(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b'"kind":"finished"', len(data) // 4)] = 0
    path.write_bytes(data)
    with tw.Study.open(tmp_path) as study:
        assert study.state.results == 11
        assert len(study.dropped) == 1
        assert "there are zeros in it" in study.dropped[0]
    with pytest.warns(UserWarning, match="the ledger cannot be read as a whole: .* a trial whose end was there"):
        trained, results = run(tmp_path, 12)
    assert len(trained) == 1
    assert results == 12


def test_a_torn_end_is_no_damage(tmp_path):
    """A killed writer leaves one: nobody was told that what it says is on the disk."""
    run(tmp_path, 3)
    path = journal_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    run(tmp_path, 4)


def test_a_run_below_its_budget_says_why(tmp_path, capsys):
    space = tw.Space(x=tw.Choice(1, 2, 3))
    with tw.Study(space, objectives="min loss", directory=tmp_path) as study:
        study.run(lambda trial: trial.params["x"], trials=9, searcher=tw.GridSearcher(), engine=tw.Local(workers=0))
    assert "the run ends with 3 of 9 results: nothing new is proposed any more" in capsys.readouterr().err


def test_a_run_that_meets_its_budget_says_nothing_of_it(tmp_path, capsys):
    run(tmp_path, 3, progress=True)
    assert "the run ends" not in capsys.readouterr().err


def test_what_does_not_fit_is_said(tmp_path):
    run(tmp_path, 3)
    line = b'{"v":1,"kind":"finished","writer":"o-1-0","seq":0,"trial":1,"lease":1,"at":0,"body":{}}'
    path = tmp_path / "ledger" / "journal" / "o-1-0.jsonl"
    path.write_bytes(b"%08x %b\n" % (zlib.crc32(line), line))
    with pytest.warns(UserWarning, match="it is no record 'finished': reason is missing"):
        assert run(tmp_path, 4)[1] == 4

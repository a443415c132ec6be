"""Directories that hold no study, another one, or one of another version: each refused in a sentence, left as it is."""

from pathlib import Path

import pytest

import trainwright as tw
from trainwright.errors import LedgerTooNew, StudyError
from trainwright.ledger import DirectoryLedger, Record

SPACE = tw.Space(x=tw.Float(0.0, 1.0), k=tw.Int(1, 9), kind=tw.Choice("a", "b"))


def make(directory):
    return tw.Study(SPACE, objectives="min loss", directory=directory, seed=7, searcher=tw.RandomSearcher())


def run(study, trials):
    study.run(lambda trial: trial.params["x"], trials=trials, engine=tw.Local(workers=0), progress=False)


def test_another_space_seed_or_objective_is_refused(tmp_path):
    make(tmp_path / "study").close()
    changed = tw.Space(x=tw.Float(0.0, 2.0), k=tw.Int(1, 9), kind=tw.Choice("a", "b"))
    cases = [
        ({"space": changed}, ["x = Float(0.0, 1.0)", "now Float(0.0, 2.0)", "new directory"]),
        ({"objectives": "max loss"}, ["objectives min loss", "now max loss", "new directory"]),
        ({"objectives": "min loss <= 3"}, ["min loss <= 3"]),
        ({"seed": 8}, ["seed 7", "now 8", "seed=7"]),
    ]
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for case, words in cases:
        arguments = {"space": SPACE, "objectives": "min loss", "seed": 7, "directory": tmp_path / "study"} | case
        with pytest.raises(StudyError) as caught:
            tw.Study(**arguments)
        for word in [str(tmp_path / "study"), *words]:
            assert word in str(caught.value)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def test_no_study_there(tmp_path):
    make(tmp_path / "digits").close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(StudyError) as caught:
        tw.Study.open(tmp_path / "digitz")
    assert str(caught.value).startswith(f"no study in {tmp_path / 'digitz'}; studies there: {tmp_path / 'digits'}")
    assert f"did you mean '{tmp_path / 'digits'}'?" in str(caught.value)
    for name in ("empty", "file", "not/there/at/all"):
        with pytest.raises(StudyError, match=f"no study in {tmp_path / name}"):
            tw.Study.open(tmp_path / name)
    assert list((tmp_path / "empty").iterdir()) == []
    with pytest.raises(StudyError, match=r"file is a file; give a directory for the study"):
        make(tmp_path / "file")


def test_a_directory_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StudyError, match=r"no study and holds other files \(thesis.tex\); give a new or empty dir"):
        make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_no_permission(tmp_path, monkeypatch):
    def mkdir(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(StudyError, match=rf"cannot write {tmp_path / 'study'}.*: permission denied"):
        make(tmp_path / "study")


def test_a_creation_that_was_cut_short_is_made_good(tmp_path):
    """The driver died before its first record: opening says so, making it again works."""
    DirectoryLedger(tmp_path / "study" / "ledger", create=True)
    with pytest.raises(
        StudyError, match=r"no `created` record, its creation was cut short; make it again with tw.Study"
    ):
        tw.Study.open(tmp_path / "study")
    with make(tmp_path / "study") as study:
        assert not study.resumed
    assert tw.Study.open(tmp_path / "study").seed == 7


def test_a_newer_record_is_refused_before_anything_is_written(tmp_path):
    make(tmp_path / "study").close()
    (path,) = (tmp_path / "study" / "ledger" / "journal").iterdir()
    newer = Record(kind="created", body={}, writer=path.stem, seq=99, v=3)
    with path.open("ab") as file:
        file.write(newer.line())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for attempt in (lambda: tw.Study.open(tmp_path / "study"), lambda: make(tmp_path / "study")):
        with pytest.raises(LedgerTooNew, match=r"format 3; this version reads up to 1; upgrade trainwright"):
            attempt()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_unknown_records_are_kept_and_ignored(tmp_path):
    with make(tmp_path / "study") as study:
        run(study, 2)
    ledger = DirectoryLedger(tmp_path / "study" / "ledger")
    ledger.append([Record(kind="resized", body={"to": 4}, trial=0, lease=1)])
    with tw.Study.open(tmp_path / "study") as study:
        assert study.state.unknown_kinds == {"resized": 1}
        run(study, 3)
    assert any(record.kind == "resized" for record in ledger.read(None)[0])

"""A failure that was read before it was synced, and then lost, makes the budget no larger: who used it wrote it too."""

import pytest

import trainwright as tw
from trainwright.ledger import DirectoryLedger, Status, Writer, facts, state_of
from trainwright.study.driver.failures import secure_failures
from trainwright.study.study_log import StudyLog

SPACE = tw.Space(x=tw.Float(0, 1))
LOSSES = 4


@pytest.fixture
def place(tmp_path):
    with tw.Study(SPACE, "min loss", directory=tmp_path / "study", searcher=tw.RandomSearcher()):
        pass
    return tmp_path / "study"


def another(place):
    """Return the ledger of another process, which has proposed trial 0."""
    ledger = DirectoryLedger(place / "ledger")
    (proposed,) = [
        facts.proposed(0, params={"x": 0.5}, key="k", origin={"searcher": "test"}, seen=0, seen_hash="0" * 16)
    ]
    started = facts.started(0, 1, slot="0", devices=["cpu:0"], resumed_epoch=0)
    ledger.append([facts.joined(Writer.here(), session=1), proposed, started])
    return ledger


def ends(kind):
    """Return the records after which trial 0 has no result."""
    if kind == "failed":
        raised = {"error": "ValueError", "file": "mine.py", "line": 3, "source": "f()"}
        return [facts.failed(0, 1, failure="exception", message="no", traceback="tb", raised=raised, wall_seconds=2.5)]
    if kind == "cancelled":
        return [facts.finished(0, 1, reason="cancelled", values={}, wall_seconds=2.5)]
    return [facts.lost(0, lease, why="killed", blame=True) for lease in range(1, LOSSES + 1)]


@pytest.mark.parametrize("kind", ["failed", "cancelled", "abandoned"])
def test_what_was_used_is_written_again(place, kind):
    """The state without the other's journal is the same: its last record was cut off after it had been read."""
    other = another(place)
    for record in ends(kind):
        other.append([record])
    log, safe = StudyLog(DirectoryLedger(place / "ledger"), place), set()
    before = log.state.trials[0]
    secure_failures(log, safe)
    assert safe == {0}
    # Power is lost: of the other's journal the end goes, as if it had not been synced.
    journal = place / "ledger" / "journal" / f"{other.writer}.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: -len(ends(kind))]))
    state = state_of(DirectoryLedger(place / "ledger"))
    after = state.trials[0]
    assert after.status == before.status == (Status.FAILED if kind == "failed" else Status.ABANDONED)
    assert after.failure == before.failure
    assert after.seconds == before.seconds
    assert state.allowed(1) == 2


@pytest.mark.parametrize("kind", ["failed", "cancelled", "abandoned"])
def test_what_lasts_is_not_written_again(place, kind):
    """A later record of the same journal proves that it was synced; this process knows of its own."""
    other = another(place)
    for record in ends(kind):
        other.append([record])
    other.append([facts.note("later", 1)])
    log, safe = StudyLog(DirectoryLedger(place / "ledger"), place), set()
    secure_failures(log, safe)
    mine = StudyLog(DirectoryLedger(place / "ledger"), place)
    mine.append(facts.proposed(1, params={"x": 0.1}, key="l", origin={"searcher": "test"}, seen=0, seen_hash="0" * 16))
    mine.append(facts.failed(1, 1, failure="exception", message="no"))
    secure_failures(mine, safe)
    assert safe == {0, 1}
    assert sum(
        record.kind in {"failed", "finished", "lost"} for record in DirectoryLedger(place / "ledger").read()[0]
    ) == (len(ends(kind)) + 1)


def test_a_worker_writes_a_doubtful_failure_before_it_takes_the_place(place):
    other = another(place)
    other.append(ends("failed"))
    with tw.Study.open(place, searcher=tw.RandomSearcher()) as study:
        study.run(lambda trial: trial.params["x"], trials=1, engine=tw.Local(workers=0), progress=False)
        assert [trial.status for trial in study.trials] == ["failed", "complete"]
    kinds = [
        (record.kind, record.trial)
        for record in DirectoryLedger(place / "ledger").read()[0]
        if record.writer != other.writer
    ]
    assert kinds.index(("failed", 0)) < kinds.index(("proposed", 1))


def test_a_late_result_hides_no_later_failure(place):
    """A trial that was given up and then had its result no longer counts among those whose place is given out."""
    other = another(place)
    for record in ends("abandoned"):
        other.append([record])
    log, safe = StudyLog(DirectoryLedger(place / "ledger"), place), set()
    secure_failures(log, safe)
    assert safe == {0}
    other.append([facts.finished(0, LOSSES, reason="complete", values={"loss": 0.5}, wall_seconds=2.5)])
    other.append(
        [facts.proposed(1, params={"x": 0.1}, key="l", origin={"searcher": "test"}, seen=0, seen_hash="0" * 16)]
    )
    other.append([facts.failed(1, 1, failure="exception", message="no")])
    log.refresh()
    assert log.state.trials[0].has_result
    secure_failures(log, safe)
    assert safe == {1}

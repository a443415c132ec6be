"""What is taken over, and when to go: acts rest on what was written last, and nobody waits in vain."""

import errno
import os
import subprocess
import sys

import pytest

import trainwright as tw
from trainwright.errors import LedgerError
from trainwright.ledger import DirectoryLedger, Status, Writer, facts
from trainwright.ledger.writers import Liveness
from trainwright.study.claims import Claims

SPACE = tw.Space(lr=tw.Float(1e-3, 1e-1, log=True))
HERE = tw.Local(workers=0)
pytestmark = pytest.mark.timeout(60)


def make(directory, space=SPACE, **settings):
    return tw.Study(space, objectives="min loss", directory=directory, seed=5, **settings)


def joined(study, host):
    """Return a writer on a host of its own, as another worker of the study."""
    ledger = DirectoryLedger(study.directory / "ledger")
    place = Writer(host=host, boot="b", pid=1, process_start="1")
    ledger.append([facts.joined(place, session=1)])
    return ledger


def begin(study, ledger, number):
    """Propose and start a trial as that writer."""
    params = {"lr": 0.01 + 0.01 * number}
    key = study.space.configuration_of(params).key
    ledger.claim(f"number/{number}/0", ledger.writer)
    ledger.append([facts.proposed(number, params=params, key=key, origin={}, seen=0, seen_hash="")])
    ledger.append([facts.started(number, 1, slot="0", devices=[], resumed_epoch=0)])


def train(trial):
    return trial.params["lr"]


# What the dead wrote last.


def test_a_lost_trial_whose_proposal_cannot_be_read_is_not_started(tmp_path):
    """Another, who has read it, gives it up for taking over; here its line is damaged: nobody knows what to run."""
    study = make(tmp_path / "study")
    other = joined(study, "a")

    def train(trial):
        if trial.number == 0:
            other.claim("number/1/0", other.writer)
            other.append([facts.started(1, 1, slot="0", devices=[], resumed_epoch=0)])
            other.append([facts.lost(1, 1, why="its driver is gone", blame=False)])
        return trial.params["lr"]

    study.run(train, trials=2, engine=HERE, progress=False)
    assert 1 not in {number for number, trial in study._log.state.trials.items() if trial.lease > 1}
    study.close()
    with make(tmp_path / "study") as study:
        study.run(train, trials=2, engine=HERE, progress=False)
        assert study.trials[1].status == "abandoned"
        assert [trial.number for trial in study.trials if trial.values] == [0, 2]


def test_a_trial_that_another_has_taken_over_is_left_to_it(tmp_path, monkeypatch):
    """Two find a holder dead; the quicker has gone on with its trial when the slower reads on."""
    with make(tmp_path / "study") as study:
        holder, quicker = joined(study, "a"), joined(study, "b")
        begin(study, holder, 0)
        log = study._log
        log.refresh()
        trial = log.state.trials[0]
        quicker.append([facts.lost(0, 1, why="silent", blame=False)])
        quicker.append([facts.started(0, 2, slot="1", devices=[], resumed_epoch=0)])
        monkeypatch.setattr(log.claims._liveness, "is_dead", lambda name, *_: name == holder.writer)
        assert not log.orphaned(trial)
        assert (trial.status, trial.holder) == (Status.RUNNING, quicker.writer)


def test_a_result_outlives_the_journal_of_who_proposed_its_trial(tmp_path, monkeypatch):
    """Others read a proposal before it is on the disk, and it may be lost with its writer."""
    with make(tmp_path / "study") as study:
        holder = joined(study, "a")
        begin(study, holder, 0)
        monkeypatch.setattr(Liveness, "is_dead", lambda self, name, *_: name == holder.writer)
        study.run(train, trials=1, searcher=tw.RandomSearcher(), engine=HERE, progress=False)
    (tmp_path / f"study/ledger/journal/{holder.writer}.jsonl").unlink()
    with tw.Study.open(tmp_path / "study") as study:
        [trial] = study.trials
        assert (trial.params, trial.values) == ({"lr": 0.01}, {"loss": 0.01})


LATE_NEWS = """
import os, sys
import trainwright as tw
study = tw.Study.open(sys.argv[1])
asked = study.ask(2)
print("asked", flush=True)
sys.stdin.readline()
study.tell(asked[0], loss=1.0)
os._exit(0)
"""


def test_what_a_dead_loop_told_last_is_not_asked_again(tmp_path):
    """It is read only when its process is found gone; what it has not told is asked again."""
    with make(tmp_path / "study") as study:
        python = [sys.executable, "-c", LATE_NEWS, str(tmp_path / "study")]
        with subprocess.Popen(python, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout.readline() == "asked\n"
            study.refresh()
            other.communicate("go on\n")
        assert [configuration.number for configuration in study.ask(2)] == [1, 2]


def test_a_writer_that_was_only_silent_may_come_back(tmp_path, monkeypatch):
    """A network was down for longer than a lease: what it has done since is its own."""
    with make(tmp_path / "study") as study:
        other = joined(study, "elsewhere")
        begin(study, other, 0)
        study.refresh()
        for name, value in {"_GLANCE_SECONDS": 0.0, "_SOON_SECONDS": 0.0, "_LOOKS": 1e9}.items():
            monkeypatch.setattr(f"trainwright.study.claims.{name}", value)
        now = [0.0]
        claims = study._log.claims
        claims._liveness = Liveness(180.0, lambda: now[0])

        def told_dead():
            found = set()
            for _ in range(5):
                now[0] += 45.0
                found |= claims.find_newly_dead()
            return found

        assert claims.is_dead(other.writer) is None
        assert told_dead() == {other.writer}
        assert claims.is_dead(other.writer) is True
        other.heartbeat()
        assert claims.is_dead(other.writer) is False
        assert told_dead() == {other.writer}


# What we did not come to propose.


class Interrupted:
    """Is interrupted at its first proposal."""

    def __init__(self):
        self.calls = 0

    def ask(self, view, numbers):
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt
        return tw.RandomSearcher().ask(view, numbers)


class Fickle:
    """Proposes something else each time."""

    calls = 0

    def ask(self, view, numbers):
        self.calls += 1
        return tw.RandomSearcher().ask(view, [number + 100 * self.calls for number in numbers])


def test_an_interrupted_run_keeps_no_number(tmp_path):
    with make(tmp_path / "study", searcher=Interrupted()) as study:
        with pytest.raises(KeyboardInterrupt):
            study.run(train, trials=2, engine=HERE, progress=False)
        study.run(train, trials=2, engine=HERE, progress=False)
        assert study.state.results == 2


def test_an_interrupted_ask_keeps_no_number(tmp_path):
    with make(tmp_path / "study", searcher=Interrupted()) as study:
        with pytest.raises(KeyboardInterrupt):
            study.ask(3)
        assert [configuration.number for configuration in study.ask(4)] == [0, 1, 2, 3]


def test_proposals_that_were_written_though_the_write_failed_are_asked_once(tmp_path, monkeypatch):
    """The disk had them when its sync failed: they are found again and not made anew."""
    with make(tmp_path / "study", searcher=Fickle()) as study, monkeypatch.context() as patch:

        def sync(_):
            patch.undo()
            raise OSError(errno.EIO, "input/output error")

        study._log.ledger._journal._unsynced_since = -1e9  # so that it is due
        patch.setattr(os, "fdatasync", sync)
        with pytest.raises(LedgerError):
            study.ask(3)
        asked = study.ask(3)
        assert len({configuration.number for configuration in asked}) == 3
        study.refresh()
        assert [study.state.trials[c.number].params for c in asked] == [c.params for c in asked]


# When to go.


def test_workers_leave_a_space_that_is_used_up(tmp_path):
    """The numbers that they claimed for nothing keep nobody."""
    with make(tmp_path / "study", tw.Space(lr=tw.Choice(0.1, 0.2, 0.3))) as study:
        assert tw.Worker(where=study, train=train, engine=HERE).run(trials=9, progress=False) == 3


@pytest.mark.parametrize(
    "end",
    [
        facts.failed(1, 1, failure="exception", message="no luck"),
        facts.paused(1, 1, reason="preempted", epoch=0, values={}, wall_seconds=1.0),
    ],
)
def test_news_that_come_while_a_worker_looks_for_work_keep_it(tmp_path, monkeypatch, end):
    """The other worker left by then: what it failed or did not end is for us to make good."""
    with make(tmp_path / "study") as study:
        other = joined(study, "elsewhere")
        look = Claims.number

        def leaves(claims, *arguments, **named):
            if study.state.results == 1 and 1 not in study.state.trials:
                begin(study, other, 1)
                other.append([end, facts.left()])
            return look(claims, *arguments, **named)

        monkeypatch.setattr(Claims, "number", leaves)
        assert tw.Worker(where=study, train=train, engine=HERE).run(trials=2, progress=False) == 2


def test_a_driver_stays_for_a_death_that_it_learns_of_at_the_end(tmp_path, monkeypatch):
    """Its look at the holder decides when it asks whether to go."""
    with make(tmp_path / "study") as study:
        other = joined(study, "elsewhere")
        begin(study, other, 1)
        study.refresh()
        asked = []
        ask = Claims.undecided

        def undecided(claims, limit):
            asked.append(limit)
            return ask(claims, limit)

        monkeypatch.setattr(Claims, "undecided", undecided)
        monkeypatch.setattr("trainwright.study.claims.Liveness.is_dead", lambda *_: True if asked else None)
        for pause in ("_GLANCE_SECONDS", "_SOON_SECONDS"):
            monkeypatch.setattr(f"trainwright.study.claims.{pause}", 0.0)
        study.run(train, trials=2, engine=HERE, progress=False)
        assert study.state.results == 2


def test_a_worker_reads_on_before_it_gives_up(tmp_path, monkeypatch):
    """Ten have failed and it knows of no success: it may only not have read of one yet."""
    with make(tmp_path / "study") as study:
        other = joined(study, "elsewhere")

        def fails(trial):
            if trial.number == 0:
                begin(study, other, 5)
                end = facts.finished(5, 1, reason="completed", values={"loss": 1.0}, wall_seconds=1.0)
                other.append([end, facts.left()])
            if study.state.counts["failed"] < 10:
                raise ValueError("no luck")
            return 1.0

        monkeypatch.setattr("trainwright.study.study_log.StudyLog.keep_up", lambda _: None)
        study.run(fails, trials=2, engine=HERE, progress=False)
        assert (study.state.results, study.state.counts["failed"]) == (2, 10)

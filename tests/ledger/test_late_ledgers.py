"""Readers that are late, told things twice, or left with what a crash spared: the fold and the log end up the same."""

import itertools
import time

from histories import histories, interleavings
from hypothesis import given, settings
from hypothesis import strategies as st
from known_records import known_records
from late_ledger import LateLedger

import trainwright as tw
from trainwright.ledger import Record, State, Status, Writer, blocks, facts, fold
from trainwright.space.configuration import Configuration
from trainwright.study.study_log import StudyLog
from trainwright.testing.ledger import LedgerConformance, records

thorough = settings(max_examples=60)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class TestLateLedger(LedgerConformance):
    examples = 10
    records = known_records | records

    def make(self):
        return LateLedger(clock=Clock())

    def another(self, ledger):
        return LateLedger(of=ledger)


@thorough
@given(data=st.data(), streams=histories(most=25))
def test_a_reader_60_seconds_behind_sees_the_state_of_a_minute_ago(data, streams):
    """And with repetitions no other state; when all has arrived, it is everybody's."""
    clock = Clock()
    first = LateLedger(clock=clock)
    writers = {name: LateLedger(of=first) for name in streams}
    late = LateLedger(of=first, visibility_seconds=60.0, repeats=data.draw(st.integers(0, 5)))
    state, cursor, written = State(), None, []
    for record in data.draw(interleavings(streams, repeated=False)):
        (stamped,) = writers[record.writer].append([record])
        written.append((clock.now, stamped))
        clock.now += data.draw(st.sampled_from([0.0, 1.0, 30.0, 100.0]))
        if data.draw(st.booleans()):
            for read, after in blocks(late, cursor):
                cursor = after
                fold(read, into=state)
            assert state == fold(record for at, record in written if at <= clock.now - 60.0)
    clock.now += 60.0
    fold(late.read(cursor)[0], into=state)
    assert state == fold(first.read()[0])


@thorough
@given(data=st.data(), streams=histories(most=25))
def test_a_crash_loses_only_what_nobody_saw(data, streams):
    """Whoever had read anything agrees with whoever reads it later."""
    clock = Clock()
    first = LateLedger(clock=clock, visibility_seconds=10.0)
    writers = {name: LateLedger(of=first, visibility_seconds=10.0) for name in streams}
    reader = LateLedger(of=first, visibility_seconds=10.0, repeats=2)
    seen, cursor, old = State(), None, []
    for record in data.draw(interleavings(streams, repeated=False)):
        writer = writers[record.writer]
        (stamped,) = writer.append([record])
        old.append((clock.now, stamped))
        clock.now += data.draw(st.sampled_from([0.0, 3.0, 20.0]))
        event = data.draw(st.sampled_from(["nothing", "read", "crash"]))
        if event == "read":
            records, cursor = reader.read(cursor)
            fold(records, into=seen)
        elif event == "crash":
            writer.crash()
            old = [(at, r) for at, r in old if r.writer != stamped.writer or at <= clock.now - 10.0]
    clock.now += 10.0
    records, cursor = reader.read(cursor)
    everything = LateLedger(of=first).read()[0]
    assert everything == [record for _, record in old]
    assert fold(records, into=seen) == fold(everything)


def books(delay, count):
    """Return books on one study that see each other's records `delay` seconds late, some twice; and the clock."""
    clock = Clock()
    first = LateLedger(clock=clock, visibility_seconds=delay, repeats=3)
    log = StudyLog(first, None)
    space = tw.Space(x=tw.Float(0, 1)).to_json()
    log.append(facts.created(space=space, objectives=["min loss"], seed=0, versions={}))
    clock.now += delay
    others = [StudyLog(LateLedger(of=first, visibility_seconds=delay, repeats=3), None) for _ in range(count - 1)]
    return [log, *others], clock


@thorough
@given(data=st.data(), delay=st.sampled_from([0.0, 1.0, 60.0]))
def test_books_that_hear_late_share_out_the_work(data, delay):
    """No number is proposed twice, no trial told twice, however late they hear of each other; then they agree."""
    team, clock = books(delay, 3)
    mine = {id(log): [] for log in team}
    for _ in range(data.draw(st.integers(0, 25))):
        log = data.draw(st.sampled_from(team))
        act = data.draw(st.sampled_from(["propose", "end", "read", "wait"]))
        if act == "propose":
            number = log.claims.number(12)
            if number is not None:
                configuration = Configuration(params={"x": 0.5}, key=str(number), number=number)
                log.append(log.proposal(number, configuration))
                mine[id(log)].append(number)
        elif act == "end" and mine[id(log)]:
            number = mine[id(log)].pop()
            log.append(facts.finished(number, 1, reason="completed", values={"loss": 1.0}, wall_seconds=0.0))
        elif act == "read":
            log.refresh()
        else:
            clock.now += delay / 2
    clock.now += delay
    for log in team:
        log.refresh()
    assert all(log.state == team[0].state for log in team)
    proposals = [r for r in team[0].replay({"proposed"}) if r.kind == "proposed"]
    assert len({record.trial for record in proposals}) == len({(r.writer, r.seq) for r in proposals})
    state = team[0].state
    assert state.counts[Status.PROPOSED] == sum(map(len, mine.values()))
    assert state.results == len(state.trials) - state.counts[Status.PROPOSED]


def test_repetitions_are_delivered():
    """The fault can be seen: some reads do begin before their cursor, and none leaves anything out."""
    first = LateLedger()
    first.append([Record(kind="mark", body={"value": i}) for i in range(10)])
    reader = LateLedger(of=first, repeats=4)
    _, cursor = reader.read()
    repeated = [len(reader.read(cursor)[0]) for _ in range(20)]
    assert set(repeated) == {0, 1, 2, 3, 4}
    first.append([Record(kind="mark", body={"value": 10})])
    for most in itertools.chain([None], range(1, 5)):
        records, _ = reader.read(cursor, most=most)
        assert records[-1].body == {"value": 10}


def _run(log, number):
    """Propose a trial and start it."""
    log.append(log.proposal(number, Configuration(params={"x": 0.5}, key=str(number), number=number)))
    log.append(facts.started(number, 1, slot="0:0", devices=[], resumed_epoch=0))


def _failure(number):
    return facts.failed(number, 1, failure="exception", message="no", wall_seconds=0.0)


def test_a_failure_is_written_unless_another_has_taken_the_trial_over():
    """By whoever comes first: both claim the next lease, and one that was held dead is seen to live."""
    (ours, theirs), _ = books(0.0, 2)
    for number in (0, 1):
        assert ours.claims.number(2) == number
        _run(ours, number)
    theirs.append(facts.joined(Writer.here(), session=2))
    theirs.refresh()
    assert theirs.ledger.claim("lease/0/2", theirs.ledger.writer) == theirs.ledger.writer
    assert ours.claims.settle(_failure(0)).kind == "lost"
    assert ours.claims.settle(_failure(1)).kind == "failed"
    assert theirs.ledger.claim("lease/1/2", theirs.ledger.writer) == ours.ledger.writer
    finished = facts.finished(0, 1, reason="completed", values={"loss": 1.0}, wall_seconds=0.0)
    assert ours.claims.settle(finished) is finished


def test_whoever_seems_dead_is_looked_at_again_before_its_claim_is_passed_over():
    (ours, theirs), _ = books(0.0, 2)
    assert ours.claims.number(2) == 0
    _run(ours, 0)
    theirs.refresh()
    theirs.claims._dead.add(ours.ledger.writer)
    theirs.claims._silent.add(ours.ledger.writer)
    theirs.claims._looked[ours.ledger.writer] = time.monotonic(), True
    theirs.claims._liveness.is_silent(ours.ledger.writer, 0)
    assert ours.claims.settle(_failure(0)).kind == "failed"
    assert theirs.claims.lease(0) is None

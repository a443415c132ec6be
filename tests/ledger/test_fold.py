"""The fold: independent of interleaving and repetition, incremental, total on prefixes; and its rules one by one."""

import pickle
from collections import Counter

import pytest
from histories import Scribe, histories, interleavings
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.errors import LedgerTooNew
from trainwright.ledger import Record, State, Status, Writer, facts, fold
from trainwright.ledger.record import FORMAT
from trainwright.ledger.trials import MAX_LOSSES, MAX_RESTARTS

thorough = settings(max_examples=80)


@thorough
@given(data=st.data(), streams=histories())
def test_interleaving_and_repetition_change_nothing(data, streams):
    expected = fold(record for stream in streams.values() for record in stream)
    assert fold(data.draw(interleavings(streams))) == expected


@thorough
@given(data=st.data(), streams=histories())
def test_fold_goes_on_where_it_stopped(data, streams):
    records = data.draw(interleavings(streams))
    cut = data.draw(st.integers(0, len(records)))
    half = pickle.loads(pickle.dumps(fold(records[:cut])))
    assert fold(records[cut:], into=half) == fold(records)


@thorough
@given(data=st.data(), streams=histories())
def test_every_prefix_folds_and_its_counts_are_a_recount(data, streams):
    state = State()
    for record in data.draw(interleavings(streams)):
        state.apply(record)
        recount = Counter(trial.status for trial in state.trials.values())
        assert state.counts == {status: recount[status] for status in Status}
        assert state.results == sum(trial.has_result for trial in state.trials.values())
        for trial in state.trials.values():
            assert trial.status is trial.settled()
            assert trial.has_result or not trial.values
            assert trial.epoch == max(trial.reports, default=0)
            assert (trial.failure is not None) == (trial.status is Status.FAILED)


@thorough
@given(data=st.data(), streams=histories())
def test_a_lost_stream_harms_nobody(data, streams):
    """A writer whose journal is gone, or begins late, leaves a state that still folds."""
    name = data.draw(st.sampled_from(sorted(streams)))
    cut = data.draw(st.integers(0, len(streams[name])))
    partial = {**streams, name: streams[name][cut:]}
    state = fold(data.draw(interleavings(partial, repeated=False)))
    assert sum(state.counts.values()) == len(state.trials)


@thorough
@given(data=st.data(), streams=histories())
def test_ended_hash_tells_sets_of_ended_trials_apart(data, streams):
    """The hash that proposals keep does not depend on the order in which trials ended."""
    records = data.draw(interleavings(streams))
    state = fold(records)
    others = fold(data.draw(interleavings(streams)))
    assert state.ended_hash == others.ended_hash
    assert (state.ended_hash == 0) == (not any(trial.status.ended for trial in state.trials.values()))


# The rules, one example each.


def start(trial=0, lease=1, resumed_epoch=0):
    return facts.started(trial, lease, slot="0", devices=["cpu:0"], resumed_epoch=resumed_epoch)


def report(loss, *, epoch=1, lease=1, trial=0):
    return facts.reported(trial, lease, epoch=epoch, step=None, metrics={"loss": loss}, wall_seconds=1.0)


def finish(loss=1.0, *, lease=1, reason="completed", trial=0):
    values = {} if reason == "cancelled" else {"loss": loss}
    return facts.finished(trial, lease, reason=reason, values=values, wall_seconds=1.0)


def fail(lease=1, trial=0):
    return facts.failed(trial, lease, failure="exception", message="no", traceback="Traceback ...")


def lose(lease=1, *, blame=False, trial=0):
    return facts.lost(trial, lease, why="gone", blame=blame)


def save(lease=1, *, step, epoch=0, trial=0):
    return facts.checkpointed(trial, lease, epoch=epoch, path="p", bytes=1, digest="d", step=step)


def pause(lease=1, *, reason="preempted", trial=0):
    return facts.paused(trial, lease, reason=reason, epoch=1, values={"loss": 2.0}, wall_seconds=1.0)


def told(*records):
    """Return trial 0 after records of one writer, and check that the reverse order of writers gives the same."""
    one = fold(Scribe("a").writes(*records))
    scribes = [Scribe(chr(ord("a") + i)) for i in range(len(records))]
    stamped = [scribe.writes(record)[0] for scribe, record in zip(scribes, records, strict=True)]
    for trial in (fold(stamped).trials[0], fold(stamped[::-1]).trials[0]):
        assert trial.status is one.trials[0].status
        assert trial.values == one.trials[0].values
    return one.trials[0]


def test_what_need_not_be_given_is_empty():
    """A failure without a traceback, and a checkpoint that was not timed."""
    assert facts.failed(1, 1, failure="exception", message="no").body == {
        "failure": "exception", "message": "no", "traceback": "", "wall_seconds": 0.0,
    }  # fmt: skip
    saved = facts.checkpointed(1, 1, epoch=2, path="p", bytes=3, digest="d").body
    assert (saved["step"], saved["blocking_seconds"], saved["persist_seconds"]) == (0, 0.0, 0.0)


def test_proposed_started_and_ended():
    assert told(facts.proposed(0, params={"x": 1}, key="k", origin={}, seen=0, seen_hash="0")).status == "proposed"
    assert told(start()).status == "running"
    assert told(start(), finish(0.5)).status == "complete"
    assert told(start(), finish(0.5)).values == {"loss": 0.5}
    assert told(start(), finish(0.5, reason="stopped")).status == "stopped"
    assert told(start(), fail()).failure.traceback == "Traceback ..."


def test_one_record_of_proposal_and_start_tells_what_two_tell():
    proposal = facts.proposed(0, params={"x": 1}, key="k", origin={"by": "me"}, seen=3, seen_hash="0")
    begin = facts.started(0, 1, slot="2", devices=["cpu:0"], resumed_epoch=0)
    one, two = Scribe("a").writes(facts.begun(proposal, begin)), Scribe("a").writes(proposal, begin)
    trials = [fold([record._replace(at=1.0) for record in records]).trials[0] for records in (one, two)]
    assert trials[0] == trials[1]
    assert trials[0].status == "running"


def test_of_two_starts_of_one_lease_the_least_writer_counts():
    """Whoever was held dead and comes back has proposed the number that another took over."""
    records = [Scribe(name).writes(start())[0] for name in "ab"]
    for order in (records, records[::-1]):
        assert fold(order).trials[0].holder == "a"


def test_a_promotion_holds_a_lease_until_it_is_started():
    """Of two promotions the least writer's counts; one after the start changes no holder."""
    first, second, other = Scribe("a"), Scribe("b"), Scribe("c")
    promoted = [*first.writes(facts.promoted(0, 2, until_epoch=3)), *second.writes(facts.promoted(0, 2, until_epoch=3))]
    begun = other.writes(start(lease=2))
    proposal = Scribe("d").writes(facts.proposed(0, params={}, key="k", origin={}, seen=0, seen_hash="0"))
    for order in (promoted, promoted[::-1]):
        assert fold([*proposal, *order]).trials[0].holder == "a"
        assert fold([*proposal, *begun, *order]).trials[0].holder == "c"


def test_params_come_back_as_tuples():
    scribe = Scribe("a")
    proposal = facts.proposed(0, params={"shape": (1, 2)}, key="k", origin={}, seen=0, seen_hash="0")
    record = scribe.writes(proposal)[0]
    (read,) = Record.of_lines([record.line()[:-1]])
    assert fold([read]).trials[0].params == fold([record]).trials[0].params == {"shape": (1, 2)}


def test_a_higher_lease_overrides_a_lower_one():
    """For reports, checkpoints and ends, whichever is read first; equal epochs only."""
    first, second = Scribe("a"), Scribe("b")
    first.writes(start(), report(1.0), report(2.0, epoch=2), finish(2.0))
    first.writes(facts.checkpointed(0, 1, epoch=1, path="old", bytes=1, digest=""))
    second.writes(start(lease=2), report(3.0, lease=2), finish(3.0, lease=2))
    second.writes(facts.checkpointed(0, 2, epoch=1, path="new", bytes=1, digest=""))
    for records in (first.stream + second.stream, second.stream + first.stream):
        trial = fold(records).trials[0]
        assert {epoch: r.metrics["loss"] for epoch, r in trial.reports.items()} == {1: 3.0, 2: 2.0}
        assert trial.checkpoints[1].path == "new"
        assert trial.values == {"loss": 3.0}


def test_the_same_epoch_again_replaces_the_checkpoint():
    scribe = Scribe("a")
    for path in ("first", "second"):
        scribe.writes(facts.checkpointed(0, 1, epoch=1, path=path, bytes=1, digest=path))
    assert fold(scribe.stream).trials[0].checkpoints[1].digest == "second"


def test_any_result_beats_any_failure():
    assert told(start(), finish(), start(lease=2), fail(lease=2)).status == "complete"
    assert told(start(), fail(), start(lease=2), finish(lease=2)).status == "complete"
    assert told(start(), fail(), finish()).status == "complete"  # of one lease too


def test_of_two_results_of_one_lease_the_least_writer_counts():
    for names in ("ab", "ba"):
        records = [Scribe(name).writes(finish(float(ord(name))))[0] for name in names]
        assert fold(records).trials[0].values == {"loss": float(ord("a"))}
    assert fold(Scribe("a").writes(finish(1.0), finish(2.0))).trials[0].values == {"loss": 1.0}


def test_a_late_result_completes_a_lost_trial():
    assert told(start(), lose()).status == "lost"
    assert told(start(), lose(), finish(0.5)).values == {"loss": 0.5}
    assert told(start(), lose(), finish(0.5), finish(0.5)).status == "complete"
    assert told(start(), lose(), start(lease=2), finish(0.5)).status == "complete"  # though its successor runs
    assert told(start(), lose(), start(lease=2), finish(0.5), finish(0.6, lease=2)).values == {"loss": 0.6}


def test_a_loss_counts_only_for_the_highest_lease_without_an_end():
    assert told(start(), lose(), start(lease=2)).status == "running"
    assert told(start(), fail(), lose()).status == "failed"
    assert told(start(), pause(), lose()).status == "paused"
    assert told(start(), start(lease=2), lose(lease=1), lose(lease=2)).status == "lost"


def test_cancelled_carries_no_result():
    trial = told(start(), finish(reason="cancelled"))
    assert trial.status == "abandoned"
    assert trial.values == {}
    assert not trial.has_result
    assert told(start(), finish(), start(lease=2), finish(lease=2, reason="cancelled")).status == "complete"
    assert told(start(), finish(reason="cancelled"), start(lease=2)).status == "running"


def test_blamed_losses_abandon_a_trial_and_others_do_not():
    leases = range(1, MAX_RESTARTS + 2)
    innocent = [record for lease in leases for record in (start(lease=lease), lose(lease))]
    assert told(*innocent).status == "lost"
    blamed = [record for lease in leases for record in (start(lease=lease), lose(lease, blame=True))]
    assert told(*blamed[:-2]).status == "lost"
    assert told(*blamed).status == "abandoned"
    assert told(*blamed, finish(lease=2)).status == "complete"  # a late result counts even then
    assert told(*blamed[:-2], fail(lease=1), *blamed[-2:]).status == "lost"  # a lease with an end was not lost


def test_losses_that_are_nobodys_fault_abandon_a_trial_that_gets_nowhere():
    """Twenty runs without a new epoch or a later checkpoint; one that gets further is forgiven what was before."""
    leases = range(1, MAX_LOSSES + 1)
    stuck = [record for lease in leases for record in (start(lease=lease), lose(lease))]
    assert told(*stuck[:-2]).status == "lost"
    assert told(*stuck).status == "abandoned"
    assert told(*stuck, finish(lease=2)).status == "complete"  # a late result counts even then
    assert told(*stuck[:-2], pause(lease=1), *stuck[-2:]).status == "lost"  # a lease with an end was not lost
    assert told(*stuck, report(1.0, lease=1)).status == "abandoned"  # all of them came after it
    assert told(*stuck, report(1.0, lease=2)).status == "lost"  # it is read late, and counts all the same
    assert told(report(1.0), *stuck, report(1.0, lease=2)).status == "abandoned"  # an epoch that was reported before
    assert told(*stuck, save(lease=2, step=5)).status == "lost"


def lost_in_turn(progress, blames):
    """Return the records of leases that were lost one after another, after so many new epochs or steps each."""
    epoch = step = 0
    for lease, ((epochs, steps), blame) in enumerate(zip(progress, blames, strict=True), start=1):
        yield start(lease=lease, resumed_epoch=epoch)
        for number in range(epoch + 1, epoch + epochs + 1):
            yield report(1.0, epoch=number, lease=lease)
        epoch, step = epoch + epochs, step + steps
        if steps:
            yield save(lease=lease, epoch=epoch, step=step)
        yield lose(lease, blame=blame)


some = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any)
none = st.just((0, 0))


@thorough
@given(data=st.data(), allocations=st.integers(1, 120))
def test_a_trial_that_gets_on_is_never_given_up(data, allocations):
    """Its node or its process dies in each allocation, up to twice between two epochs (or checkpoints)."""
    waits = data.draw(st.lists(st.integers(0, 2), min_size=allocations, max_size=allocations))
    progress = [step for wait in waits for step in (data.draw(some), *[(0, 0)] * wait)]
    blames = [data.draw(st.booleans()) for _ in progress]
    state = State()
    for record in Scribe("a").writes(*lost_in_turn(progress, blames)):
        state.apply(record)
        assert state.trials[0].status is not Status.ABANDONED


@thorough
@given(data=st.data())
def test_a_trial_that_gets_nowhere_is_given_up(data):
    """After whatever it did before: at the fourth death of its own, at the twentieth of its nodes at the latest."""
    progress = data.draw(st.lists(some | none, max_size=30))
    own = data.draw(st.booleans())
    end = [(0, 0)] * (MAX_RESTARTS + 1 if own else MAX_LOSSES)
    blames = [data.draw(st.booleans()) for _ in progress] + [own] * len(end)
    trial = fold(Scribe("a").writes(*lost_in_turn(progress + end, blames))).trials[0]
    assert trial.status is Status.ABANDONED


def test_paused_at_a_rung_has_a_result_and_preempted_has_none():
    rung, preempted = told(start(), pause(reason="rung")), told(start(), pause())
    assert (rung.status, rung.has_result, rung.values) == ("paused", True, {"loss": 2.0})
    assert (preempted.status, preempted.has_result, preempted.preempted) == ("paused", False, True)
    assert told(start(), pause(), start(lease=2)).status == "running"


def test_allowed_numbers_grow_with_failures_only():
    scribe = Scribe("a")
    scribe.writes(start(trial=0), fail(trial=0), start(trial=1), finish(trial=1), start(trial=2), lose(trial=2))
    scribe.writes(start(trial=3), finish(trial=3, reason="cancelled"), start(trial=4), pause(trial=4))
    state = fold(scribe.stream)
    assert state.allowed(8) == 8 + 2  # the failed and the abandoned one
    assert state.results == 1


def test_of_two_proposals_or_creations_the_least_writer_counts():
    records = []
    for name in "ba":
        scribe = Scribe(name)
        scribe.writes(facts.proposed(0, params={"by": name}, key=name, origin={}, seen=0, seen_hash="0"))
        scribe.writes(facts.created(space={"by": name}, objectives=["min loss"], seed=ord(name), versions={}))
        records.append(scribe.stream)
    for order in (records, records[::-1]):
        state = fold(record for stream in order for record in stream)
        assert state.trials[0].params == {"by": "a"}
        assert state.trials[0].writer == "a"
        assert (state.space, state.seed) == ({"by": "a"}, ord("a"))


def test_writers_join_and_leave():
    scribe = Scribe("a")
    scribe.writes(facts.joined(Writer.here(), session=3))
    assert fold(scribe.stream).writers["a"] == Writer.here()
    assert fold(scribe.stream).sessions == 3
    scribe.writes(facts.left())
    assert fold(scribe.stream).writers["a"].left


def test_unknown_kinds_and_fields_are_kept_out_of_the_way():
    scribe = Scribe("a")
    first, second = Record(kind="resized", body={"to": 2}, trial=0), Record(kind="left", body={"why": "new field"})
    state = fold(scribe.writes(first, second, first))
    assert state.unknown_kinds == {"resized": 2}
    assert state.trials == {}


def test_numbers_spelled_out_are_numbers_again():
    """Journals hold NaN and infinities as strings."""
    (record,) = Scribe("a").writes(report(float("inf")))
    (read,) = Record.of_lines([record.line()[:-1]])
    assert read.body["metrics"] == {"loss": "inf"}
    assert fold([read]) == fold([record])


def test_a_record_of_a_newer_format_is_refused():
    record = Record(kind="created", v=FORMAT + 2)
    with pytest.raises(LedgerTooNew, match=rf"format {FORMAT + 2}; this version reads up to {FORMAT}; upgrade"):
        fold([record])
    with pytest.raises(LedgerTooNew, match="upgrade trainwright"):
        Record.of_lines([record.line()[:-1]])


def test_who_left_has_left_whenever_it_is_read_that_it_had_joined():
    """Also under the names that it had before writes failed."""
    one, other = Scribe("one"), Scribe("other")
    host = Writer(host="node", boot="", pid=1, process_start="1")
    joined = other.writes(facts.joined(host, session=0))
    left = one.writes(facts.left(also=["other"]))
    for records in (joined + left, left + joined):
        assert fold(records).writers["other"].left
    assert not fold(joined).writers["other"].left

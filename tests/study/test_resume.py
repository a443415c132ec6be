"""Resume is replay: same seed, same records; an interrupted run, gone on with, equals the one that was not."""

import itertools
import json
import shutil
from dataclasses import replace

import pytest
from small_study import Momentum

import trainwright as tw
from trainwright.errors import LedgerError
from trainwright.ledger import DirectoryLedger, Writer, facts
from trainwright.study.study_log import StudyLog

SPACE = tw.Space(x=tw.Float(0.0, 1.0), k=tw.Int(1, 9), kind=tw.Choice("a", "b"))
SEARCHERS = [tw.RandomSearcher(), tw.QuasiRandomSearcher(), tw.ForestSearcher(initial=3)]
RULE = tw.ASHA(max_epochs=9)


class Interrupt:
    """A training function that is interrupted at its `at`-th report, by Ctrl-C or a full disk, before or after it."""

    def __init__(self, at=None, *, after=False):
        self.reports = itertools.count()
        self.at = at
        self.after = after
        self.done = []

    def __call__(self, trial):
        for epoch in trial.epochs():
            now = next(self.reports) == self.at
            if now and not self.after:
                raise KeyboardInterrupt
            self.done.append((trial.number, epoch))
            try:
                trial.report(loss=abs(trial.params["x"] - 0.4) + (trial.params["kind"] == "a") / epoch)
            finally:  # though the report may have ended the trial
                if now:
                    raise KeyboardInterrupt


def run(study, train, trials=8, **settings):
    settings = {"scheduler": RULE, "engine": tw.Local(workers=0), "progress": False} | settings
    study.run(train, trials=trials, **settings)


def make(directory, searcher=SEARCHERS[0], seed=7):
    return tw.Study(SPACE, objectives="min loss", directory=directory, seed=seed, searcher=searcher)


_OF_THIS_RUN = {"setup_seconds", "traceback", "wall_seconds"}


def records(directory):
    """Return what the journals of a study say, without times and identities."""
    found, _ = DirectoryLedger(directory / "ledger").read(None)
    found.sort(key=lambda record: (record.at, record.seq))
    lines = []
    for record in found:
        if record.kind != "joined":
            body = {name: value for name, value in record.body.items() if name not in _OF_THIS_RUN}
            lines.append((record.kind, record.trial, record.lease, json.dumps(body)))
    return lines


def essence(state):
    """Return what must not depend on interruptions: proposals, curves, results, decisions."""
    trials = {
        number: (
            trial.params,
            trial.key,
            dict(trial.origin),
            {epoch: dict(report.metrics) for epoch, report in sorted(trial.reports.items())},
            trial.status,
            trial.values,
        )
        for number, trial in state.trials.items()
    }
    decisions = {place: replace(decision, at=0.0, writer="") for place, decision in state.decisions.items()}
    return trials, decisions, state.counts, state.ended_hash


@pytest.mark.parametrize("searcher", SEARCHERS, ids=lambda searcher: type(searcher).__name__)
def test_one_worker_reruns_to_the_same_records(tmp_path, searcher):
    """Byte for byte, but for times and the names of writers; another seed gives others."""
    for name, seed in (("one", 7), ("two", 7), ("other", 8)):
        with make(tmp_path / name, searcher, seed) as study:
            run(study, Interrupt())
    assert records(tmp_path / "one") == records(tmp_path / "two")
    assert records(tmp_path / "one") != records(tmp_path / "other")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("searcher", SEARCHERS, ids=lambda searcher: type(searcher).__name__)
def test_an_interrupted_run_goes_on_to_the_same_end(tmp_path, searcher, after):
    """Interrupted at each of many places, opened again and gone on with: the same study as without."""
    with make(tmp_path / "whole", searcher) as study:
        run(study, whole := Interrupt())
        expected = essence(study.state)
    for at in range(0, len(whole.done), 3):
        directory = tmp_path / f"cut-{at}"
        with make(directory, searcher) as study, pytest.raises(KeyboardInterrupt):
            run(study, Interrupt(at, after=after))
        with tw.Study.open(directory, searcher=searcher) as study:
            assert study.state.counts["paused"] == 1
            run(study, Interrupt())
            assert essence(study.state) == expected, at
        shutil.rmtree(directory)


def test_interrupted_many_times(tmp_path):
    """Even at each third report, a new process each time."""
    with make(tmp_path / "whole") as study:
        run(study, Interrupt())
        expected = essence(study.state)
    for _ in range(100):
        with make(tmp_path / "cut") as study:
            try:
                run(study, Interrupt(12))  # one trial may take nine reports, and starts anew without checkpoints
            except KeyboardInterrupt:
                continue
            assert essence(study.state) == expected
            break
    else:
        pytest.fail("it never came to its end")


def test_gone_on_with_in_the_same_process(tmp_path):
    """Ctrl-C in a notebook, then the cell again."""
    with make(tmp_path / "whole") as study:
        run(study, Interrupt())
        expected = essence(study.state)
    for directory in (None, tmp_path / "cut"):
        study = make(directory)
        for at in (5, 3, 11):
            with pytest.raises(KeyboardInterrupt):
                run(study, Interrupt(at))
        run(study, Interrupt())
        assert essence(study.state) == expected


def test_asking_goes_on_where_it_stopped(tmp_path):
    """Proposals after a resume are those of a process that never ended."""
    searcher = SEARCHERS[2]
    whole, cut = make(None, searcher), make(tmp_path / "cut", searcher)
    for number in range(12):
        configurations = [study.ask() for study in (whole, cut)]
        assert configurations[0].params == configurations[1].params
        for study, configuration in zip((whole, cut), configurations, strict=True):
            study.tell(configuration, loss=(configuration["x"] - 0.3) ** 2)
        if number % 4 == 3:
            cut.close()
            cut = tw.Study.open(tmp_path / "cut", searcher=searcher)


class Checkpointed(Interrupt):
    """The same with a model, whose checkpoints let a trial go on within itself."""

    def __call__(self, trial):
        import torch

        weight = torch.nn.Linear(1, 1)
        run = trial.prepare(weight, Momentum(weight.parameters(), 0.1))
        for epoch in trial.epochs():
            now = next(self.reports) == self.at
            if now and not self.after:
                raise KeyboardInterrupt
            self.done.append((trial.number, epoch))
            run.optimizer.zero_grad(set_to_none=True)
            loss = (run.model(torch.rand(4, 1)) - 1).square().mean()
            loss.backward()
            run.optimizer.step()
            try:
                trial.report(loss=loss.item())
            finally:
                if now:
                    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["before the report", "after the report", "between checkpoint and report"])
def test_with_checkpoints_every_epoch_is_done_once(tmp_path, monkeypatch, torch, where):
    """Interrupted anywhere, also after a trial's last report: no epoch done is done again, all losses are the same."""
    settings = {"trials": 3, "scheduler": tw.FixedEpochs(3)}
    with make(tmp_path / "whole") as study:
        run(study, whole := Checkpointed(), **settings)
        expected = essence(study.state)
    real = StudyLog.append
    for at in range(len(whole.done)):
        reports = itertools.count()

        def append(log, *records, at=at, reports=reports):
            if any(record.kind == "reported" for record in records) and next(reports) == at:
                raise KeyboardInterrupt
            real(log, *records)

        with make(tmp_path / f"cut-{at}") as study, monkeypatch.context() as patch:
            between = where == "between checkpoint and report"
            if between:
                patch.setattr(StudyLog, "append", append)
            with pytest.raises(KeyboardInterrupt):
                run(study, cut := Checkpointed(None if between else at, after=where == "after the report"), **settings)
        with make(tmp_path / f"cut-{at}") as study:
            run(study, rest := Checkpointed(), **settings)
            assert cut.done + rest.done == whole.done
            assert essence(study.state) == expected


# Ends that a dying driver leaves behind.


def dying(directory):
    """Return a ledger that writes as a driver would that has died since: its process is none of the living."""
    ledger = DirectoryLedger(directory / "ledger")
    ledger.append([facts.joined(replace(Writer.here(), process_start="1"), session=2)])
    return ledger


def proposal(study, number):
    configuration = study.space.configuration_of({"x": 0.25, "k": 3, "kind": "b"})
    return facts.proposed(
        number, params=configuration.params, key=configuration.key, origin={"searcher": "x"}, seen=0, seen_hash="0"
    )


def test_a_number_claimed_and_never_proposed_is_claimed_again(tmp_path):
    """Its owner died in between: no hole stays in the budget."""
    study = make(tmp_path / "study")
    ledger = dying(study.directory)
    for number in (0, 2):
        assert ledger.claim(f"number/{number}/0", ledger.writer) == ledger.writer
    assert ledger.claim("number/2/0", "me") == ledger.writer
    study.refresh()
    run(study, Interrupt(), trials=4)
    assert sorted(study.state.trials) == [0, 1, 2, 3]


def test_a_number_of_the_living_is_left_to_them(tmp_path):
    study, other = make(tmp_path / "study"), make(tmp_path / "study")
    other.ask()
    run(study, Interrupt(), trials=3)
    assert sorted(study.state.trials) == [0, 1, 2]
    assert study.state.counts["proposed"] == 1


def test_a_proposal_of_the_dead_is_run(tmp_path):
    study = make(tmp_path / "study")
    dying(study.directory).append([proposal(study, 0)])
    study.refresh()
    run(study, Interrupt(), trials=2)
    assert study.trials[0].params == {"x": 0.25, "k": 3, "kind": "b"}
    assert study.state.counts["complete"] + study.state.counts["stopped"] == 2


def test_a_running_trial_of_the_dead_is_lost_and_run_again(tmp_path):
    study = make(tmp_path / "study")
    ledger = dying(study.directory)
    started = facts.started(0, 1, slot="0", devices=["cpu:0"], resumed_epoch=0)
    ledger.append([proposal(study, 0), started])
    ledger.claim("lease/0/1", ledger.writer)
    study.refresh()
    assert study.state.counts["running"] == 1
    run(study, Interrupt(), trials=1)
    trial = study.trials[0]
    assert (trial.status, sorted(trial.leases), trial.leases[1].lost) == ("complete", [1, 2], True)
    assert trial.blamed_losses == 0


def test_a_lease_claimed_and_never_started_is_taken_over(tmp_path):
    study = make(tmp_path / "study")
    ledger = dying(study.directory)
    ledger.append([proposal(study, 0)])
    ledger.claim("lease/0/1", ledger.writer)
    study.refresh()
    run(study, Interrupt(), trials=1)
    assert sorted(study.trials[0].leases) == [2]


def test_a_verdict_whose_end_was_not_written_stands(tmp_path):
    """Judged, told to stop, and the driver died: the trial is ended by its report, no epoch is run again."""
    study = make(tmp_path / "study")
    run(study, Interrupt(), trials=1)
    ledger = dying(study.directory)
    report = facts.reported(1, 1, epoch=1, step=None, metrics={"loss": 100.0}, wall_seconds=1.0)
    started = facts.started(1, 1, slot="0", devices=["cpu:0"], resumed_epoch=0)
    ledger.claim("number/1/0", ledger.writer)
    ledger.append([proposal(study, 1), started, report])
    study.close()
    study = make(tmp_path / "study")
    run(study, again := Interrupt(), trials=2)
    assert again.done == []
    assert (study.trials[1].status, study.trials[1].values) == ("stopped", {"loss": 100.0})


def test_another_hosts_driver_is_waited_for_until_it_is_known_to_be_dead(tmp_path, monkeypatch):
    """Its beats do not move for `lease_seconds` on our clock: then its trial, its proposal and its number are ours."""
    monkeypatch.setattr("trainwright.ledger.DirectoryLedger.lease_seconds", 1.0)
    study = make(tmp_path / "study")
    ledger = DirectoryLedger(study.directory / "ledger")
    ledger.append([facts.joined(Writer(host="elsewhere", boot="b", pid=1, process_start="1"), session=1)])
    for number in (0, 1, 2):
        ledger.claim(f"number/{number}/0", ledger.writer)
    ledger.append([proposal(study, 0), facts.started(0, 1, slot="0", devices=["cpu:0"], resumed_epoch=0)])
    ledger.append([proposal(study, 1)])
    study.refresh()
    run(study, Interrupt(), trials=4)
    assert sorted(study.state.trials) == [0, 1, 2, 3]
    assert study.state.results == 4
    assert study.trials[0].leases[1].lost


def test_another_hosts_live_driver_keeps_its_trials(tmp_path, monkeypatch):
    """As soon as a beat is seen there is nothing to wait for: the run ends and leaves the rest to it."""
    monkeypatch.setattr("trainwright.ledger.DirectoryLedger.lease_seconds", 3600.0)
    study = make(tmp_path / "study")
    ledger = DirectoryLedger(study.directory / "ledger")
    ledger.append([facts.joined(Writer(host="elsewhere", boot="b", pid=1, process_start="1"), session=1)])
    ledger.claim("number/0/0", ledger.writer)
    ledger.append([proposal(study, 0), facts.started(0, 1, slot="0", devices=["cpu:0"], resumed_epoch=0)])
    study.refresh()

    def train(trial):
        ledger.heartbeat()
        return 1.0

    run(study, train, trials=2)
    assert study.trials[0].status == "running"
    assert study.trials[1].status == "complete"


# Less or damaged than expected.


def test_a_smaller_budget_leaves_interrupted_trials_alone(tmp_path):
    study = make(tmp_path / "study")
    with pytest.raises(KeyboardInterrupt):
        run(study, Interrupt(25), trials=20)
    results = study.state.results
    assert results > 2
    run(study, Interrupt(), trials=results)
    assert study.state.results == results
    assert study.state.counts["paused"] == 1
    run(study, Interrupt(), trials=results + 1)
    assert study.state.results == results + 1
    assert study.state.counts["paused"] == 0


@pytest.mark.parametrize("kind", ["proposed", "started", "reported", "finished", "decided", "joined", "left"])
def test_a_study_with_any_damaged_record_goes_on(tmp_path, kind):
    """The record is named, and the budget is met all the same."""
    for _ in range(2):  # a trial that is gone on with has a start of its own
        with make(tmp_path / "study") as study, pytest.raises(KeyboardInterrupt):
            run(study, Interrupt(9), trials=20)
    for path in (study.directory / "ledger" / "journal").iterdir():
        data = path.read_bytes()
        places = [data.find(f'"kind":"{kind}"'.encode()), data.rfind(f'"kind":"{kind}"'.encode())]
        for place in places:
            data = data[: place + 9] + b"?" + data[place + 10 :]
        path.write_bytes(data)
    with tw.Study.open(tmp_path / "study", searcher=SEARCHERS[0]) as study:
        assert study.dropped
        assert all("its checksum does not hold" in sentence for sentence in study.dropped)
        study.tell(study.ask(), loss=1.0)
        with pytest.warns(UserWarning, match="the ledger cannot be read as a whole"):
            run(study, Interrupt(), trials=20)
        assert study.state.results >= 20
        assert study.state.counts["failed"] == 0  # a trial whose parameters are lost is not run without them
        assert study.best is not None


def test_a_driver_that_cannot_write_ends_and_loses_nothing(tmp_path, monkeypatch):
    """Disk full in the middle of a run: one clear error; with room again the same study goes on."""
    import os

    real = os.write
    calls = itertools.count()

    def write(handle, data):
        if next(calls) >= 30:
            raise OSError(28, "No space left on device")
        return real(handle, data)

    study = make(tmp_path / "study")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(
            LedgerError, match=r"no space left on device; [\d,]+ bytes are free there; mend that and run"
        ):
            run(study, Interrupt(), trials=8)
    done = {trial.number: trial.values for trial in study.trials if trial.status.ended}
    assert done
    for again in (study, make(tmp_path / "study")):
        run(again, Interrupt(), trials=8)
        assert again.state.results == 8
        assert done.items() <= {trial.number: trial.values for trial in again.trials}.items()


def test_the_best_of_earlier_runs_is_still_the_best(tmp_path, capsys):
    study = make(tmp_path / "study")
    run(study, Interrupt(), trials=6)
    best = study.best
    capsys.readouterr()
    run(study, Interrupt(), trials=7, progress=True)
    ended = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert len(ended) == 1
    assert f"(trial {min(best, study.best, key=lambda t: t.values['loss']).number})" in ended[0]


def test_a_trial_costs_two_records(tmp_path):
    """All workers read all records: proposal and start are one, the end is the other."""
    study = make(tmp_path / "study")
    study.run(lambda trial: trial.params["x"], trials=6, engine=tw.Local(workers=0), progress=False)
    assert [line[:3] for line in records(study.directory) if line[1] is not None] == [
        (kind, number, 1) for number in range(6) for kind in ("proposed", "finished")
    ]


def test_a_trial_costs_one_claim(tmp_path):
    """Whoever claims a number has the first lease too: on a shared file system each claim is slow."""
    study = make(tmp_path / "study")
    run(study, Interrupt(), trials=6)
    claims = [path.name for path in (study.directory / "ledger" / "claims").rglob("*") if path.is_file()]
    assert len(claims) == len(study.trials)

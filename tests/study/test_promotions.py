"""Rules that pause and promote, in real studies: as without training, in teams, and whoever is killed when."""

import itertools
import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import small_study
from scripts import Forked

import trainwright as tw
from trainwright import plugins
from trainwright.errors import ScheduleError
from trainwright.ledger import DirectoryLedger, Status, Writer, facts
from trainwright.ledger.objectives import violation_of
from trainwright.study.claims import Claims
from trainwright.study.driver.driver import Driver
from trainwright.testing.rule import play

SPACE = tw.Space(x=tw.Float(0.0, 1.0))
HERE = tw.Local(workers=0)
LOSSES = np.random.default_rng(7).integers(0, 40, size=(256, 32)) / 8  # by trial and epoch; ties are common
TRIALS = 14
SINGLE = [
    tw.ASHA(max_epochs=9, kind="promotion"),
    tw.ASHA(max_epochs=8, eta=2, kind="promotion"),
    tw.IEpoch(top_k=3, max_epochs=9, epochs=2),
    tw.SuccessiveHalving(n=9, max_epochs=9),
    tw.Hyperband(max_epochs=8, eta=2, kind="promotion"),
    tw.Hyperband(max_epochs=9, kind="promotion"),
    tw.PASHA(max_epochs=16, min_epochs=1, eta=2),
    tw.AnyOf(tw.IEpoch(top_k=3, max_epochs=9), tw.Median(min_epochs=2)),
]
SEVERAL = [
    tw.MultiObjectiveASHA(max_epochs=9, kind="promotion"),
    tw.MultiObjectiveASHA(max_epochs=8, eta=2, kind="promotion"),
]
pytestmark = pytest.mark.timeout(600)
names = {"ids": lambda rule: type(rule).__name__}


def loss(number, epoch):
    return float(LOSSES[number, epoch])


def train(trial):
    """Report losses that number and epoch tell; nothing is saved, so each run begins at epoch 1."""
    for epoch in trial.epochs():
        trial.report(loss=loss(trial.number, epoch), second=loss(trial.number + 128, epoch))


def make(directory=None, objectives="min loss", **settings):
    searcher = settings.pop("searcher", tw.RandomSearcher())
    return tw.Study(SPACE, objectives, directory=directory, seed=1, searcher=searcher, **settings)


def run(study, rule, trials=TRIALS, engine=HERE, function=train, **settings):
    study.run(function, trials=trials, scheduler=rule, engine=engine, progress=False, **settings)


def objectives_of(rule):
    return ["min loss", "min second"] if isinstance(rule, tw.MultiObjectiveASHA) else "min loss"


def records_of(study, kind):
    return [record for record in study._log.replay({kind}) if record.kind == kind]


def promotions_of(study):
    return [(record.trial, record.body["until_epoch"]) for record in records_of(study, "promoted")]


def outcome(study):
    """Return what became of every trial."""
    return {trial.number: (trial.status, trial.epoch, trial.values) for trial in study.trials}


def check_all_promoted(study, rule, trials=TRIALS):
    """Check that all trials rest, none was promoted twice, and that a further run has nothing to do."""
    assert all(trial.has_result for trial in study.trials)
    assert study.state.results == len(study.trials) == trials
    promoted = promotions_of(study)
    assert len(set(promoted)) == len(promoted)
    starts = [(r.trial, r.lease) for kind in ("proposed", "started") for r in records_of(study, kind) if r.lease]
    assert len(set(starts)) == len(starts)
    before = outcome(study)
    run(study, rule, trials)
    assert outcome(study) == before
    assert promotions_of(study) == promoted


# As without training.


@pytest.mark.parametrize("rule", SINGLE + SEVERAL, **names)
def test_a_study_decides_as_the_rule_does_without_training(rule):
    """One trial at a time: the same promotions in the same order, the same trials paused, the same ends."""
    objectives = objectives_of(rule)
    count = 1 if isinstance(objectives, str) else 2
    played = play(rule, loss, trials=TRIALS, workers=1, seed=1, objectives=count)
    with make(objectives=objectives) as study:
        run(study, rule)
        assert promotions_of(study) == played.promotions
        assert {trial.number for trial in study.trials if trial.at_rung} == played.paused
        assert {trial.number for trial in study.trials if trial.status.ended} == played.ended
        assert played.promotions
        check_all_promoted(study, rule)


@pytest.mark.parametrize(
    "rule", [SINGLE[0], *(pytest.param(rule, marks=pytest.mark.slow) for rule in [*SINGLE[2:7], SEVERAL[0]])], **names
)
def test_two_processes(rule, tmp_path):
    """The order is theirs; but all are promoted that the rule wants, once each, and paused trials hold no process."""
    with make(tmp_path / "study", objectives=objectives_of(rule)) as study:
        run(study, rule, engine=tw.Local(workers=2))
        check_all_promoted(study, rule)
        assert study.state.counts[Status.COMPLETE] >= 1


def test_a_promoted_trial_goes_on_from_its_checkpoint(tmp_path, torch):
    """Each epoch of each trial is trained once, and a trial's runs end at rungs."""
    rule, begun = tw.ASHA(max_epochs=4, eta=2, kind="promotion"), []

    def saves(trial):
        model = torch.nn.Linear(1, 1)
        optimizer = small_study.Momentum(model.parameters(), 0.0)  # torch.optim takes seconds to load
        run = trial.prepare(model, optimizer, loss=lambda model, x: model(x).mean())
        for epoch in trial.epochs():
            begun.append((trial.number, epoch))
            run.step(torch.ones(1, 1))
            trial.report(loss=loss(trial.number, epoch))

    with make(tmp_path / "study") as study:
        run(study, rule, trials=5, function=saves)
        assert max(Counter(begun).values()) == 1
        assert len(begun) == sum(trial.epoch for trial in study.trials)
        twice = [trial for trial in study.trials if len(trial.leases) > 1]
        assert twice
        assert {lease.resumed_epoch for trial in twice for lease in trial.leases.values()} <= {0, 1, 2}


def test_promoted_without_a_checkpoint_is_said_once(capsys):
    with make() as study:
        study.run(train, trials=20, scheduler=SINGLE[0], engine=HERE)
    said = capsys.readouterr().err
    assert said.count("restarts at epoch 1: it had reported up to epoch") == 1
    assert "paused (0.0 s): loss=" in said


# Budgets.


def test_paused_trials_are_results():
    """They count towards the budget with their last report, and the best of all may be among them."""
    with make() as study:
        run(study, tw.IEpoch(top_k=1, max_epochs=4), function=rising)
        assert study.state.counts == {**dict.fromkeys(map(str, Status), 0), "paused": TRIALS - 1, "complete": 1}
        assert study.best.at_rung  # the promoted one became worse
        assert study.best.values == study.best.reports[1].metrics
        assert len(study.to_frame()) == TRIALS


def rising(trial):
    for epoch in trial.epochs():
        trial.report(loss=loss(trial.number, 1) + 100.0 * (epoch > 1))


@pytest.mark.parametrize("rule", SINGLE, **names)
def test_a_larger_budget_goes_on(rule):
    """Paused trials are promoted among the new ones; a run in two parts ends as the rule wants."""
    with make() as study:
        run(study, rule, trials=6)
        assert study.state.results == 6
        paused = {trial.number for trial in study.trials if trial.at_rung}
        run(study, rule, trials=20)
        check_all_promoted(study, rule, trials=20)
        assert paused


def test_asynchronous_halving_in_two_parts_is_that_in_one():
    """Nothing is judged otherwise because the study was closed in between, if the last to come were judged alike."""
    rule = tw.ASHA(max_epochs=9, kind="promotion")
    with make() as study:
        run(study, rule, trials=9)
        late = promotions_of(study)
        run(study, rule, trials=20)
        assert promotions_of(study)[: len(late)] == late


def test_a_promoted_trial_that_is_interrupted_goes_on(tmp_path):
    """It has no result until it comes to its next rung; then there are as many as before."""

    def stops(trial):
        for epoch in trial.epochs():
            if epoch == 2 and trial.assignment.lease == 2:
                raise KeyboardInterrupt
            trial.report(loss=loss(trial.number, epoch))

    rule = tw.IEpoch(top_k=2, max_epochs=4)
    with make(tmp_path / "study") as study:
        with pytest.raises(KeyboardInterrupt):
            run(study, rule, function=stops)
        assert study.state.results == TRIALS - 1
        assert sum(trial.preempted for trial in study.trials) == 1
    with make(tmp_path / "study") as study:
        run(study, rule)
        check_all_promoted(study, rule)
        assert study.state.counts[Status.COMPLETE] == 2


def test_a_promotion_that_is_not_started_goes_on(tmp_path, monkeypatch):
    """Ctrl-C between the promotion and the start: the trial waits for the next run, and is not promoted again."""
    write_start = Driver._write_start

    def interrupted(driver, number, block):
        if driver.log.state.trials.get(number) is not None and driver.log.state.trials[number].lease == 2:
            raise KeyboardInterrupt
        return write_start(driver, number, block)

    rule = tw.IEpoch(top_k=2, max_epochs=4)
    with make(tmp_path / "study") as study:
        with monkeypatch.context() as patch:
            patch.setattr(Driver, "_write_start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(study, rule)
        assert [trial.status for trial in study.trials if trial.preempted] == [Status.PAUSED]
        run(study, rule)
        check_all_promoted(study, rule)


def test_an_exhausted_space_closes_the_barrier():
    """Nothing new can come though the budget would allow it: those that are there are all."""
    space = tw.Space(x=tw.Choice(*range(6)))
    study = tw.Study(space, "min loss", seed=1, searcher=tw.GridSearcher())
    run(study, tw.IEpoch(top_k=2, max_epochs=4), trials=50)
    assert study.state.counts[Status.COMPLETE] == 2
    assert study.state.results == 6


def test_a_failed_trial_is_replaced_by_a_new_one():
    """One that fails after its promotion has no result, and the budget is of results."""

    def fails(trial):
        for epoch in trial.epochs():
            if trial.number == best and epoch == 2:
                raise ValueError("no luck")
            trial.report(loss=loss(trial.number, epoch))

    best = int(np.lexsort((np.arange(TRIALS), LOSSES[:TRIALS, 1]))[0])
    with make() as study:
        run(study, tw.IEpoch(top_k=2, max_epochs=4), function=fails)
        assert study.state.counts[Status.FAILED] == 1
        assert study.state.results == TRIALS
        assert study.state.counts[Status.COMPLETE] == 2


# What others see.


class Spy:
    """Looks at the view before each proposal."""

    def __init__(self):
        self.pending, self.told = [], []

    def ask(self, view, numbers):
        self.pending.append(len(view.pending))
        self.told.append(set(view.numbers.tolist()))
        return tw.RandomSearcher().ask(view, numbers)


def test_the_searcher_learns_of_paused_trials():
    """They are not under way, and what they have reported is told, at however low an epoch."""
    spy = Spy()
    with make(searcher=spy) as study:
        run(study, tw.ASHA(max_epochs=81, kind="promotion"))
    assert set(spy.pending) == {0}
    assert spy.told == [set(range(number)) for number in range(TRIALS)]


def test_promotions_prefer_what_keeps_the_constraints():
    """The rule hears by how much a report breaks them."""

    def sized(trial):
        for epoch in trial.epochs():
            number = trial.number
            trial.report(loss=loss(number, epoch), second=loss(number + 128, epoch), size=10.0 * (number % 2))

    with make(objectives=["min loss", "min second"], constraints="size <= 5") as study:
        run(study, tw.MultiObjectiveASHA(max_epochs=9, min_epochs=1, eta=2, kind="promotion"), function=sized)
        beyond = [trial.number for trial in study.trials if trial.epoch > 1]
        assert beyond
        assert all(number % 2 == 0 for number in beyond)


def test_violation_is_a_share_of_each_limit():
    with make(objectives="min loss <= 4", constraints=["bytes <= 8e9", "speed > 0"]) as study:
        outcomes = study.state.outcomes
    assert violation_of(outcomes, (4.0, 8e9, -1.0)) == 0.0
    assert violation_of(outcomes, (6.0, 12e9, 3.0)) == pytest.approx(0.5 + 0.5 + 3.0)


@pytest.mark.parametrize("rule", SINGLE + SEVERAL, **names)
def test_rules_are_written_and_read_as_tables(rule):
    assert plugins.make("rule", plugins.describe("rule", rule)) == rule


def test_another_rule_learns_of_all_that_was():
    """Its index is folded from earlier reports: trials that the first rule paused at a rung of its own are promoted."""
    with make() as study:
        run(study, tw.IEpoch(top_k=1, max_epochs=9), trials=6)
        before = promotions_of(study)
        rule = tw.ASHA(max_epochs=9, min_epochs=1, eta=2, kind="promotion")
        run(study, rule, trials=6)
        assert len(promotions_of(study)) > len(before)
        check_all_promoted(study, rule, trials=6)
    with make() as study:
        run(study, tw.IEpoch(top_k=1, max_epochs=9), trials=6)
        run(study, tw.FixedEpochs(9), trials=8)
        assert study.state.counts[Status.PAUSED] == 5  # nobody promotes them
        assert study.state.results == 8


def test_a_rule_that_nobody_would_promote_for_is_refused():
    with make() as study, pytest.raises(ScheduleError, match=r"AnyOf: got PASHA second, which pauses .*; allowed: "):
        run(study, tw.AnyOf(tw.Median(max_epochs=9), tw.PASHA(max_epochs=9)))


# Killed.


def killed_before(directory, kind, count, rule):
    """Run the study, and die by signal 9 before the `count`-th record of a kind is written."""
    append, left = DirectoryLedger.append, [count]

    def dies(ledger, records):
        for record in records:
            left[0] -= record.kind == kind or (kind == "started" and record.kind == "proposed")
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return append(ledger, records)

    DirectoryLedger.append = dies
    with make(directory) as study:
        run(study, SINGLE[rule], trials=9)


@pytest.mark.parametrize("kind", ["started", "reported", "decided", "paused", "promoted", "finished"])
@pytest.mark.parametrize("rule", [0, pytest.param(3, marks=pytest.mark.slow)], ids=["ASHA", "SuccessiveHalving"])
def test_killed_between_any_two_records(kind, rule, tmp_path):
    """Killed before the first record of a kind, then before the second, and so on: the end is as if undisturbed."""
    with make() as study:
        run(study, SINGLE[rule], trials=9)
        expected = outcome(study), promotions_of(study)
    kills, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL and kills < 20:
        kills += 1
        count = kills * (4 if kind == "reported" else 1)  # a run gets farther than the one before
        code = f"import test_promotions as t; t.killed_before({str(tmp_path / 'study')!r}, {kind!r}, {count}, {rule})"
        status = Forked(code, [], tmp_path / "said").wait()
    assert status == 0, (tmp_path / "said").read_text()
    assert kills > 1
    with make(tmp_path / "study") as study:
        assert outcome(study) == expected[0]
        assert sorted(promotions_of(study)) == sorted(expected[1])
        assert study.dropped == []


def elsewhere(study, **place):
    """Return a writer on a host of its own, or of a process that is no more."""
    ledger = DirectoryLedger(study.directory / "ledger")
    here = {"host": "elsewhere", "boot": "b", "pid": 1, "process_start": "1"}
    ledger.append([facts.joined(Writer(**here) if not place else replace(Writer.here(), **place), session=1)])
    return ledger


def best_of(study):
    return min(study.trials, key=lambda trial: (trial.reports[1].metrics["loss"], trial.number))


def test_a_claim_of_a_dead_promoter_is_taken_over(tmp_path, monkeypatch):
    """It won the promotion on another host and died before it wrote that: whoever asks waits, then promotes."""
    rule = tw.IEpoch(top_k=2, max_epochs=4)
    with make(tmp_path / "study") as study:
        other = elsewhere(study)
        best = int(np.lexsort((np.arange(6), LOSSES[:6, 1]))[0])
        other.claim(f"lease/{best}/2", other.writer)
        asked = []
        undecided = Claims.undecided

        def asks(claims, limit):
            asked.append(limit)
            return undecided(claims, limit)

        monkeypatch.setattr(Claims, "undecided", asks)
        monkeypatch.setattr("trainwright.study.claims.Liveness.is_dead", lambda *_: True if len(asked) > 1 else None)
        for pause in ("_GLANCE_SECONDS", "_SOON_SECONDS"):
            monkeypatch.setattr(f"trainwright.study.claims.{pause}", 0.0)
        run(study, rule, trials=6)
        assert sorted(study.state.trials[best].leases) == [1, 3]
        check_all_promoted(study, rule, trials=6)


@pytest.mark.parametrize("further", [False, True])
def test_a_promoter_that_was_quicker_and_died(tmp_path, monkeypatch, further):
    """It had begun, or paused at the next rung, which we read only when we find it dead: nothing is promoted twice."""
    rule = tw.ASHA(max_epochs=9, min_epochs=1, eta=2, kind="promotion")
    with make(tmp_path / "study") as study:
        dead = elsewhere(study, process_start="0")
        run(study, rule, trials=1)
        real, done = Claims.lease, []

        def late(claims, number):
            if not done and number in study.state.trials and study.state.trials[number].at_rung:
                done.append(number)
                dead.claim(f"lease/{number}/2", dead.writer)
                dead.append([facts.promoted(number, 2, until_epoch=2)])
                dead.append([facts.started(number, 2, slot="0", devices=[], resumed_epoch=0)])
                if further:
                    metrics = {"loss": loss(number, 2)}
                    dead.append([facts.reported(number, 2, epoch=2, step=None, metrics=metrics, wall_seconds=1.0)])
                    pause = facts.paused(number, 2, reason="rung", epoch=2, values=metrics, wall_seconds=1.0)
                    dead.append([pause])
            return real(claims, number)

        monkeypatch.setattr(Claims, "lease", late)
        run(study, rule, trials=8)
        assert done
        trial = study.state.trials[done[0]]
        assert trial.leases[2].lost is not further
        if further:  # the lease that was claimed in vain is given back
            assert trial.leases[3].end.reason == "rung"
        check_all_promoted(study, rule, trials=8)


# In teams.


def member(directory, rule, trials):
    with tw.Study.open(directory, searcher=tw.RandomSearcher()) as study:
        worker = tw.Worker(where=study, train=train, engine=HERE, scheduler=(SINGLE + SEVERAL)[rule])
        worker.run(trials=trials, progress=False)


@pytest.mark.parametrize("rule", [2, 3, *(pytest.param(rule, marks=pytest.mark.slow) for rule in (0, 5, 8))])
def test_a_team_promotes_each_trial_once(rule, tmp_path):
    """Three workers, each with reports in another order: in the end nothing is left to promote, for none of them."""
    chosen = (SINGLE + SEVERAL)[rule]
    make(tmp_path / "study", objectives=objectives_of(chosen)).close()
    code = f"import test_promotions as t; t.member({str(tmp_path / 'study')!r}, {rule}, 24)"
    workers = [Forked(code, [], tmp_path / f"said-{number}") for number in range(3)]
    for number, worker in enumerate(workers):
        assert worker.wait() == 0, (tmp_path / f"said-{number}").read_text()
    with make(tmp_path / "study", objectives=objectives_of(chosen)) as study:
        assert study.dropped == []
        check_all_promoted(study, chosen, trials=24)
        if isinstance(chosen, tw.IEpoch):
            assert study.state.counts[Status.COMPLETE] == 3


@pytest.mark.slow
@pytest.mark.parametrize("rule", [0, 3], ids=["ASHA", "SuccessiveHalving"])
def test_killed_members_leave_nothing_unpromoted(rule, tmp_path):
    """Kill -9 of random workers at random times, each replaced by a new one: the end is as if undisturbed."""
    directory, generator = tmp_path / "study", random.Random(rule)
    make(directory).close()
    code = f"import test_promotions as t; t.member({str(directory)!r}, {rule}, 40)"
    count = itertools.count()
    start = lambda: Forked(code, [], tmp_path / f"said-{next(count)}")  # noqa: E731
    alive = [start() for _ in range(3)]
    for _ in range(12):
        time.sleep(generator.uniform(0.05, 0.6))
        victim = generator.randrange(len(alive))
        alive[victim].kill()
        alive[victim].wait()
        alive[victim] = start()
    assert [worker.wait() for worker in alive] == [0, 0, 0]
    with make(directory) as study:
        assert study.dropped == []
        check_all_promoted(study, SINGLE[rule], trials=40)

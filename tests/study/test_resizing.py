"""Policies that change the devices of running trials, in real studies: moves, roll-backs, rests, kills."""

import math
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from scripts import Forked

import trainwright as tw
from eager import Eager
from trainwright import plugins
from trainwright.engine import Died, Returned, StoppedEarly
from trainwright.errors import EngineError, SchedulerStalled
from trainwright.ledger import DirectoryLedger, Status, Writer, facts
from trainwright.schedule import DeviceAllocator, Doubling, DoublingAsPublished, MarginalGain
from trainwright.schedule.allocator.estimates import Estimates
from trainwright.schedule.policies.allocation_policy import PendingTrial
from trainwright.schedule.policies.resizing import Resizing
from trainwright.study.claims import Claims
from trainwright.study.driver.allocator import Allocator

SPACE = tw.Space(x=tw.Float(0.0, 1.0))
pytestmark = pytest.mark.timeout(300)


class Steps:
    """An engine in which every trial that runs does one epoch at each poll, and keeps what it has done."""

    gone = frozenset()

    def __init__(self, slots=4, *, refuses=(), dies=(), kept=None):
        self.slots = self.slots_per_node = slots
        self.trained = []  # trial, epoch, devices
        self._refuses, self._dies = set(refuses), set(dies)  # pairs of a trial and a number of devices
        self._kept = {} if kept is None else kept  # the last epoch of each trial
        self._running = {}

    def open(self, train, directory):
        self._train = train

    def devices(self, block):
        return tuple(f"device:{slot}" for slot in block)

    def launch(self, assignment, block):
        if (assignment.trial, len(block)) in self._refuses:
            raise EngineError(f"no group of {len(block)} processes for trial {assignment.trial}")
        held = {slot for _, other in self._running.values() for slot in other}
        assert not held & set(block)
        self._running[assignment.trial] = assignment, block

    def poll(self, handler, timeout_seconds):
        for number, (assignment, block) in sorted(self._running.items()):
            if (number, len(block)) in self._dies:
                del self._running[number]
                handler.exited(number, Died(why="no rendezvous"))
                continue
            epoch = self._kept.get(number, 0) + 1
            self.trained.append((number, epoch, len(block)))
            metrics = {"loss": number + 1 / epoch}
            path = f"checkpoints/{number}/{epoch}"
            goes_on = handler.facts(
                number,
                [
                    facts.checkpointed(number, assignment.lease, epoch=epoch, path=path, bytes=1, digest=""),
                    facts.reported(
                        number, assignment.lease, epoch=epoch, step=None, metrics=metrics, wall_seconds=0.001
                    ),
                ],
            )
            self._kept[number] = epoch
            if not goes_on or epoch == assignment.max_epochs:
                del self._running[number]
                end = Returned if goes_on else StoppedEarly
                handler.exited(number, end(metrics=metrics, epoch=epoch, seconds=0.001))

    def close(self):
        self._running.clear()


def make(directory=None):
    return tw.Study(SPACE, "min loss", directory=directory, seed=1, searcher=tw.RandomSearcher())


def run(study, policy, engine, rule=None, trials=6):
    rule = rule if rule is not None else tw.ASHA(max_epochs=8, eta=2)
    study.run(print, trials=trials, scheduler=tw.Scheduler(rule, policy), engine=engine, progress=False)


def sizes(trial):
    return [len(lease.devices) for _, lease in sorted(trial.leases.items())]


def ends(trial):
    return [lease.end.reason for _, lease in sorted(trial.leases.items())]


EAGER = Eager()


def test_winners_grow_from_their_checkpoints():
    """The best doubles at each rung; every epoch is trained once, on the devices that its start names."""
    engine = Steps(8)
    with make() as study:
        run(study, EAGER, engine)
        best = study.trials[0]
        assert sizes(best) == sorted(sizes(best))
        assert sizes(best)[0] == 1
        assert sizes(best)[-1] > 2
        assert ends(best) == ["resized"] * (len(best.leases) - 1) + ["completed"]
        assert max(Counter((trial, epoch) for trial, epoch, _ in engine.trained).values()) == 1
        for trial in study.trials:
            for lease in trial.leases.values():
                first = next((e for n, e, size in engine.trained if n == trial.number and e > lease.resumed_epoch))
                assert (trial.number, first, len(lease.devices)) in engine.trained
                assert len(set(lease.devices)) == len(lease.devices)
        assert study.state.results == 6


@pytest.mark.parametrize("policy", [EAGER, Doubling(), MarginalGain()])
@pytest.mark.parametrize("rule", [tw.ASHA(max_epochs=8, eta=2), tw.ASHA(max_epochs=8, eta=2, kind="promotion")])
def test_any_rule_under_any_policy(policy, rule):
    """All trials come to an end, or rest at a rung; nothing is trained twice."""
    engine = Steps(4)
    with make() as study:
        run(study, policy, engine, rule, trials=9)
        assert study.state.results == 9
        assert max(Counter((trial, epoch) for trial, epoch, _ in engine.trained).values()) == 1


def test_what_a_move_costs_is_learnt(monkeypatch):
    """Of each way of a trial to its devices; the start of a new one counts."""
    restarts = []
    monkeypatch.setattr(Estimates, "saw_restart", lambda _, size, seconds, **_kind: restarts.append((size, seconds)))
    with make() as study:
        run(study, EAGER, Steps(8), tw.ASHA(max_epochs=32, min_epochs=2, eta=4))
    assert {1} < dict(restarts).keys() <= {1, 2, 4, 8}
    assert all(seconds >= 0 for _, seconds in restarts)


@pytest.mark.parametrize("how", ["refuses", "dies"])
def test_what_does_not_start_goes_back(how):
    """Two devices do not come up for trial 0: it goes on with one, from the same checkpoint, and that is noted."""
    engine = Steps(8, **{how: [(0, 2)]})
    with make() as study:
        run(study, EAGER, engine)
        trial = study.trials[0]
        assert trial.status is Status.COMPLETE
        assert sizes(trial)[:3] == [1, 2, 1]
        assert trial.leases[2].lost
        assert trial.leases[3].resumed_epoch == trial.leases[2].resumed_epoch == 1
        notes = [value for number, name, value in study.state.notes.values() if (number, name) == (0, "rolled back")]
        assert notes[0] == {"from": 2, "to": 1}
        assert max(Counter((trial, epoch) for trial, epoch, _ in engine.trained).values()) == 1
        assert study.state.results == 6


@dataclass(frozen=True, kw_only=True)
class Frugal(Resizing):
    """Starts nothing more once it knows how long an epoch takes, and keeps the time that it was told is left."""

    start: int = 1
    left: list = field(default_factory=list)

    def planner(self):
        return self

    def plan(self, device_allocator):
        self.left.append(device_allocator.seconds_left())
        while (
            device_allocator.estimates.epoch_seconds() is None
            and device_allocator.free
            and device_allocator.start_next()
        ):
            pass


def test_a_policy_that_may_start_no_more_ends_the_run(capsys):
    """What was started before anything was known of times comes to its end; nothing waits for ever."""
    with make() as study:
        scheduler = tw.Scheduler(tw.ASHA(max_epochs=4, eta=2), Frugal())
        study.run(print, trials=6, scheduler=scheduler, engine=Steps(2))
        assert study.state.results == 2
    assert "Frugal starts no more trials: what its settings allow is used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("budget", "most"),
    [
        ({"trials": 3}, math.inf),
        ({"wall_seconds": 1000.0}, 1000.0),
        ({"device_seconds": 3000.0}, 1500.0),
        ({"wall_seconds": 1000.0, "device_seconds": 1200.0, "trials": 9}, 600.0),
    ],
)
def test_a_policy_knows_the_time_that_is_left(budget, most):
    """Of the wall clock, or of the devices if all of them are busy; inf without a budget of time."""
    policy = Frugal()
    with make() as study:
        scheduler = tw.Scheduler(tw.ASHA(max_epochs=4, eta=2), policy)
        study.run(print, scheduler=scheduler, engine=Steps(2), progress=False, **budget)
    assert 0.5 * most <= min(policy.left)
    assert max(policy.left) <= most


def test_a_start_is_measured_at_the_first_report(monkeypatch):
    """From its launch until the function was entered; with the second report, what its first epoch took longer."""
    now, restarts = [0.0], []
    monkeypatch.setattr("trainwright.study.driver.allocator.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Estimates, "saw_restart", lambda _, size, seconds, **_kind: restarts.append((size, seconds)))
    device_allocator = DeviceAllocator(
        EAGER, Source([0, 1]), EAGER.free_slots(4, 4), slots=4, rungs=(4, 8), survival=lambda _: (0.5,)
    )
    allocator = Allocator()
    allocator.device_allocator = device_allocator
    allocator.plan()
    now[0] = 30.0
    allocator.note_report(0, 1, 0.5, 24.0)  # entered after 6 s; its first epoch took 24 s
    assert restarts == [(1, 6.0)]
    assert device_allocator.running[0].epoch_seconds == 24.0
    allocator.note_report(1, 1, 0.5, 24.0)
    allocator.release(1)  # its first report was its last
    assert restarts == [(1, 6.0)] * 2
    now[0] = 50.0
    allocator.note_report(0, 2, 0.5, 44.0)
    assert restarts == [(1, 6.0), (1, 6.0), (1, 10.0)]
    assert device_allocator.running[0].epoch_seconds == 20.0


def test_what_a_later_start_will_not_cost_does_not_count(monkeypatch):
    """The first start on a device waits for a process; the set-up before the first epoch is part of each."""
    now = [0.0]
    monkeypatch.setattr("trainwright.study.driver.allocator.time", SimpleNamespace(monotonic=lambda: now[0]))
    device_allocator = DeviceAllocator(
        EAGER, Source([0, 1]), EAGER.free_slots(1, 1), slots=1, rungs=(4, 8), survival=lambda _: (0.5,)
    )
    allocator = Allocator()
    allocator.device_allocator, estimates = device_allocator, device_allocator.estimates
    allocator.plan()
    assert estimates.restart(1) == 30.0
    now[0] = 40.0
    allocator.note_report(0, 1, 0.5, 24.0, 4.0)
    assert device_allocator.running[0].epoch_seconds == 20.0
    assert (estimates.restart(1), estimates.restart(2)) == (20.0, 20.0)
    allocator.release(0)
    allocator.plan()
    now[0] = 65.0
    allocator.note_report(1, 1, 0.5, 24.0, 4.0)
    assert (estimates.restart(1), estimates.restart(2)) == (5.0, 5.0)


def test_a_trial_without_checkpoints_is_measured_too(monkeypatch):
    """It trains old epochs again after a move: they tell how long its start took, and nothing of its loss."""
    now, restarts = [0.0], []
    monkeypatch.setattr("trainwright.study.driver.allocator.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Estimates, "saw_restart", lambda _, size, seconds, **_kind: restarts.append((size, seconds)))
    device_allocator = DeviceAllocator(
        EAGER, Source([0]), EAGER.free_slots(4, 4), slots=4, rungs=(2, 8), survival=lambda _: (0.5,)
    )
    allocator = Allocator()
    allocator.device_allocator = device_allocator
    allocator.plan()
    for epoch in (1, 2):
        now[0] += 10.0
        allocator.note_report(0, epoch, 0.5, now[0])
    assert allocator.decide(0) is False
    allocator.depart(0)
    for epoch, at in ((1, 33.0), (2, 39.0), (3, 45.0)):
        now[0] = at
        allocator.note_report(0, epoch, 0.4, at - 27.0)
    assert restarts[-1] == (2, 7.0)
    assert device_allocator.running[0].epoch_seconds == 6.0


class Source:
    def __init__(self, numbers):
        self.numbers = numbers

    def next_trial(self, *, new=True):
        return PendingTrial(self.numbers.pop(0)) if self.numbers and new else None

    def waits(self):
        return bool(self.numbers)


def test_an_engine_that_starts_nothing_is_an_error():
    with make() as study, pytest.raises(EngineError, match="no group of 1 processes for trial 0"):
        run(study, EAGER, Steps(refuses=[(0, 1)]))


def test_a_wait_without_end_is_an_error():
    """The published policy wants more than there is: said with the trial, which a larger engine goes on with."""
    policy, kept = DoublingAsPublished(start=2), {}
    with make() as study:
        with pytest.raises(SchedulerStalled, match=r"trial \d waits for \d+ devices, the engine has 4; use a policy "):
            run(study, policy, Steps(4, kept=kept), trials=2)
        assert study.state.results < 2
        assert any(trial.resizing for trial in study.trials)
        run(study, EAGER, Steps(32, kept=kept), trials=2)
        assert study.state.results == 2


@pytest.mark.parametrize(
    "policy", [Doubling(wait_seconds=9.0), Doubling(cap=4), DoublingAsPublished(start=2), MarginalGain()]
)
def test_policies_are_written_and_read_as_tables(policy):
    assert plugins.make("policy", plugins.describe("policy", policy)) == policy


# Killed.


def killed_before(directory, kind, count):
    """Run the study, and die by signal 9 before the `count`-th record of a kind that belongs to a move."""
    append, left = DirectoryLedger.append, [count]

    def dies(ledger, records):
        for record in records:
            left[0] -= record.kind == kind and (kind != "started" or record.lease > 1)
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return append(ledger, records)

    DirectoryLedger.append = dies
    with make(directory) as study:
        kept = {trial.number: trial.epoch for trial in study.trials}
        run(study, EAGER, Steps(4, kept=kept))


@pytest.mark.parametrize("kind", ["reported", "paused", "started"])
def test_killed_between_any_two_records_of_a_move(kind, tmp_path):
    """Before the first such record, then before the second, and so on: all is done, no epoch reported twice."""
    kills, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL and kills < 30:
        kills += 1
        code = f"import test_resizing as t; t.killed_before({str(tmp_path / 'study')!r}, {kind!r}, {kills})"
        status = Forked(code, [], tmp_path / "said").wait()
    assert status == 0, (tmp_path / "said").read_text()
    assert kills > 1
    with make(tmp_path / "study") as study:
        assert study.state.results == 6
        assert study.dropped == []
        reported = Counter((r.trial, r.body["epoch"]) for r in study._log.replay({"reported"}))
        assert max(reported.values()) == 1
        starts = [(r.trial, r.lease) for r in study._log.replay({"proposed", "started"}) if r.lease]
        assert len(set(starts)) == len(starts)


@pytest.mark.parametrize("alive", [False, True])
def test_a_trial_between_two_blocks_belongs_to_its_driver(tmp_path, monkeypatch, alive):
    """While that lives nobody else starts it; when it is dead, whoever comes goes on from the checkpoint."""
    with make(tmp_path / "study") as study:
        other = DirectoryLedger(tmp_path / "study" / "ledger")
        other.append([facts.joined(Writer(host="elsewhere", boot="b", pid=1, process_start="1"), session=1)])
        key = study.space.configuration_of({"x": 0.5}).key
        other.claim("number/0/0", other.writer)
        other.append(
            [
                facts.proposed(0, params={"x": 0.5}, key=key, origin={}, seen=0, seen_hash=""),
                facts.started(0, 1, slot="0", devices=["cpu:0"], resumed_epoch=0),
                facts.reported(0, 1, epoch=1, step=None, metrics={"loss": 1.0}, wall_seconds=1.0),
                facts.paused(0, 1, reason="resized", epoch=1, values={}, wall_seconds=1.0),
            ]
        )
        monkeypatch.setattr(Claims, "is_dead", lambda _, writer: writer == other.writer and not alive)
        run(study, EAGER, Steps(4, kept={0: 1}), trials=2)
        assert (len(study.trials[0].leases) > 1) is not alive
        assert study.state.results == 2 - alive


@pytest.mark.slow
def test_real_trials_of_two_processes(tmp_path, torch):
    """A trial grows from one process to two, under gloo, and ends with the loss that one process comes to."""
    del torch
    losses = {}
    for name, policy in (("grown", EAGER), ("fixed", tw.Fixed(1))):
        with make(tmp_path / name) as study:
            scheduler = tw.Scheduler(tw.ASHA(max_epochs=4, eta=2, min_epochs=2), policy)
            study.run(line, trials=1, scheduler=scheduler, engine=tw.Local(workers=2), progress=False)
            losses[name] = {epoch: report.metrics["loss"] for epoch, report in study.trials[0].reports.items()}
            grown = sizes(study.trials[0])
        assert grown == ([1, 2] if name == "grown" else [1])
    assert losses["grown"] == pytest.approx(losses["fixed"], abs=1e-6)


def line(trial):
    """Fit a line to points, in batches of eight."""
    import torch

    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 32)[:, None]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 2 * x + 1), batch_size=8)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = trial.prepare(
        model, optimizer, loader, loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
    )
    for _ in trial.epochs():
        for batch in run.loader:
            run.step(batch)
        with torch.no_grad():
            loss = (run.model(x) - 2 * x - 1).square().mean().item()
        trial.report(loss=loss)

"""A loop of the user's own in a trial: three lines more, and it goes on in the middle of an epoch, bit for bit."""

import pytest
import torch
from torch import nn

from trainwright.checkpoint import CheckpointConfig, Manager
from trainwright.engine import Raised, Returned, StoppedEarly
from trainwright.engine.process.run_assignment import run_assignment
from trainwright.train import Loader
from trainwright.train.assignment import Assignment

EPOCHS = 3
DATA = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 40)[:, None], torch.linspace(-1, 1, 40)[:, None].sin())


class Ledger:
    """What a driver would know."""

    def __init__(self):
        self.reports, self.checkpoints, self.notes = {}, [], []

    leaves_at = None  # a count of steps, after which the driver warns of the end
    steps = 0

    def leaves(self):
        self.steps += 1
        return self.leaves_at is not None and self.steps >= self.leaves_at

    def exchange(self, records):
        for record in records:
            if record.kind == "reported":
                assert record.body["epoch"] not in self.reports, "an epoch was reported twice"
                self.reports[record.body["epoch"]] = record.body["metrics"]["loss"]
            elif record.kind == "checkpointed":
                self.checkpoints.append((record.lease, record.body["epoch"], record.body["step"]))
            else:
                self.notes.append(record.body["name"])
        return self.leaves_at is None or self.steps < self.leaves_at


class Training:
    """A network with dropout, Adam, and batches of eight; a loop as anybody writes it."""

    def __init__(self, interval):
        self.config = CheckpointConfig(interval=interval, writer="thread", on_error="raise")
        self.dies_at = None  # a count of steps, after which the process ends
        self.steps = []
        self.final = None

    def __call__(self, trial):
        model = nn.Sequential(nn.Linear(1, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        loader = Loader(DATA, global_batch=8, trial=trial)
        manager = Manager(trial, config=self.config, model=model, optimizer=optimizer, loader=loader)
        manager.restore()
        for epoch in trial.epochs():
            for x, y in loader:
                optimizer.zero_grad()
                loss = (model(x) - y).square().mean()
                loss.backward()
                optimizer.step()
                manager.step()
                self.steps.append((epoch, manager.steps))
                if manager.steps == self.dies_at:
                    manager.drain()
                    raise KeyboardInterrupt
            trial.report(loss=loss.item())
        self.final = [value.clone() for value in model.state_dict().values()]


def lease(number, training, ledger, folder):
    assignment = Assignment(
        trial=5,
        lease=number,
        params={},
        seed=13,
        max_epochs=EPOCHS,
        directory=str(folder),
        reported_epoch=max(ledger.reports, default=0),
    )
    return run_assignment(training, assignment, ledger, gpu=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    training, ledger = Training(interval=2), Ledger()
    assert isinstance(lease(1, training, ledger, tmp_path_factory.mktemp("undisturbed")), Returned)
    assert [step for _, step in training.steps] == list(range(1, 16))
    return training, ledger


@pytest.mark.parametrize(
    "dies_at", [pytest.param(step, marks=[] if step % 4 == 1 else pytest.mark.slow) for step in range(1, 15)]
)
def test_interrupted_after_any_step(tmp_path, undisturbed, dies_at):
    """The next run repeats only the steps since the last save, reports each epoch once, and ends the same."""
    training, ledger = Training(interval=2), Ledger()
    training.dies_at = dies_at
    with pytest.raises(KeyboardInterrupt):
        lease(1, training, ledger, tmp_path)
    training.dies_at = None
    before = len(training.steps)
    assert isinstance(lease(2, training, ledger, tmp_path), Returned)
    saved = max(step for step in range(dies_at + 1) if step % 5 == 0 or (step % 5) % 2 == 0)
    assert training.steps[before][1] >= saved
    assert training.steps[before:][-1] == (EPOCHS, 15)
    assert ledger.reports == undisturbed[1].reports
    for one, other in zip(training.final, undisturbed[0].final, strict=True):
        assert torch.equal(one, other)
    assert ledger.notes == []


@pytest.mark.parametrize("leaves_at", [1, 4, 5, 7, 14])
def test_told_to_leave(tmp_path, undisturbed, leaves_at):
    """The trial saves at the step after which it was told, and ends there; no step is taken twice.

    At the end of an epoch the report comes first, and ends it as the driver says.
    """
    training, ledger = Training(interval=1000), Ledger()
    ledger.leaves_at = leaves_at
    outcome = lease(1, training, ledger, tmp_path)
    assert isinstance(outcome, StoppedEarly)
    assert outcome.preempted == (leaves_at % 5 > 0)
    ledger.leaves_at = None
    assert isinstance(lease(2, training, ledger, tmp_path), Returned)
    # The step that it was told at ended before the loop could note it.
    noted = [step for _, step in training.steps]
    assert sorted({*noted, leaves_at}) == list(range(1, 16))
    assert len(noted) == 14 + (leaves_at % 5 == 0)
    assert ledger.reports == undisturbed[1].reports
    for one, other in zip(training.final, undisturbed[0].final, strict=True):
        assert torch.equal(one, other)


def test_a_restored_checkpoint_is_told_at_once(tmp_path):
    """So the ledger knows that a trial gets on whose runs never come to the end of an epoch."""
    training, ledger = Training(interval=2), Ledger()
    for number, training.dies_at in enumerate((2, 4, 5), start=1):
        with pytest.raises(KeyboardInterrupt):
            lease(number, training, ledger, tmp_path)
    assert ledger.checkpoints == [(2, 0, 2), (3, 0, 4)]


def test_the_ledger_knows_of_each(undisturbed):
    """A record for every checkpoint: those between reports come with the next one, all before it."""
    _, ledger = undisturbed
    assert [step for _, _, step in ledger.checkpoints] == sorted(step for _, _, step in ledger.checkpoints)
    assert {(5, 1), (10, 2), (15, 3)} <= {(step, epoch) for _, epoch, step in ledger.checkpoints}
    assert any(epoch == 0 for _, epoch, _ in ledger.checkpoints)


def test_two_managers_of_one_trial(tmp_path):
    """The second is refused, be it made by hand or by `prepare`."""

    def twice(trial):
        Manager(trial, x=torch.zeros(1))
        Manager(trial, x=torch.zeros(1))

    def prepared(trial):
        Manager(trial, x=torch.zeros(1))
        model = nn.Linear(1, 1)
        trial.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

    for number, train in enumerate((twice, prepared), 1):
        outcome = lease(number, train, Ledger(), tmp_path)
        assert isinstance(outcome, Raised)
        assert outcome.message.startswith(
            "trial 5 has a manager of its checkpoints; make one, with all that is to be kep"
        )


def test_a_study_in_memory(tmp_path):
    def train(trial):
        Manager(trial, x=torch.zeros(1))

    assignment = Assignment(trial=5, lease=1, params={}, seed=13)
    outcome = run_assignment(train, assignment, Ledger(), gpu=False)
    assert "the study keeps nothing on disk; give tw.Study(" in outcome.message

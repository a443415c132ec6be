"""Resuming: a run that was interrupted anywhere ends with the very numbers of one that was not."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trainwright.checkpoint.state.rng import capture_rng_state
from trainwright.engine import Returned, StoppedEarly
from trainwright.engine.process.run_assignment import run_assignment
from trainwright.train.assignment import Assignment

EPOCHS = 4


class Ledger:
    """What a driver would know; `dies` is called before the records of each report arrive."""

    def __init__(self):
        self.reports = {}
        self.dies = lambda epoch: False

    def leaves(self):
        return False

    def exchange(self, records):
        epochs = [record.body["epoch"] for record in records if record.kind == "reported"]
        if any(self.dies(epoch) for epoch in epochs):
            raise KeyboardInterrupt
        for record in records:
            if record.kind == "reported":
                assert record.body["epoch"] not in self.reports, "an epoch was reported twice"
                self.reports[record.body["epoch"]] = dict(record.body["metrics"])
        return True


class Training:
    """A small CNN with dropout and batch statistics, shuffled batches, Adam and a schedule."""

    def __init__(self, *, own_generator):
        self.own_generator = own_generator
        self.trained = []
        self.interrupt = None  # (epoch, batch) in the middle of which the process dies
        self.final = None

    def __call__(self, trial):
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        data = torch.Generator().manual_seed(0)
        dataset = torch.utils.data.TensorDataset(
            torch.randn(24, 1, 4, 4, generator=data), torch.randint(3, (24,), generator=data)
        )
        generator = torch.Generator().manual_seed(trial.seed) if self.own_generator else None
        loader = torch.utils.data.DataLoader(dataset, batch_size=6, shuffle=True, generator=generator)
        settings = {}
        if self.own_generator:
            # Accumulated, scaled and clipped; the first steps overflow.
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
            settings = {
                "batch": [(1, 6), (3, 8)],
                "learning_rate": "adascale",
                "micro_batch": 3,
                "scaler": scaler,
                "max_gradient_norm": 0.5,
            }
        run = trial.prepare(model, optimizer, loader, loss=loss_of, schedule=schedule, **settings)
        for epoch in trial.epochs():
            model.train()
            losses = []
            for number, batch in enumerate(run.loader):
                if self.interrupt == (epoch, number):
                    raise KeyboardInterrupt
                losses.append(run.step(batch).item())
            schedule.step()
            self.trained.append(epoch)
            trial.report(val_loss=math.fsum(losses), rate=schedule.get_last_lr()[0])
        self.final = collect_state(run)


def collect_state(run):
    kept = {name: getattr(item, "state_dict", getattr(item, "get_state", None))() for name, item in run.items().items()}
    return {**kept, "random": capture_rng_state()}


def loss_of(model, batch):
    images, labels = batch
    return cross_entropy(model(images), labels)


def lease(number, training, ledger, folder, **settings):
    assignment = Assignment(
        trial=3,
        lease=number,
        params={},
        seed=11,
        max_epochs=EPOCHS,
        directory=str(folder),
        reported_epoch=max(ledger.reports, default=0),
        **settings,
    )
    return run_assignment(training, assignment, ledger, gpu=False)


@pytest.fixture(scope="module", params=[False, True], ids=["global generator", "own generator, scaled and clipped"])
def undisturbed(request, tmp_path_factory):
    training, ledger = Training(own_generator=request.param), Ledger()
    outcome = lease(1, training, ledger, tmp_path_factory.mktemp("undisturbed"))
    assert isinstance(outcome, Returned)
    assert training.trained == [1, 2, 3, 4]
    return training, ledger


def assert_equal_runs(training, ledger, undisturbed):
    """Parameters, buffers, optimizer, schedule, random states and reports are equal to the last bit."""
    whole, reports = undisturbed[0].final, undisturbed[1].reports
    assert ledger.reports == reports
    assert_same(training.final, whole)


def assert_same(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other


@pytest.mark.parametrize("epoch", range(1, EPOCHS + 1))
def test_interrupted_within_an_epoch(tmp_path, undisturbed, epoch):
    """The epoch in work is done again, those before are not, and the end is the same."""
    training, ledger = Training(own_generator=undisturbed[0].own_generator), Ledger()
    training.interrupt = (epoch, 2)
    with pytest.raises(KeyboardInterrupt):
        lease(1, training, ledger, tmp_path)
    training.interrupt = None
    assert isinstance(lease(2, training, ledger, tmp_path), Returned)
    assert training.trained == [1, 2, 3, 4]
    assert_equal_runs(training, ledger, undisturbed)


@pytest.mark.parametrize("epoch", range(1, EPOCHS + 1))
def test_interrupted_between_checkpoint_and_report(tmp_path, undisturbed, epoch):
    """The report that never arrived is sent again from the checkpoint; the epoch is not repeated."""
    training, ledger = Training(own_generator=undisturbed[0].own_generator), Ledger()
    ledger.dies = lambda at: at == epoch
    with pytest.raises(KeyboardInterrupt):
        lease(1, training, ledger, tmp_path)
    assert max(ledger.reports, default=0) == epoch - 1
    ledger.dies = lambda _: False
    outcome = lease(2, training, ledger, tmp_path)
    assert training.trained == [1, 2, 3, 4]
    assert_equal_runs(training, ledger, undisturbed)
    assert outcome.metrics == ledger.reports[EPOCHS]


def test_interrupted_at_every_epoch(tmp_path, undisturbed):
    """Four interruptions, five leases, and still the same."""
    training, ledger = Training(own_generator=undisturbed[0].own_generator), Ledger()
    for number in range(1, EPOCHS + 1):
        training.interrupt = (number, 1)
        with pytest.raises(KeyboardInterrupt):
            lease(number, training, ledger, tmp_path)
    training.interrupt = None
    lease(EPOCHS + 1, training, ledger, tmp_path)
    assert training.trained == [1, 2, 3, 4]
    assert_equal_runs(training, ledger, undisturbed)


def test_a_damaged_checkpoint_costs_one_epoch(tmp_path, undisturbed):
    """The epoch whose checkpoint is damaged is repeated from the one before, with equal numbers."""
    training, ledger = Training(own_generator=undisturbed[0].own_generator), Ledger()
    training.interrupt = (4, 0)
    with pytest.raises(KeyboardInterrupt):
        lease(1, training, ledger, tmp_path)
    newest = max((tmp_path / "checkpoints/trial-000003/lease-1").glob("step-*"))
    (newest / "rank-00000.safetensors").write_bytes(b"damaged")
    training.interrupt, known = None, ledger.reports.pop(3)
    lease(2, training, ledger, tmp_path)
    assert training.trained == [1, 2, 3, 3, 4]
    assert ledger.reports[3] == known
    assert_equal_runs(training, ledger, undisturbed)


def test_nothing_left_to_do_keeps_the_result(tmp_path):
    """A run that died after its last report, before its end was written, ends at once with that report's metrics."""
    training, ledger = Training(own_generator=False), Ledger()
    first = lease(1, training, ledger, tmp_path)
    again = lease(2, training, ledger, tmp_path)
    assert training.trained == [1, 2, 3, 4]
    assert isinstance(again, Returned)
    assert (again.metrics, again.epoch) == (first.metrics, first.epoch)


def test_a_trial_that_was_stopped_meanwhile_ends_in_prepare(tmp_path):
    """If the missing report brings the verdict to stop, no further epoch is trained."""
    training, ledger = Training(own_generator=False), Ledger()
    ledger.dies = lambda at: at == 2
    with pytest.raises(KeyboardInterrupt):
        lease(1, training, ledger, tmp_path)
    ledger.exchange = lambda records: False
    outcome = lease(2, training, ledger, tmp_path)
    assert isinstance(outcome, StoppedEarly)
    assert (training.trained, outcome.epoch) == ([1, 2], 2)


def test_two_checkpoints_are_kept(tmp_path):
    lease(1, Training(own_generator=False), Ledger(), tmp_path)
    kept = sorted(path.name for path in (tmp_path / "checkpoints/trial-000003/lease-1").iterdir())
    assert kept == ["start.json", "step-000000000012", "step-000000000016"]

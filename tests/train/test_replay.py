"""A trial that is interrupted within an epoch goes on behind its last saved step, and ends as if nothing had been."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainwright.checkpoint.manifest import Manifest
from trainwright.engine import Raised, Returned, StoppedEarly
from trainwright.engine.process.run_assignment import run_assignment
from trainwright.ledger import TrialState
from trainwright.ledger.trials import Lease
from trainwright.study.driver.clone_checkpoints import link_parent_checkpoint
from trainwright.train import Loader
from trainwright.train.assignment import Assignment
from trainwright.train.replay import EpochReplay

EPOCHS, STEPS = 3, 6
FEATURES = torch.linspace(-1, 1, 48).reshape(48, 1)


class Noisy(torch.utils.data.Dataset):
    """Samples to which noise is added when they are fetched."""

    def __len__(self):
        return len(FEATURES)

    def __getitem__(self, index):
        return FEATURES[index] + 0.1 * torch.randn(1), FEATURES[index].sin()


def batches_drawn(generator):
    """Batches that a generator function draws, with no state that could be saved."""
    for _ in range(STEPS):
        x = torch.rand(8, 1, generator=generator)
        yield x, x.sin()


class Drawn:
    """A loader of one's own: batches of the global generator."""

    def __iter__(self):
        return batches_drawn(None)

    def __len__(self):
        return STEPS


LOADERS = {
    "DataLoader": lambda trial: torch.utils.data.DataLoader(Noisy(), batch_size=8, shuffle=True),
    "DataLoader with a generator": lambda trial: torch.utils.data.DataLoader(
        Noisy(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(trial.seed)
    ),
    "DataLoader with a worker": lambda trial: torch.utils.data.DataLoader(
        Noisy(), batch_size=8, shuffle=True, num_workers=1
    ),
    "Loader": lambda trial: Loader(Noisy(), global_batch=8, trial=trial),
    "a class": lambda trial: Drawn(),
    "none": lambda trial: None,
}


class Line:
    """What a driver would know; `dies_at` is the step after which the process ends, `leaves_at` that of a warning."""

    def __init__(self):
        self.reports, self.checkpoints = {}, []
        self.steps = 0
        self.leaves_at = None

    def exchange(self, records):
        for record in records:
            if record.kind == "reported":
                assert record.body["epoch"] not in self.reports, "an epoch was reported twice"
                self.reports[record.body["epoch"]] = record.body["metrics"]
            elif record.kind == "checkpointed":
                body = record.body
                self.checkpoints.append((body["epoch"], body["step"], body.get("within_epochs", False)))
        return True

    def leaves(self):
        return self.leaves_at is not None and self.steps >= self.leaves_at


class Training:
    """Dropout, batch statistics, Adam, a schedule stepped with each batch, and sums of the function's own."""

    def __init__(self, kind, line, *, save_every=2, slots=None, scaled=False):
        self.kind, self.line, self.save_every, self.slots = kind, line, save_every, slots
        self.scaled = scaled
        self.dies_at = None
        self.computed = []
        self.final = None

    def __call__(self, trial):
        model = nn.Sequential(nn.Linear(1, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * STEPS)
        loader = LOADERS[self.kind](trial)
        settings = {"save_every": self.save_every, "slots": self.slots}
        if self.scaled:
            # The first steps overflow, and a later one again.
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_factor=2.0**20, growth_interval=3)
            settings |= {"scaler": scaler, "max_gradient_norm": 0.1, "learning_rate": "adascale"}
        run = trial.prepare(model, optimizer, loader, loss=self.loss_of, schedule=schedule, **settings)
        for epoch in trial.epochs():
            losses, samples = [], 0
            for x, y in run.loader if loader is not None else batches_drawn(None):
                losses.append(run.step((x, y)).item())
                schedule.step()
                samples += len(x)
                if self.line.steps == self.dies_at:
                    # So that it is certain which saves have ended.
                    run._manager.drain()
                    raise KeyboardInterrupt
            trial.report(loss=math.fsum(losses), samples=samples, rate=schedule.get_last_lr()[0], draw=torch.rand(()))
            assert epoch == trial.next_epoch
        self.final = [value.clone() for value in model.state_dict().values()]

    def loss_of(self, model, batch):
        # Once a step, with slots once for each.
        self.computed.append(1)
        self.line.steps = len(self.computed) // (self.slots or 1)
        return (model(batch[0]) - batch[1]).square().mean()


def lease(number, training, line, folder):
    assignment = Assignment(
        trial=5,
        lease=number,
        params={},
        seed=13,
        max_epochs=EPOCHS,
        directory=str(folder),
        reported_epoch=max(line.reports, default=0),
    )
    return run_assignment(training, assignment, line, gpu=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    known = {}

    def of(kind, slots=None, *, scaled=False):
        if (kind, slots, scaled) not in known:
            line = Line()
            training = Training(kind, line, slots=slots, scaled=scaled)
            assert isinstance(lease(1, training, line, tmp_path_factory.mktemp("undisturbed")), Returned)
            assert line.steps == EPOCHS * STEPS
            known[kind, slots, scaled] = training.final, line.reports
        return known[kind, slots, scaled]

    return of


def assert_as(training, line, expected):
    final, reports = expected
    assert line.reports == reports
    for one, other in zip(training.final, final, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize(
    "dies_at",
    [pytest.param(step, marks=[] if step in {1, 6, 15} else pytest.mark.slow) for step in (1, 2, 5, 6, 7, 9, 15, 18)],
)
def test_killed_after_a_step(tmp_path, undisturbed, kind, dies_at):
    """Computed again is at most what came after the last save; reports and weights are equal to the last bit."""
    line = Line()
    first = Training(kind, line)
    first.dies_at = dies_at
    with pytest.raises(KeyboardInterrupt):
        lease(1, first, line, tmp_path)
    line.steps = 0
    second = Training(kind, line)
    assert isinstance(lease(2, second, line, tmp_path), Returned)
    assert len(first.computed) + len(second.computed) <= EPOCHS * STEPS + 1, "a save comes every two steps"
    assert_as(second, line, undisturbed(kind))


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("save_every", ["auto", 1000, 1000.0])
def test_told_to_leave(tmp_path, undisturbed, kind, save_every):
    """Told at any step it saves there and ends; no step at all is computed twice, in one interruption or in three."""
    line = Line()
    computed = 0
    for number, line.leaves_at in enumerate((1, 4, 2, 6), start=1):
        line.steps = 0
        training = Training(kind, line, save_every=save_every)
        outcome = lease(number, training, line, tmp_path)
        assert isinstance(outcome, StoppedEarly)
        assert outcome.preempted
        computed += len(training.computed)
    line.leaves_at, line.steps = None, 0
    training = Training(kind, line, save_every=save_every)
    assert isinstance(lease(9, training, line, tmp_path), Returned)
    assert computed + len(training.computed) == EPOCHS * STEPS
    assert all(within for *_, within in line.checkpoints)
    assert_as(training, line, undisturbed(kind))


@settings(max_examples=6, deadline=None)
@given(ends=st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=5), scaled=st.booleans())
def test_any_chain_of_ends(tmp_path_factory, undisturbed, ends, scaled):
    """Kills and warnings after any numbers of steps, with gradients that are scaled, overflow and are clipped."""
    folder, line = tmp_path_factory.mktemp("chain"), Line()
    for number, (warned, steps) in enumerate(ends, start=1):
        line.steps, line.leaves_at = 0, steps if warned else None
        training = Training("DataLoader", line, save_every=1, scaled=scaled)
        training.dies_at = None if warned else steps
        try:
            outcome = lease(number, training, line, folder)
        except KeyboardInterrupt:
            continue
        if isinstance(outcome, Returned):
            break
    else:
        line.leaves_at = None
        training = Training("DataLoader", line, save_every=1, scaled=scaled)
        assert isinstance(lease(len(ends) + 1, training, line, folder), Returned)
    assert_as(training, line, undisturbed("DataLoader", scaled=scaled))


def test_slots(tmp_path, undisturbed):
    """With slots, the steps of the slots' generators go on as well."""
    line = Line()
    line.leaves_at = 3
    assert lease(1, Training("Loader", line, slots=2), line, tmp_path).preempted
    line.leaves_at = None
    training = Training("Loader", line, slots=2)
    lease(2, training, line, tmp_path)
    assert_as(training, line, undisturbed("Loader", 2))


def test_saved_at_reports_only(tmp_path, undisturbed):
    """With save_every=None an epoch that was interrupted begins anew, and a warning waits for its report."""
    line = Line()
    first = Training("DataLoader", line, save_every=None)
    first.dies_at, line.leaves_at = 9, 2
    with pytest.raises(KeyboardInterrupt):
        lease(1, first, line, tmp_path)
    assert [step for _, step, _ in line.checkpoints] == [6]
    line.steps = 0
    second = Training("DataLoader", line, save_every=None)
    assert isinstance(lease(2, second, line, tmp_path), Returned)
    assert len(second.computed) == 12
    assert_as(second, line, undisturbed("DataLoader"))


def test_steps_of_others_are_not_gone_through_again(tmp_path):
    """Where the function takes steps of its own beside `run.step`, nothing is saved within the epoch."""
    line = Line()

    def train(trial):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = trial.prepare(model, optimizer, loss=lambda model, x: model(x).square().mean(), save_every=1)
        for _ in trial.epochs():
            for _ in range(3):
                run.step(torch.rand(4, 1))
                model(torch.rand(4, 1)).sum().backward()
                optimizer.step()
            trial.report(loss=1.0)

    lease(1, train, line, tmp_path)
    # The first step of an epoch was followed by none of the function's own yet.
    assert [step for _, step, _ in line.checkpoints] == [1, 6, 7, 12, 13, 18]


def test_another_number_of_steps_is_refused(tmp_path):
    """An epoch that ends before the steps that are known cannot be gone on with, and says why."""
    line = Line()

    def train(trial, steps):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = trial.prepare(model, optimizer, loss=lambda model, x: model(x).square().mean(), save_every=1)
        for _ in trial.epochs():
            for _ in range(steps):
                run.step(torch.rand(4, 1))
                line.steps += 1
            trial.report(loss=1.0)

    line.leaves_at = 4
    assert lease(1, partial(train, steps=5), line, tmp_path).preempted
    line.leaves_at = None
    outcome = lease(2, partial(train, steps=3), line, tmp_path)
    assert isinstance(outcome, Raised)
    assert "epoch 1 was interrupted after step 5 and has now ended after step 3" in outcome.message
    assert "save_every=None" in outcome.message


def test_a_clone_goes_on_from_the_end_of_an_epoch(tmp_path):
    """Its parent is within an epoch: what is put by is the checkpoint at the end of the one before, with no replay."""
    line = Line()
    first = Training("DataLoader", line, save_every=1)
    first.dies_at = STEPS + 4
    with pytest.raises(KeyboardInterrupt):
        lease(1, first, line, tmp_path)
    kept = [Manifest.read(path) for path in (tmp_path / "checkpoints/trial-000005/lease-1").glob("step-*")]
    assert sorted((one.step, one.epoch) for one in kept) == [(STEPS, 1), (STEPS + 3, 1), (STEPS + 4, 1)]
    parent = TrialState(5, leases={1: Lease(1)})
    assert link_parent_checkpoint(tmp_path, parent, 3, 6) == 1
    [put] = (tmp_path / "checkpoints/trial-000003/put-by").iterdir()
    assert Manifest.read(put).step == STEPS


class Odd:
    """A loader whose state no checkpoint can hold."""

    def __iter__(self):
        return batches_drawn(None)

    def __len__(self):
        return STEPS

    def state_dict(self):
        return {"position": object()}

    def load_state_dict(self, state):
        raise AssertionError


def test_a_loader_whose_state_cannot_be_kept(tmp_path, monkeypatch):
    """Nothing is saved within its epochs; that a warning comes changes nothing before the report."""
    monkeypatch.setitem(LOADERS, "odd", lambda trial: Odd())
    line = Line()
    line.leaves_at = 2
    outcome = lease(1, Training("odd", line, save_every=1), line, tmp_path)
    assert isinstance(outcome, Raised)
    assert "a checkpoint cannot keep object" in outcome.message


def test_many_losses_keep_their_bits():
    """Losses are stacked from time to time; they come back in their type, NaN and infinity too."""
    replay = EpochReplay(None)
    replay.begin(1, keep=True)
    values = torch.randn(5000).to(torch.bfloat16)
    values[7], values[3000] = math.nan, math.inf
    for value in values:
        replay.note(value)
    other = EpochReplay(None)
    other.load_state_dict(replay.state_dict())
    other.begin(1, keep=True)
    back = torch.stack([other.recall("cpu") for _ in values])
    assert back.dtype == torch.bfloat16
    assert torch.equal(back.view(torch.int16), values.view(torch.int16))
    assert not other.replays
    assert other.state_dict() == replay.state_dict()

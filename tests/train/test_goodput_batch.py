"""A trial that chooses its batch by goodput: larger where steps have overhead and gradients are noisy."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import trainwright as tw
from trainwright.engine.process.run_assignment import run_assignment
from trainwright.schedule.allocator.estimates import adascale_gain
from trainwright.train import goodput_batch
from trainwright.train.assignment import Assignment

SIZE, SAMPLES, BATCH = 20, 256, 8
EPOCHS, OVERHEAD = 5, 0.003


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Every step takes three milliseconds, whatever else the machine does."""
    ticks = itertools.count()
    monkeypatch.setattr(goodput_batch, "time", SimpleNamespace(perf_counter=lambda: OVERHEAD * next(ticks)))


class Line:
    def __init__(self):
        self.notes, self.leaves_at, self.steps = [], None, 0

    def exchange(self, records):
        self.notes += [
            record.body["value"] for record in records if record.kind == "note" and record.body["name"] == "goodput"
        ]
        return True

    def leaves(self):
        return self.leaves_at is not None and self.steps >= self.leaves_at


class Training:
    def __init__(self, line, *, loader="torch", spread=3.0):
        self.line, self.loader, self.spread = line, loader, spread
        self.seen = {}

    def __call__(self, trial):
        draws = torch.Generator().manual_seed(0)
        data = torch.utils.data.TensorDataset(0.5 + self.spread * torch.randn(SAMPLES, SIZE, generator=draws))
        model = nn.Linear(SIZE, 1, bias=False)
        if self.loader == "ours":
            loader = tw.train.Loader(data, global_batch=BATCH, trial=trial)
        else:
            loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        run = trial.prepare(
            model, optimizer, loader, loss=self.loss_of, batch="goodput", micro_batch=SAMPLES, save_every=1
        )
        for epoch in trial.epochs():
            sizes = []
            for batch in run.loader:
                run.step(batch)
                sizes.append(len(batch[0]))
            self.seen[epoch] = (run.batch, sizes, run.learning_rate_scale)
            trial.report(loss=0.0)

    def loss_of(self, model, batch):
        self.line.steps += 1
        return model(batch[0]).mean()


def lease(number, training, line, folder, **settings):
    assignment = Assignment(
        trial=0, lease=number, params={}, seed=5, max_epochs=EPOCHS, directory=str(folder), **settings
    )
    return run_assignment(training, assignment, line, gpu=False)


@pytest.mark.parametrize("loader", ["torch", "ours"])
def test_grows_where_it_pays(tmp_path, loader):
    """Steps are all overhead and gradients all noise: the batch doubles from epoch to epoch, and the rate follows."""
    line = Line()
    training = Training(line, loader=loader)
    assert not hasattr(lease(1, training, line, tmp_path), "message")
    batches = [training.seen[epoch][0] for epoch in range(1, EPOCHS + 1)]
    assert batches[0] == BATCH
    assert sorted(batches) == batches
    assert all(after <= 2 * before for before, after in itertools.pairwise(batches))
    assert batches[-1] > BATCH
    # An epoch is as much progress as one of the loader's: by the noise that was known at its start.
    gain = adascale_gain(line.notes[-2]["noise"], batches[-1], BATCH)
    assert len(training.seen[EPOCHS][1]) == math.ceil(SAMPLES // BATCH / gain)
    assert 1.0 < training.seen[EPOCHS][2] <= batches[-1] / BATCH
    assert [note["shape"][1] for note in line.notes] == batches
    assert line.notes[-1]["noise"] > SIZE
    assert line.notes[-1]["step_seconds"] == pytest.approx(OVERHEAD)


def test_stays_where_gradients_are_certain(tmp_path):
    """Without noise a larger batch is worth nothing, whatever the overhead."""
    line = Line()
    training = Training(line, spread=0.0)
    lease(1, training, line, tmp_path)
    assert {batch for batch, *_ in training.seen.values()} == {BATCH}
    assert {len(sizes) for _, sizes, _ in training.seen.values()} == {SAMPLES // BATCH}


def test_an_interrupted_epoch_keeps_its_batch_and_its_length(tmp_path):
    """Told to leave in the third epoch: the next run has the very steps that were left."""
    line = Line()
    first, second = Training(line), Training(line)
    line.leaves_at = SAMPLES // BATCH + SAMPLES // (2 * BATCH) + 3
    assert lease(1, first, line, tmp_path).preempted
    done, line.leaves_at = len(first.seen), None
    assert done >= 1
    before = line.steps
    lease(2, second, line, tmp_path, reported_epoch=done)
    batch, sizes, _ = second.seen[done + 1]
    assert set(sizes[:-1]) == {batch}
    # Steps of the interrupted epoch that were done are not computed again.
    computed = line.steps - before
    assert computed < sum(len(seen[1]) for seen in second.seen.values())


def test_what_the_study_knows_comes_with_the_assignment(tmp_path):
    """A trial that resumes on a study's step times begins with a batch beyond the first doubling."""
    line = Line()
    training = Training(line)
    known = tuple(((BATCH, SAMPLES), (1, micro, 1), 1.0) for micro in (BATCH, 2 * BATCH, 4 * BATCH))
    lease(1, training, line, tmp_path, step_times=known)
    assert training.seen[2][0] >= 4 * BATCH


def train_in_a_study(trial):
    """Report what the study knew of step times when this run began."""
    training = Training(Line())
    report, known = trial.report, len(trial.assignment.step_times)
    trial.report = lambda **_: report(loss=trial.number + 1.0, known=known)
    training(trial)


def test_a_study_hands_on_what_its_trials_have_measured(tmp_path):
    """The second trial begins with the step times of the first, which are notes in the ledger."""
    study = tw.Study(tw.Space(x=tw.Float(0, 1)), "min loss", directory=tmp_path, seed=0)
    scheduler = tw.Scheduler(tw.FixedEpochs(3), tw.MarginalGain())
    study.run(train_in_a_study, trials=2, scheduler=scheduler, engine=tw.Local(workers=0), progress=False)
    known = [[report.metrics["known"] for report in trial.reports.values()] for trial in study.trials]
    assert known[0] == [0, 0, 0]
    assert known[1][0] >= 2

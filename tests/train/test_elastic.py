"""A trial on one, two and four processes, and from one number to another: the same parameters, step for step."""

import gc
import itertools
import socket
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainwright as tw
from rank_processes import on_processes
from trainwright.checkpoint import CheckpointConfig, Manager
from trainwright.engine import Raised, Returned, StoppedEarly
from trainwright.engine.process.run_assignment import run_assignment
from trainwright.train import Loader, TrialEnd
from trainwright.train.assignment import Assignment

EPOCHS, BATCH, SAMPLES = (
    4,
    8,
    35,
)  # five steps an epoch; three samples in the last batch, so that a fourth rank has none
RESIZES = [1, 2, 4, 2]


class Ledger:
    """What a driver would know: it lets each run of the trial come to so many reports."""

    def __init__(self):
        self.reports, self.checkpoints, self.saved_step, self.asked = {}, 0, 0, 99

    def leaves(self):
        return False

    def exchange(self, records):
        for record in records:
            if record.kind == "reported":
                assert record.body["epoch"] not in self.reports, "an epoch was reported twice"
                self.reports[record.body["epoch"]] = record.body["metrics"]
                self.asked -= 1
            if record.kind == "checkpointed":
                self.checkpoints += 1
                self.saved_step = record.body["step"]
        return self.asked > 0


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(torch.arange(SAMPLES), x, torch.sin(x.sum(1, keepdim=True)))


def loss_of(model, batch):
    _, x, y = batch
    return (model(x) - y).square().mean()


class Branching(nn.Sequential):
    """Leaves out its last layer for some batches."""

    def forward(self, x):
        hidden = self[1](self[0](x))
        return self[2](hidden) if x[0, 0] > 0 else hidden.mean(1, keepdim=True)


class Training:
    """A small network in float64; what was done comes back in `seen`, by epoch."""

    def __init__(self, *, optimizer="Adam", loader="ours", own_loop=False, branches=False, clip=None, **prepared):
        self.clip = clip
        self.optimizer, self.loader, self.own_loop, self.branches = optimizer, loader, own_loop, branches
        self.prepared = prepared

    def __call__(self, trial):
        torch.manual_seed(5)
        network = Branching if self.branches else nn.Sequential
        model = network(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()
        settings = {"lr": 0.05, "momentum": 0.9} if self.optimizer == "SGD" else {"lr": 0.01}
        optimizer = getattr(torch.optim, self.optimizer)(model.parameters(), **settings)
        if self.clip is not None:
            optimizer.register_step_pre_hook(
                lambda *_: nn.utils.clip_grad_norm_(model.parameters(), self.clip) and None
            )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS, eta_min=1e-3)
        run = trial.prepare(model, optimizer, self._batches(trial), loss=loss_of, schedule=schedule, **self.prepared)
        self.seen = {}
        for epoch in trial.epochs():
            steps, losses = [], []
            for batch in run.loader:
                held = batch[0].tolist() if run._share else []
                steps.append((held, run.micro_batch, run.accumulate, run.learning_rate_scale))
                losses.append(self._step(run, optimizer, batch))
            schedule.step()
            self.seen[epoch] = steps
            parameters = torch.cat([value.flatten() for value in model.state_dict().values()])
            self.final = (parameters.tolist(), schedule.get_last_lr(), optimizer.param_groups[0]["lr"])
            trial.report(loss=sum(losses) / len(losses))

    def _step(self, run, optimizer, batch):
        if not self.own_loop:
            return run.step(batch).item()
        optimizer.zero_grad()
        loss = loss_of(run.model, batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    def _batches(self, trial):
        if self.loader in {"ours", "whole batches"}:
            return Loader(data(), global_batch=BATCH, trial=trial, drop_last=self.loader == "whole batches")
        generator = None if self.loader == "global generator" else torch.Generator().manual_seed(3)
        workers = 2 if self.loader == "own generator, workers" else 0
        return DataLoader(data(), batch_size=BATCH, shuffle=True, generator=generator, num_workers=workers)


def member(training, assignment, ledger):
    torch.set_num_threads(1)
    outcome = run_assignment(training, assignment, ledger, gpu=False)
    return outcome, training.__dict__.get("seen"), training.__dict__.get("final"), ledger


def lease(number, world, training, ledger, folder, *, asked=99, start=1, act=member):
    """Run a lease of the trial on `world` processes; return what each of them has to tell, by rank."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    ledger.asked = asked
    given = []
    for rank in range(world):
        assignment = Assignment(
            trial=3, lease=number, params={}, seed=11, max_epochs=EPOCHS, directory=str(folder),
            reported_epoch=max(ledger.reports, default=0), saved_step=ledger.saved_step, rank=rank, world_size=world,
            address=address, start_devices=start,
        )  # fmt: skip
        given.append((training, assignment, ledger))
    found = on_processes(act, given)
    ledger.__dict__.update(found[0][-1].__dict__)
    return found


def through(worlds, training, folder, **settings):
    """Run a trial on these numbers of processes, an epoch each; return its ledger, its steps and where it ended.

    A change of the number is a new lease; so is a number in a list of its own.
    """
    runs = worlds if isinstance(worlds[0], list) else [list(run) for _, run in itertools.groupby(worlds)]
    ledger, seen = Ledger(), {}
    for number, run in enumerate(runs, 1):
        ranks = lease(number, run[0], training, ledger, folder, asked=len(run), **settings)
        assert all(isinstance(outcome, StoppedEarly | Returned) for outcome, *_ in ranks), ranks[0][0]
        for epoch in ranks[0][1]:
            by_step = zip(*(rank[1][epoch] for rank in ranks), strict=True)
            seen[epoch] = [([index for held, *_ in parts for index in held], *parts[0][1:]) for parts in by_step]
        final = ranks[0][2]
        assert all(rank[2] == final for rank in ranks), "ranks hold equal copies, to the last bit"
    return ledger, seen, final


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return what one process comes to, by optimizer and loader."""
    known = {}

    def get(optimizer, loader):
        if (optimizer, loader) not in known:
            training = Training(optimizer=optimizer, loader=loader)
            known[optimizer, loader] = through([1] * EPOCHS, training, tmp_path_factory.mktemp("alone"))
        return known[optimizer, loader]

    return get


def assert_same(found, expected):
    """Parameters and losses to 1e-10, the samples of every step exactly, the schedule at the same place."""
    (ledger, seen, final), (ledger_alone, seen_alone, final_alone) = found, expected
    assert apart(final[0], final_alone[0]) <= 1e-10
    assert final[1:] == final_alone[1:]
    assert samples(seen) == samples(seen_alone)
    losses = [[report["loss"] for _, report in sorted(one.reports.items())] for one in (ledger, ledger_alone)]
    assert apart(*losses) <= 1e-10


def apart(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def samples(seen):
    """Return the samples of each step, by epoch."""
    return {epoch: [sorted(step[0]) for step in steps] for epoch, steps in seen.items()}


def test_resized_at_every_epoch(alone, tmp_path):
    """1, 2, 4 and 2 processes, with an uneven last batch: twenty steps as on one, and one checkpoint a report."""
    found = through(RESIZES, Training(), tmp_path)
    assert_same(found, alone("Adam", "ours"))
    assert found[0].checkpoints == EPOCHS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worlds", "start", "settings"),
    [
        ([2] * EPOCHS, 2, {"optimizer": "SGD"}),
        ([4] * EPOCHS, 4, {}),
        (RESIZES, 1, {"loader": "own generator"}),
        (RESIZES, 1, {"loader": "own generator, workers"}),
        (RESIZES, 1, {"optimizer": "SGD", "loader": "own generator"}),
        ([1, 3, 1, 3], 1, {"micro_batch": 2}),  # shares of three, three and two samples
        ([1, 2, 4, 1], 4, {}),  # began on four: one takes four micro-batches of two, two take two
        ([1, 2, 4, 1], 1, {"micro_batch": 3}),  # of which none divides a share of eight, four or two: two, two, two
        ([1, 2, 4, 2], 1, {"loader": "own generator", "micro_batch": 1}),
    ],
)
def test_any_number_of_processes(alone, tmp_path, worlds, start, settings):
    """From the start, resized, and with accumulated micro-batches: always the steps of one process."""
    kind = {"optimizer": "Adam", "loader": "ours"} | settings
    _, seen, _ = found = through(worlds, Training(**settings), tmp_path, start=start)
    assert_same(found, alone(kind["optimizer"], kind["loader"]))
    for world, epoch in zip(worlds, sorted(seen), strict=True):
        for _, micro_batch, accumulate, scale in seen[epoch]:
            share = -(-BATCH // world)
            assert accumulate == -(-share // micro_batch)
            assert BATCH % world or micro_batch * accumulate == share
            assert micro_batch <= settings.get("micro_batch", BATCH // start)
            assert scale == 1.0


@pytest.mark.slow
def test_resumed_on_four_processes_bit_for_bit(tmp_path):
    """Interrupted and not, with a branch of the model that only some steps take: DDP keeps its grouping."""
    training = Training(branches=True, find_unused_parameters=True)
    runs = [through(worlds, training, tmp_path / str(len(worlds))) for worlds in ([[4] * EPOCHS], [[4], [4, 4], [4]])]
    assert runs[0][1:] == runs[1][1:]
    assert runs[0][0].reports == runs[1][0].reports


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_a_parameter_that_a_step_leaves_out_is_named(tmp_path, micro_batch):
    """On two ranks, with the setting that mends it, before they take one message for another."""
    ranks = lease(1, 2, Training(branches=True, micro_batch=micro_batch), Ledger(), tmp_path)
    assert any("trial.prepare(..., find_unused_parameters=True)" in str(outcome) for outcome, *_ in ranks)


@pytest.mark.slow
def test_clipped_gradients_are_those_of_one_process(alone, tmp_path):
    """A hook of the optimizer sees the gradient of the whole batch, on any number of ranks."""
    found = [through(worlds, Training(clip=0.05), tmp_path / str(len(worlds))) for worlds in ([[1] * EPOCHS], RESIZES)]
    assert apart(found[0][2][0], found[1][2][0]) <= 1e-10
    assert apart(found[0][2][0], alone("Adam", "ours")[2][0]) > 1e-6


@pytest.mark.slow
def test_a_loop_of_the_users_own(alone, tmp_path):
    """Backward on `run.model` gives the gradient of the whole batch, its uneven last one too."""
    found = through(RESIZES, Training(own_loop=True), tmp_path)
    _, _, final = alone("Adam", "ours")
    assert apart(found[2][0], final[0]) <= 1e-10


class Sampling:
    """A loop with a manager of its own, which ends after so many steps; the samples come back in `seen`."""

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, trial):
        loader = Loader(data(), global_batch=BATCH, trial=trial)
        manager = Manager(trial, config=CheckpointConfig(interval=1, writer="thread"), loader=loader)
        manager.restore(mode="best_effort")
        self.seen = {1: []}
        self.final = None
        for index, *_ in loader:
            self.seen[1].append((index.tolist(),))
            manager.step()
            if len(self.seen[1]) == self.steps:
                raise TrialEnd


@pytest.mark.slow
def test_an_epoch_that_is_resized_in_its_middle(tmp_path):
    """On one, two and again one process, two steps each: the data set, each sample once."""
    ledger, seen = Ledger(), []
    for number, world in enumerate([1, 2, 1], 1):
        ranks = lease(number, world, Sampling(steps=2), ledger, tmp_path)
        assert all(isinstance(outcome, StoppedEarly | Returned) for outcome, *_ in ranks), ranks[0][0]
        seen += [index for rank in ranks for step in rank[1][1] for index in step[0]]
    assert sorted(seen) == list(range(SAMPLES))


@pytest.mark.slow
def test_slots_are_equal_to_the_last_bit(tmp_path):
    """As on one process, through resizes; batches are a multiple of the slots."""
    training = Training(slots=4, loader="whole batches")
    runs = [through(worlds, training, tmp_path / str(len(set(worlds)))) for worlds in ([1] * EPOCHS, RESIZES)]
    assert runs[0][0].reports == runs[1][0].reports
    assert runs[0][2] == runs[1][2]
    assert samples(runs[0][1]) == samples(runs[1][1])
    assert [runs[1][1][epoch][0][1:3] for epoch in (1, 2, 3)] == [(2, 4), (2, 2), (2, 1)]


@pytest.mark.slow
def test_a_batch_that_grows(tmp_path):
    """With the devices: the rate follows by sqrt for Adam, from where it was, and never over its aim."""
    ledger, seen, _ = through([1, 2, 4], Training(batch="grow", warmup_steps=2), tmp_path)
    assert [len(seen[epoch]) for epoch in (1, 2, 3)] == [5, 3, 2]
    assert [sorted(itertools.chain(*steps)) for steps in samples(seen).values()] == [list(range(SAMPLES))] * 3
    scales = [step[-1] for epoch in (1, 2, 3) for step in seen[epoch]]
    two, four = 2**0.5, 2.0
    assert scales == pytest.approx([1, 1, 1, 1, 1, 1, (1 + two) / 2, two, two, (two + four) / 2], abs=1e-12)
    assert all(
        micro_batch == BATCH and accumulate == 1 for steps in seen.values() for _, micro_batch, accumulate, _ in steps
    )
    assert len(ledger.reports) == 3


@pytest.mark.slow
def test_a_schedule_of_batches(alone, tmp_path):
    """The same on any number of devices: pairs of epoch and batch, in a run and over resizes."""
    pairs = [(2, 16), (4, 32)]
    runs = [
        through(worlds, Training(batch=pairs, loader="own generator", warmup_steps=3), tmp_path / str(len(set(worlds))))
        for worlds in ([1] * EPOCHS, [1, 1, 2, 4])
    ]
    assert_same(*runs)
    assert [len(steps) for steps in runs[0][1].values()] == [5, 3, 3, 2]


@pytest.mark.slow
def test_an_order_of_the_global_generator(tmp_path):
    """A DataLoader without a generator of its own: each epoch is the data set once, on any number of processes."""
    _, seen, _ = through(RESIZES, Training(loader="global generator"), tmp_path)
    assert [sorted(itertools.chain(*steps)) for steps in samples(seen).values()] == [list(range(SAMPLES))] * EPOCHS
    assert len({str(steps) for steps in samples(seen).values()}) == EPOCHS


def test_nothing_is_left_of_a_run(tmp_path):
    """A process that was a rank holds no model when its run is over: it may be one of another size next."""

    def left(training, assignment, ledger):
        outcome, *_ = member(training, assignment, ledger)
        gc.collect()
        return outcome, [str(each) for each in gc.get_objects() if type(each) is nn.Parameter], ledger

    for outcome, parameters, _ in lease(1, 2, Training(), Ledger(), tmp_path, asked=2, act=left):
        assert isinstance(outcome, StoppedEarly)
        assert parameters == []


def test_what_two_processes_cannot_share(tmp_path):
    """Sentences for loaders and batches that do not fit; they come from all ranks."""

    def refused(loader, **settings):
        training = Training(**settings)
        training._batches = lambda trial: loader
        outcome = lease(1, 2, training, Ledger(), tmp_path, start=2)[0][0]
        assert isinstance(outcome, Raised)
        return outcome.message

    assert refused([1, 2]) == (
        "prepare: the batches of a list cannot be shared by 2 processes; give tw.train.Loader, or a DataLoader with a "
        "batch_size over a data set with __len__ and __getitem__"
    )
    assert refused(DataLoader(data(), batch_size=9)) == (
        "prepare: a batch of 9 samples cannot be shared evenly by 2 processes; allowed: 1, 3, 9; give such a number of "
        "devices, or a batch that 2 divides"
    )


def trained(trial):
    """Report how many threads of earlier groups there are besides those of its own."""
    names = [task / "comm" for task in Path("/proc/self/task").iterdir()]
    threads = sum("gloo" in name.read_text() for name in names if name.exists())
    model = nn.Linear(4, 1)
    loader = DataLoader(TensorDataset(torch.ones(64, 4), torch.ones(64, 1)), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["rate"])
    run = trial.prepare(
        model, optimizer, loader, loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
    )
    for _ in trial.epochs():
        for batch in run.loader:
            run.step(batch)
        trial.report(loss=1.0, threads=threads)


def test_groups_of_trials_end_one_after_the_other(tmp_path):
    """DDP must not be what ends a group: it would wait for a thread that waits for Python's lock."""
    study = tw.Study(tw.Space(rate=tw.Float(0, 1e-3)), "min loss", directory=tmp_path / "study", seed=0)
    scheduler = tw.Scheduler(tw.FixedEpochs(1), tw.Fixed(2))
    engine = tw.Local(workers=2, gpus=())
    study.run(trained, trials=10, scheduler=scheduler, engine=engine, searcher=tw.RandomSearcher(), progress=False)
    threads = [trial.reports[1].metrics["threads"] for trial in study.trials]
    assert len(threads) == 10
    assert max(threads[5:]) <= max(threads[:5]) + 2

"""Batches apart from devices: how a step is shared, what the learning rate does, which samples are seen."""

import itertools
from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from trainwright.errors import TrialError
from trainwright.train import Loader, Trial
from trainwright.train.assignment import Assignment
from trainwright.train.batch_slicing import samples_in, slice_batch
from trainwright.train.batching import Batching, BatchStep, LearningRateRescaling, rank_share
from trainwright.train.loader_sharding import shard_batches
from trainwright.train.run import Run

counts = st.integers(1, 64)


class TestPortions:
    @given(count=counts, world=counts)
    def test_each_sample_is_one_rank_s(self, count, world):
        """In order, none more than one larger than another, rank 0 never without."""
        parts = [rank_share(count, rank, world) for rank in range(world)]
        assert list(itertools.chain(*parts)) == list(range(count))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert parts[0]


def shared(batch, processes, allowed):
    """Return the sentence about a batch that cannot be shared."""
    return (
        f"prepare: a batch of {batch} samples cannot be shared evenly by {processes} processes; allowed: {allowed}; "
        f"give such a number of devices, or a batch that {processes} divides"
    )


def of(devices):
    """Return the settings of a trial that is on as many devices as it began with."""
    return {"devices": devices, "start_devices": devices}


class TestBatching:
    @given(own=counts, world=st.integers(1, 8), most=st.none() | counts, start=st.integers(1, 8))
    def test_micro_batches_make_the_batch(self, own, world, most, start):
        """The largest that divides a rank's share and is not over the limit."""
        batching = Batching(
            reference=own * world, processes=world, devices=world, start_devices=start, micro_batch=most
        )
        step = batching.at(1)
        limit = most or -(-own * world // start)
        assert step.micro_batch * step.accumulate * world == step.batch == own * world
        assert step.micro_batch <= limit
        assert not any(own % larger == 0 for larger in range(step.micro_batch + 1, min(limit, own) + 1))

    @pytest.mark.parametrize(
        ("devices", "step"),
        [(1, BatchStep(batch=64, micro_batch=32, accumulate=2)),
         (2, BatchStep(batch=64, micro_batch=32, accumulate=1)),
         (4, BatchStep(batch=64, micro_batch=16, accumulate=1)),
         (64, BatchStep(batch=64, micro_batch=1, accumulate=1))],
    )  # fmt: skip
    def test_constant(self, devices, step):
        """A trial that began with 64 samples on two devices."""
        batching = Batching(reference=64, processes=devices, devices=devices, start_devices=2)
        assert (batching.at(1), batching.at(9).batch / batching.reference) == (step, 1.0)

    def test_grow(self):
        """The batch per device stays; one process may have several devices."""
        grown = Batching(rule="grow", reference=64, processes=8, devices=8, start_devices=2)
        assert grown.at(3) == BatchStep(batch=256, micro_batch=32, accumulate=1)
        one = Batching(rule="grow", reference=64, processes=1, devices=4, start_devices=2)
        assert one.at(1) == BatchStep(batch=128, micro_batch=32, accumulate=4)

    def test_moved_to_a_number_that_does_not_divide(self):
        """The trial goes on: the largest share says how."""
        moved = Batching(reference=32, processes=3, devices=3, start_devices=4)
        assert moved.at(1) == BatchStep(batch=32, micro_batch=6, accumulate=2)  # shares of 11 and 10

    def test_schedule(self):
        batching = Batching(rule=[(3, 128), (5, 32)], reference=64, processes=2, devices=2, start_devices=1)
        assert [batching.at(epoch).batch for epoch in range(1, 7)] == [64, 64, 128, 128, 32, 32]
        assert [batching.at(epoch).batch / batching.reference for epoch in (1, 3, 6)] == [1.0, 2.0, 0.5]

    @pytest.mark.parametrize(
        ("wrong", "sentence"),
        [
            ({"processes": 4} | of(4), shared(30, 4, "1, 2, 3, 5, 6, 10, 15, 30")),
            ({"processes": 60, "reference": 7} | of(60), shared(7, 60, "1, 7")),
            ({"processes": 2, "rule": [(4, 45)]} | of(2), shared(45, 2, "1, 3, 5, 9, 15, 45")),
            (
                {"rule": "grow", "devices": 3, "start_devices": 4},
                "prepare: batch='grow': 30 samples on 4 devices are no whole number on 3; give a batch that 4 divides",
            ),
            *(
                (
                    {"rule": rule},
                    (
                        f"prepare: batch: got {rule!r}; allowed: 'constant', 'grow', 'goodput', or pairs of epoch and "
                        "batch with rising epochs from 1, such as [(1, 64), (10, 128)]"
                    ),
                )
                for rule in ("double", 64, [], [64], [(0, 64)], [(1, 0)], [(1, 6.5)], [(3, 64), (2, 128)], [(3, 6, 9)])
            ),
            ({"micro_batch": 0}, "prepare: micro_batch: got 0; allowed: a whole number >= 1, or None"),
            ({"micro_batch": True}, "prepare: micro_batch: got True; allowed: a whole number >= 1, or None"),
        ],
    )
    def test_bad_input(self, wrong, sentence):
        with pytest.raises(TrialError) as caught:
            Batching(**{"reference": 30} | wrong)
        assert str(caught.value) == sentence


class Probe(torch.optim.SGD):
    """Keeps the rate with which it steps; torch calls its hooks twice, for the step of its base is hooked too."""

    def step(self, closure=None):
        self.used = [group["lr"] for group in self.param_groups]
        return super().step(closure)


class TestRescaling:
    @given(
        moves=st.lists(st.tuples(st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 8.0]), st.integers(0, 9), st.booleans())),
        length=st.integers(1, 6),
        rule=st.sampled_from(["linear", "sqrt"]),
    )
    def test_continuous_where_it_grows_and_never_over_its_aim(self, moves, length, rule):
        """Through any sequence of batches, steps, and restarts from a checkpoint, with nothing compounded."""
        rate = LearningRateRescaling(optimizer=None, rule=rule)
        for ratio, steps, restarts in moves:
            target = ratio if rule == "linear" else sqrt(ratio)
            if restarts:
                state, rate = rate.state_dict(), LearningRateRescaling(optimizer=None, rule=rule)
                rate.load_state_dict(state)
            before = rate.scale
            rate.rescale_lr(ratio, length)
            assert abs(rate.scale - min(before, target)) <= 1e-12
            seen = [rate.scale]
            for _ in range(steps):
                rate.step += 1
                seen.append(rate.scale)
            assert seen == sorted(seen)
            assert seen[-1] <= target
            assert steps < length or seen[-1] == target

    @pytest.mark.parametrize(
        ("ratio", "rule", "first"), [(2.0, "linear", 0.5), (4.0, "linear", 0.25), (2.0, "sqrt", sqrt(0.5))]
    )
    def test_the_factor_of_the_warm_up(self, ratio, rule, first):
        """SGD twice: 0.5; SGD four times: 0.25; Adam twice: 0.71 (of what it will be)."""
        rate = LearningRateRescaling(optimizer=None, rule=rule, warmup_steps=10)
        rate.rescale_lr(ratio, epoch_steps=99)
        assert rate.scale / rate.target == pytest.approx(first)
        rate.step = 5
        assert rate.scale / rate.target == pytest.approx(first + (1 - first) / 2)

    def test_the_schedule_never_sees_it(self):
        """A recursive schedule goes on from the plain rate; the optimizer steps with the scaled one."""
        model = nn.Linear(2, 1)
        torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = Probe([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.3}], lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        run = Run(
            a_trial(), model, optimizer, [0], loss=lambda model, _: model(torch.ones(1, 2)).sum(), schedule=schedule
        )
        run._rate.rescale_lr(2.0, epoch_steps=2)
        used = []
        for _ in range(3):
            run.step(None)
            schedule.step()
            used.append(optimizer.used)
        assert run._rate.step == 3
        assert used == [pytest.approx(rates) for rates in ([0.1, 0.3], [0.075, 0.225], [0.05, 0.15])]
        assert schedule.get_last_lr() == pytest.approx([0.0125, 0.0375])

    @pytest.mark.parametrize(
        ("name", "factor"), [("SGD", 4.0), ("Adam", 2.0), ("AdamW", 2.0), ("RMSprop", 2.0), ("Probe", 4.0)]
    )
    def test_rules_by_optimizer(self, name, factor):
        kind = globals().get(name) or getattr(torch.optim, name)
        rate = LearningRateRescaling(optimizer=kind(nn.Linear(1, 1).parameters(), lr=0.1), warmup_steps=0)
        rate.rescale_lr(4.0, epoch_steps=9)
        assert rate.scale == factor

    def test_bad_input(self):
        rate = LearningRateRescaling(optimizer=torch.optim.LBFGS(nn.Linear(1, 1).parameters()))
        rate.rescale_lr(1.0, epoch_steps=9)
        with pytest.raises(TrialError, match="'auto' knows no rule for LBFGS when the batch changes; give 'linear'"):
            rate.rescale_lr(2.0, epoch_steps=9)
        with pytest.raises(TrialError, match="learning_rate: got 'square'; allowed: 'auto', 'linear', 'sqrt', 'ada"):
            LearningRateRescaling(optimizer=None, rule="square")
        with pytest.raises(TrialError, match="warmup_steps: got -1; allowed: a whole number >= 0, or None"):
            LearningRateRescaling(optimizer=None, warmup_steps=-1)


@st.composite
def segments(draw):
    """Draw runs of so many steps on so many ranks with such a batch, until the epoch is over."""
    kinds = st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(1, 12))
    return [*draw(st.lists(kinds, max_size=4)), (99, *draw(kinds)[1:])]


class TestSampler:
    @settings(max_examples=40)
    @given(size=st.integers(1, 24), epoch=st.integers(1, 3), segments=segments())
    def test_a_resized_epoch_is_the_data_set_once(self, size, epoch, segments):
        """Resized after any steps to any number of ranks and any batch: the steps are those of one rank."""
        seen, expected = [], []
        state = None
        for steps, world, batch in segments:
            ranks = [loaded(size, epoch, state, batch, rank=rank, world_size=world) for rank in range(world)]
            parts = [taken(loader, steps) for loader in ranks]
            expected += taken(loaded(size, epoch, state, batch), steps)
            seen += [list(itertools.chain(*step)) for step in zip(*parts, strict=True)]
            state = ranks[0].state_dict()
            assert [loader.state_dict() for loader in ranks] == [ranks[0].state_dict()] * world
        assert seen == expected
        assert sorted(itertools.chain(*seen)) == list(range(size))


def loaded(size, epoch, state, batch, **place):
    loader = Loader(list(range(size)), global_batch=4, trial=a_trial(), **place)
    loader.load_state_dict((state or loader.state_dict()) | {"epoch": epoch})
    loader.arrange(batch)
    return loader


def taken(loader, steps):
    """Return the samples of the next steps; those without a share only stand in."""
    parts, state = [], loader.state_dict()
    for batch in itertools.islice(loader, steps):
        parts.append(batch.tolist() if loader.share else [])
        state = loader.state_dict()
    loader.load_state_dict(state)  # a pass that was left is over
    return parts


class TestCutting:
    def test_batches_of_all_kinds(self):
        x = torch.arange(5)
        assert samples_in({"x": x, "more": [x, (x,)]}) == 5
        parts = slice_batch({"x": x, "more": [x, (x,)]}, 2)
        assert [part["more"][1][0].tolist() for part in parts] == [[0, 1], [2, 3], [4]]

    @pytest.mark.parametrize(
        ("batch", "sentence"),
        [
            ("abc", "a batch of str cannot be cut into parts; allowed: tensors in lists and dicts"),
            ([], "a batch of list cannot be cut into parts; allowed: tensors in lists and dicts"),
            (torch.tensor(1), "a batch of one number cannot be cut; allowed: tensors whose first axis is the samples"),
            (
                [torch.ones(2), torch.ones(3)],
                "a batch whose tensors have [2, 3] samples cannot be cut; give them all as many",
            ),
        ],
    )
    def test_bad_input(self, batch, sentence):
        with pytest.raises(TrialError) as caught:
            samples_in(batch)
        assert str(caught.value) == sentence


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class TestPrepare:
    def prepared(self, loader, world=1, **more):
        model = nn.Linear(1, 1)
        return Run(a_trial(world), model, torch.optim.SGD(model.parameters(), lr=0.1), loader, **more)

    @pytest.mark.parametrize(
        ("loader", "sentence"),
        [
            (
                DataLoader(Stream(), batch_size=2),
                ("prepare: the batches of a DataLoader over a Stream cannot be shared by 2 processes; give "
                "tw.train.Loader, or a DataLoader with a batch_size over a data set with __len__ and __getitem__"),
            ),
            (
                DataLoader([1, 2], batch_size=None),
                ("prepare: the batches of a DataLoader over a list cannot be shared by 2 processes; give "
                "tw.train.Loader, or a DataLoader with a batch_size over a data set with __len__ and __getitem__"),
            ),
            (
                DataLoader([1, 2], sampler=DistributedSampler([1, 2], 2, 0)),
                ("prepare: the loader has a DistributedSampler, but prepare shares its batches itself; give "
                "DataLoader(..., shuffle=True) with the batch of all devices together"),
            ),
        ],
    )  # fmt: skip
    def test_a_loader_that_cannot_be_shared(self, loader, sentence):
        with pytest.raises(TrialError) as caught:
            shard_batches(loader, rank=0, world=2, ranks=2)
        assert str(caught.value) == sentence

    @pytest.mark.parametrize(
        ("loader", "settings", "sentence"),
        [
            (
                [1, 2], {"batch": "grow"},
                ("prepare: batch='grow' needs a loader of known batch size; give tw.train.Loader, or a DataLoader "
                "with a batch_size"),
            ),
            (
                None, {"slots": 4},
                ("prepare: slots=4 cuts batches and sums gradients by itself, in run.step; give loss=f, and no plan, "
                "memory, sync_bn or micro_batch, which is the batch over the slots"),
            ),
        ],
    )  # fmt: skip
    def test_what_does_not_fit(self, loader, settings, sentence):
        with pytest.raises(TrialError) as caught:
            self.prepared(loader, **settings)
        assert str(caught.value) == sentence

    def test_numbers_that_are_not_known(self):
        """For a loader that does not tell its batch."""
        with pytest.raises(
            TrialError, match=r"the micro-batch is known if trial\.prepare gets a loader of known batch size"
        ):
            self.prepared([1, 2]).micro_batch  # noqa: B018 -- asking is the test

    def test_micro_batches_of_a_loader_that_does_not_tell(self):
        """What comes is cut by the limit."""
        sizes = []

        def loss(model, batch):
            sizes.append(len(batch))
            return model(batch).mean()

        run = self.prepared([torch.ones(5, 1), torch.ones(2, 1)], loss=loss, micro_batch=2)
        for batch in run.loader:
            run.step(batch)
        assert sizes == [2, 2, 1, 2]


def a_trial(world=1):
    return Trial(Assignment(trial=0, lease=1, params={}, seed=3, max_epochs=9, world_size=world), channel=None)

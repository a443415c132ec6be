"""The manager: what is saved is one moment's state, training hardly waits, and what fails is told."""

import math
import mmap
import threading
import warnings
from pathlib import Path

import pytest
import torch
from faulty_files import FailingFiles, StallingFiles
from torch import nn

from trainwright.checkpoint import CheckpointConfig, Manager, Retention
from trainwright.checkpoint.owner import Owner
from trainwright.checkpoint.save.snapshot import Buffer
from trainwright.errors import (
    CheckpointConfigError,
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointStateError,
)

NEVER = 10**9
THREAD = CheckpointConfig(writer="thread", interval=NEVER)


class Training:
    """A small network with dropout and batch statistics, Adam and a schedule."""

    def __init__(self, seed=0, width=8):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.5)

    def items(self):
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def run(self, steps, manager=None):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(16, 4)).square().mean().backward()
            self.optimizer.step()
            self.schedule.step()
            if manager is not None:
                manager.step()

    def state(self):
        """Everything, copied: parameters, buffers, moments, schedule."""
        tensors = [value.clone() for value in self.model.state_dict().values()]
        for held in self.optimizer.state_dict()["state"].values():
            tensors += [held[name].clone() for name in sorted(held)]
        return tensors, self.schedule.state_dict()


def assert_same(one, other):
    assert one[1] == other[1]
    assert len(one[0]) == len(other[0])
    for pair in zip(one[0], other[0], strict=True):
        assert torch.equal(*pair)


@pytest.mark.parametrize("writer", ["sync", "thread"])
@pytest.mark.parametrize("staging", ["lazy", "eager"])
def test_resumed_equals_uninterrupted(tmp_path, writer, staging):
    """Saved at step 5 while training goes on, restored in new objects, and trained on: bit for bit the same."""
    config = CheckpointConfig(writer=writer, staging=staging, interval=5)
    training = Training()
    with Manager(tmp_path, config=config, **training.items()) as manager:
        assert manager.restore() is None
        training.run(9, manager)
    whole = training.state(), torch.get_rng_state()
    again = Training(seed=1)
    with Manager(tmp_path, config=config, **again.items()) as manager:
        restored = manager.restore()
        assert (restored.step, manager.steps, restored.differences) == (5, 5, ())
        again.run(4, manager)
    assert_same(again.state(), whole[0])
    assert torch.equal(torch.get_rng_state(), whole[1])


def test_a_snapshot_is_of_the_moment_of_the_call(tmp_path):
    """Steps right after `save` do not reach into it: the hook before each waits for the copy."""
    training = Training()
    training.run(2)
    with Manager(tmp_path, config=THREAD, **training.items()) as manager:
        for _ in range(20):
            before = training.state()
            manager.save()
            training.run(1, manager)
            manager.drain()
            after = training.state()
            found = Training(seed=7)
            with Manager(tmp_path, **found.items()) as other:
                other.restore()
            assert_same(found.state(), before)
            assert not torch.equal(before[0][0], after[0][0])


def test_a_change_behind_the_optimizers_back(tmp_path):
    """A weight that is written to while it is copied spoils the snapshot: it is thrown away and made again at once."""
    training = Training()
    training.run(2)
    with Manager(tmp_path, config=THREAD, **training.items()) as manager:
        saver = manager._saver
        holding = threading.Event()
        saver._stager.submit(holding.wait)  # so that the copy begins after the change
        handle = manager.save()
        with torch.no_grad():
            training.model[0].weight.add_(1.0)
        holding.set()
        with pytest.raises(
            CheckpointError, match=r"model.0.weight changed outside of the optimizer's step while it was"
        ):
            handle.manifest  # noqa: B018 -- it waits, and raises
        with pytest.warns(UserWarning, match=r"it is saved again at the next step.*staging='eager'"):
            manager.step()
        assert not list(tmp_path.glob("step-000000000000"))
        state = training.state()
        assert [record.verdict[:6] for record in manager.history] == ["failed"]
    found = Training(seed=7)
    with Manager(tmp_path, **found.items()) as other:
        assert other.restore().step == 1
    assert_same(found.state(), state)


def test_batch_statistics_are_copied_at_once(tmp_path):
    """A forward pass right after `save` moves buffers, and is not in it."""
    training = Training()
    training.run(2)
    with Manager(tmp_path, config=THREAD, **training.items()) as manager:
        holding = threading.Event()
        manager._saver._stager.submit(holding.wait)
        before = training.state()
        manager.save()
        training.model(torch.randn(16, 4))
        holding.set()
    found = Training(seed=7)
    Manager(tmp_path, **found.items()).restore()
    assert_same(found.state(), before)


class TestBackPressure:
    def test_wait(self, tmp_path):
        """With one buffer a save waits for the one before, and none is left out."""
        training, files = Training(), StallingFiles()
        training.run(1)
        with Manager(tmp_path, config=THREAD, files=files, **training.items()) as manager:
            first = manager.save()
            files.reached.wait()
            threading.Timer(0.05, files.released.set).start()
            second = manager.save()
            assert first.committed.done()
            assert second.blocking_seconds > 0.0
        assert [record.verdict for record in manager.history] == ["good", "good"]

    def test_memory_is_bounded(self, tmp_path):
        """However often it is saved, there is one buffer, as large as the state."""
        training = Training(width=4096)
        training.run(1)
        size = sum(tensor.nbytes for tensor in training.state()[0])
        with Manager(tmp_path, config=THREAD, **training.items()) as manager:
            for _ in range(6):
                manager.save()
                training.run(1)
            manager.drain()
            assert size <= manager._saver.buffer.size <= size + 65536


class TestFailures:
    def test_a_warning_and_training_goes_on(self, tmp_path):
        """A save that fails warns at the next step; the next is tried, and too many in a row raise."""
        training = Training()
        files = FailingFiles()
        config = CheckpointConfig(writer="thread", interval=NEVER, max_failures=2)
        with Manager(tmp_path, config=config, files=files, **training.items()) as manager:
            files.at, files.count, files.times = 1, 0, NEVER
            manager.save().committed.exception()
            with pytest.warns(UserWarning, match="cannot save the checkpoint of step 0 .*: no space left"):
                manager.step()
            files.at = NEVER
            manager.save(wait=True)
            files.at, files.count, files.times = 1, 0, NEVER
            with pytest.warns(UserWarning, match="cannot save the checkpoint of step 1"):
                manager.save(wait=True)
            manager.save().committed.exception()
            with pytest.raises(CheckpointError, match="cannot save the checkpoint of step 1"):
                manager.step()
            verdicts = [record.verdict[:6] for record in manager.history]
        assert verdicts == ["failed", "good", "failed", "failed"]

    def test_raise(self, tmp_path):
        files = FailingFiles()
        config = CheckpointConfig(writer="thread", on_error="raise")
        with Manager(tmp_path, config=config, files=files, x=torch.zeros(2)) as manager:
            files.at, files.count, files.times = 1, 0, NEVER
            with pytest.raises(CheckpointError, match="cannot save the checkpoint of step 0"):
                manager.save(wait=True)
            files.at = NEVER

    def test_values_that_are_not_finite(self, tmp_path):
        """A spoilt network is not saved, the one before stays, and training is told or ended as one likes."""
        training = Training()
        training.run(1)
        for what in ("refuse", "raise"):
            config = CheckpointConfig(writer="thread", interval=NEVER, on_nonfinite=what)
            folder = tmp_path / what
            with Manager(folder, config=config, **training.items()) as manager:
                manager.save(wait=True)
                training.run(1, manager)
                with torch.no_grad():
                    training.model[0].weight[1, 2] = math.nan
                sentence = "step 1 is not saved: model.0.weight holds values that are not finite"
                with (
                    pytest.raises(CheckpointError, match=sentence)
                    if what == "raise"
                    else pytest.warns(UserWarning, match=sentence)
                ):
                    manager.save(wait=True)
                assert [record.verdict[:7] for record in manager.history] == ["good", "refused"]
                with torch.no_grad():
                    training.model[0].weight[1, 2] = 0.0
            assert [path.name for path in folder.iterdir()] == ["step-000000000000"]

    def test_the_body_of_a_with_raises(self, tmp_path):
        """What was under way is finished, and nothing new is begun."""
        training, files = Training(), StallingFiles()
        manager = Manager(tmp_path, config=THREAD, files=files, **training.items())

        def body():
            with manager:
                manager.save()
                files.released.set()
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            body()
        assert [path.name for path in tmp_path.iterdir()] == ["step-000000000000"]
        manager.close()
        with pytest.raises(CheckpointStateError, match="the manager is closed; save before close, or make a new"):
            manager.save()


class TestRestore:
    def saved(self, folder, *steps):
        training = Training()
        with Manager(
            folder, config=CheckpointConfig(writer="sync", retention=Retention(last=9)), **training.items()
        ) as m:
            for step in steps:
                m.steps = step
                m.save()
        return training

    def test_a_step(self, tmp_path):
        self.saved(tmp_path, 1, 2, 3)
        with Manager(tmp_path, **Training().items()) as manager:
            assert manager.restore(2).step == 2
            with pytest.raises(CheckpointNotFoundError, match="no good checkpoint of step 4; there are: 1, 2, 3"):
                manager.restore(4)

    def test_going_back_is_a_line_of_its_own(self, tmp_path):
        """After a restore of an older step its successors are the newest, whatever the others' steps."""
        self.saved(tmp_path, 10, 20, 30)
        training = Training()
        with Manager(tmp_path, config=CheckpointConfig(writer="sync"), **training.items()) as manager:
            manager.restore(10)
            training.run(5, manager)
            manager.save()
        with Manager(tmp_path, **training.items()) as manager:
            assert manager.restore().step == 15

    @pytest.mark.parametrize("check", [True, False])
    def test_a_damaged_manifest(self, tmp_path, check):
        """The one before is taken, and the damaged one quarantined under a name that says so."""
        self.saved(tmp_path, 1, 2)
        path = tmp_path / "step-000000000002/manifest.json"
        path.write_bytes(path.read_bytes()[:-9])
        with Manager(tmp_path, **Training().items()) as manager:
            assert manager.restore(check=check).step == 1
        assert [path.name[:23] for path in tmp_path.glob(".bad*")] == [".bad-step-000000000002-"]

    def test_none_left(self, tmp_path):
        """A run whose checkpoints are all damaged does not begin anew, today or tomorrow."""
        self.saved(tmp_path, 1, 2)
        for path in tmp_path.glob("*/rank*"):
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
        with Manager(tmp_path, **Training().items()) as manager:
            for _ in range(2):
                with pytest.raises(
                    CheckpointCorruptError, match="every checkpoint is damaged and quarantined, one as "
                ):
                    manager.restore()

    def test_another_model(self, tmp_path):
        """All that does not fit is named, and nothing is loaded."""
        self.saved(tmp_path, 1)
        other = Training(seed=3, width=9)
        before = other.state()
        with Manager(tmp_path, **other.items(), extra=1) as manager:
            with pytest.raises(
                CheckpointMismatchError, match=r"model.0.weight was .*\[8, 4\].* and is .*\[9, 4\]"
            ) as caught:
                manager.restore()
            assert "extra was missing and is 'given'" in str(caught.value)
        assert_same(other.state(), before)
        assert list(tmp_path.glob("step-*"))

    def test_best_effort(self, tmp_path):
        """What fits is loaded, and the rest is told."""
        training = self.saved(tmp_path, 1)
        other = Training(seed=3)
        with Manager(tmp_path, model=other.model, extra=5) as manager:
            restored = manager.restore(mode="best_effort")
        assert [difference.item for difference in restored.differences] == ["extra", "optimizer", "schedule"]
        assert torch.equal(other.model[0].weight, training.model[0].weight)

    def test_memory_that_is_not_contiguous(self, tmp_path):
        """Weights of another memory format keep it, and their values."""
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        with Manager(tmp_path, config=THREAD, model=model) as manager:
            manager.save(wait=True)
            other = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        with Manager(tmp_path, model=other) as manager:
            manager.restore()
        assert torch.equal(model.weight, other.weight)
        assert other.weight.is_contiguous(memory_format=torch.channels_last)

    def test_generators_of_ones_own(self, tmp_path):
        generator = torch.Generator().manual_seed(3)
        torch.rand(5, generator=generator)
        with Manager(tmp_path, config=THREAD, order=generator) as manager:
            manager.save(wait=True)
            expected = torch.rand(5, generator=generator)
            manager.restore()
            assert torch.equal(torch.rand(5, generator=generator), expected)


class TestMisuse:
    @pytest.mark.parametrize(("items", "got"), [({}, "no state"), ({"rng": 1, "flags": 2}, "flags, rng")])
    def test_names(self, tmp_path, items, got):
        with pytest.raises(CheckpointStateError, match=f"Manager: got {got}; allowed: items such as model=model"):
            Manager(tmp_path, **items)

    def test_what_cannot_be_kept_is_refused_at_once(self, tmp_path):
        with pytest.raises(CheckpointStateError, match="model: a checkpoint cannot keep function"):
            Manager(tmp_path, model=lambda: 0)

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"interval": 0}, "interval: got 0; allowed: 'auto', seconds > 0"),
            ({"interval": -1.5}, "interval: got -1.5"),
            ({"interval": math.nan}, "interval: got nan"),
            ({"interval": "hourly"}, "interval: got 'hourly'"),
            ({"staging": "never"}, "staging: got 'never'; allowed: 'lazy', 'eager'"),
            ({"writer": "fork"}, "writer: got 'fork'; allowed: 'thread', 'sync'"),
            ({"on_error": "ignore"}, "on_error: got 'ignore'; allowed: 'warn', 'raise'"),
            ({"max_failures": True}, "max_failures: got True"),
            ({"mtbf_seconds": 0.0}, "mtbf_seconds: got 0.0; allowed: a number > 0"),
        ],
    )
    def test_settings(self, settings, sentence):
        with pytest.raises(CheckpointConfigError, match=f"CheckpointConfig.{sentence}"):
            CheckpointConfig(**settings)

    def test_settings_of_retention_and_screen(self):
        with pytest.raises(
            CheckpointConfigError, match=r"Retention.best: got 2 without a metric; give metric='val_loss'"
        ):
            Retention(best=2)
        with pytest.raises(CheckpointConfigError, match=r"Retention.last: got 0; allowed: a whole number >= 1"):
            Retention(last=0)
        with pytest.raises(CheckpointConfigError, match="on_nonfinite: got 'keep'; allowed: 'refuse', 'raise'"):
            CheckpointConfig(on_nonfinite="keep")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_two_hundred_saves_leak_nothing(tmp_path):
    """The memory of the process grows by less than one snapshot."""
    model = nn.Linear(1000, 1000)  # little memory goes by in a step
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.randn(2, 1000)).sum().backward()
        optimizer.step()

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    step()
    with Manager(tmp_path, config=THREAD, model=model, optimizer=optimizer) as manager:
        for number in range(240):
            manager.save()
            step()
            if number == 40:
                before = resident()
        manager.drain()
        assert resident() - before < manager._saver.buffer.size


def test_restored_from_memory(tmp_path):
    """A manager that is given the memory of the one before reads nothing of what that saved last."""
    buffer = Buffer()
    owner = Owner(folder=tmp_path, buffer=buffer)

    def resumed(seed):
        training = Training(seed=seed)
        with Manager(owner, **training.items()) as manager:
            manager.restore()
        return training

    training = Training()
    training.run(3)
    with Manager(owner, **training.items()) as manager:
        saved = manager.save(wait=True).committed.result()
    for file in saved.path.glob("rank-*"):
        file.write_bytes(bytes(file.stat().st_size))
    resumed(1).run(2)
    assert_same(resumed(2).state(), training.state())
    buffer.release()
    with pytest.raises(CheckpointCorruptError):
        resumed(3)


def test_when_it_saves(tmp_path):
    """By steps: after so many; and never between."""
    training = Training()
    config = CheckpointConfig(writer="sync", interval=4, retention=Retention(last=9))
    with Manager(tmp_path, config=config, **training.items()) as manager:
        training.run(3, manager)
        assert not manager.should_save()
        training.run(7, manager)
    assert [record.step for record in manager.history] == [4, 8]


def test_nothing_is_left_open(tmp_path):
    """After `close` the optimizer has no hook of ours, and no thread of ours lives."""
    training = Training()
    others = set(threading.enumerate())  # of managers that tests before have left to die
    with Manager(tmp_path, config=THREAD, **training.items()) as manager:
        manager.save()
        training.run(1, manager)
    assert not training.optimizer._optimizer_step_pre_hooks
    assert not [t for t in threading.enumerate() if t.name.startswith("trainwright") and t not in others]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manager.close()


def test_ranks_meet_before_anything_is_saved(tmp_path, monkeypatch):
    """They learn once, from the state that is kept, who has which tensors; saving and restoring rest on that."""
    from trainwright.checkpoint.ranks.ranks import SingleRank

    happened = []

    class Ranks(SingleRank):
        def exchange_names(self, state, captured):
            happened.append(("meet", sorted(state), sorted(captured.tensors)))

        def run_together(self, act):
            happened.append(("together", happened[0][0]))
            return act()

        def plan_write(self, captured, manifest, home):
            happened.append(("plan", happened[0][0]))
            return super().plan_write(captured, manifest, home)

    monkeypatch.setattr("trainwright.checkpoint.manager.make_ranks", lambda *_: Ranks())
    with Manager(tmp_path, x=torch.ones(2), model=torch.nn.Linear(1, 1)) as manager:
        manager.save(wait=True)
    assert happened[0] == ("meet", ["model", "x"], ["model.bias", "model.weight", "x"])
    assert [name for name, *_ in happened].count("meet") == 1
    assert ("plan", "meet") in happened


def test_a_step_that_a_graph_may_replay_is_not_waited_for(tmp_path):
    """A CUDA graph replays a `capturable` step without its hooks: the state is copied before `save` ends."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["capturable"] = True
    with Manager(tmp_path, model=model, optimizer=optimizer) as manager:
        assert manager.save().staged.done()

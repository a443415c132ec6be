"""Trial: which epoch a report is for, when it ends the trial, and the sentence for each misuse."""

import random
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trainwright.errors import CheckpointMismatchError, TrialError
from trainwright.ledger import facts
from trainwright.train import Trial, TrialEnd, seed_all
from trainwright.train.assignment import Assignment, as_number


class Channel:
    """Keeps the records; says stop after `reports` reports."""

    def __init__(self, reports=None):
        self.batches = []
        self.reports = reports

    def leaves(self):
        return False

    def exchange(self, records):
        self.batches.append(records)
        return self.reports is None or len(self.reported) < self.reports

    @property
    def reported(self):
        return [r.body for batch in self.batches for r in batch if r.kind == "reported"]

    @property
    def epochs(self):
        return [body["epoch"] for body in self.reported]


def make(max_epochs=None, reports=None, directory=None, **settings):
    channel = Channel(reports)
    assignment = Assignment(
        trial=17, lease=2, params={"lr": 0.1}, seed=5, max_epochs=max_epochs, directory=directory, **settings
    )
    return Trial(assignment, channel), channel


class TestEpochs:
    def test_as_long_as_the_scheduler_says(self):
        trial, channel = make(max_epochs=3)
        for epoch in trial.epochs():
            assert trial.next_epoch == epoch
            trial.report(val_loss=1 / epoch)
        assert channel.epochs == [1, 2, 3]

    def test_the_shorter_of_two_lengths(self):
        assert list(make(max_epochs=3)[0].epochs(5)) == [1, 2, 3]
        assert list(make(max_epochs=5)[0].epochs(3)) == [1, 2, 3]
        assert list(make()[0].epochs(2)) == [1, 2]

    def test_no_length_is_refused(self):
        trial, _ = make()
        with pytest.raises(
            TrialError, match=r"trial.epochs\(\) needs a length: give trial.epochs\(27\), or a scheduler"
        ):
            next(trial.epochs())

    def test_an_epoch_without_report_passes(self):
        """Reporting every third epoch is reporting epochs 3 and 6, and the end of the loop the last one."""
        trial, channel = make(max_epochs=7)
        for epoch in trial.epochs():
            if epoch % 3 == 0:
                trial.report(val_loss=1.0)
        trial.report(val_loss=0.5)
        assert channel.epochs == [3, 6, 7]


class TestReports:
    def test_without_epochs_they_count_up(self):
        trial, channel = make(max_epochs=3)
        for _ in range(3):
            trial.report(val_loss=1.0)
        assert channel.epochs == [1, 2, 3]

    def test_an_epoch_counts_once(self):
        """A second report of an epoch is ignored with one warning, and the next epoch keeps its number."""
        trial, channel = make(max_epochs=3)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for epoch in trial.epochs():
                trial.report(val_loss=1.0)
                trial.report(val_loss=2.0, epoch=epoch)
        [warning] = seen
        assert str(warning.message) == "trial 17: epoch 1 was reported before; later reports of it are ignored"
        assert warning.filename == __file__
        assert channel.epochs == [1, 2, 3]
        assert {body["metrics"]["val_loss"] for body in channel.reported} == {1.0}
        assert trial.close()[1:] == ({"val_loss": 1.0}, 3)

    def test_an_older_epoch_is_ignored(self):
        trial, channel = make()
        trial.report(epoch=5, val_loss=1.0)
        with pytest.warns(UserWarning, match="epoch 3 was reported before"):
            trial.report(epoch=3, val_loss=0.0)
        trial.report(val_loss=0.5)
        assert channel.epochs == [5, 6]

    def test_one_beyond_the_full_length_ends_the_trial(self):
        """A loop of the user's own that is too long ends quietly, and nothing beyond the length is recorded."""
        trial, channel = make(max_epochs=2)
        for _ in range(2):
            trial.report(val_loss=1.0)
        with pytest.raises(TrialEnd):
            trial.report(val_loss=1.0)
        assert channel.epochs == [1, 2]

    def test_the_end_passes_through_careless_handlers(self):
        """`except Exception` does not hold a trial that was told to end."""
        trial, channel = make(reports=2)

        def train():
            while True:
                try:
                    trial.report(val_loss=1.0)
                except Exception:  # noqa: BLE001
                    pytest.fail("the end was caught")

        with pytest.raises(TrialEnd):
            train()
        assert channel.epochs == [1, 2]

    def test_numbers_of_all_libraries(self):
        """Metrics become floats, epochs and steps whole numbers."""
        trial, channel = make()
        trial.report(
            epoch=np.int64(2),
            step=torch.tensor(7),
            a=torch.tensor([0.5]),
            b=np.float32(0.25),
            c=True,
            d=torch.nn.Parameter(torch.tensor(2.0)),
        )
        [body] = channel.reported
        assert (body["epoch"], body["step"]) == (2, 7)
        assert body["metrics"] == {"a": 0.5, "b": 0.25, "c": 1.0, "d": 2.0}
        assert {type(value) for value in (body["epoch"], body["step"], *body["metrics"].values())} == {int, float}

    def test_no_number(self):
        for value in ("0.5", b"1", None, [1.0], torch.zeros(2), np.zeros(2), 1j, 10**400, object()):
            assert as_number(value) is None

    @pytest.mark.parametrize(
        ("report", "sentence"),
        [
            ({}, "trial 17: report needs at least one metric, such as trial.report(val_loss=0.3)"),
            ({"val_loss": "0.3"}, "trial 17: val_loss must be a number, got '0.3' (str)"),
            ({"val_loss": None}, "trial 17: val_loss must be a number, got None (NoneType)"),
            ({"val_loss": torch.ones(2)}, "trial 17: val_loss must be a number, got tensor([1., 1.]) (Tensor)"),
            ({"val_loss": 1.0, "epoch": 0}, "trial 17: epoch: got 0; allowed: a whole number >= 1"),
            ({"val_loss": 1.0, "epoch": 1.5}, "trial 17: epoch: got 1.5; allowed: a whole number >= 1"),
            ({"val_loss": 1.0, "epoch": True}, "trial 17: epoch: got True; allowed: a whole number >= 1"),
            ({"val_loss": 1.0, "step": -1}, "trial 17: step: got -1; allowed: a whole number >= 0"),
            ({"val_loss": 1.0, "step": "9"}, "trial 17: step: got '9'; allowed: a whole number >= 0"),
        ],
    )
    def test_misuse(self, report, sentence):
        trial, channel = make()
        with pytest.raises(TrialError) as caught:
            trial.report(**report)
        assert str(caught.value) == sentence
        assert channel.batches == []

    def test_after_the_end(self):
        trial, _ = make()
        trial.close()
        with pytest.raises(TrialError, match="trial 17 has ended; report before the training function returns"):
            trial.report(val_loss=1.0)


class TestSurroundings:
    def test_what_it_knows(self):
        trial, _ = make(max_epochs=9)
        assert (trial.number, trial.params["lr"], trial.seed, trial.max_epochs, trial.device) == (17, 0.1, 5, 9, "cpu")

    @pytest.mark.parametrize(("available", "device"), [(True, "cuda:0"), (False, "cpu")])
    def test_device_of_a_run_with_a_gpu(self, monkeypatch, available, device):
        """A run that was given a GPU trains on it if torch can."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
        assert Trial(make()[0].assignment, Channel(), gpu=True).device == device
        assert Trial(make()[0].assignment, Channel()).device == "cpu"

    def test_device_without_torch(self, monkeypatch):
        """A machine with GPUs and no torch runs what needs none."""
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        assert Trial(make()[0].assignment, Channel(), gpu=True).device == "cpu"

    def test_a_study_in_memory_keeps_nothing(self):
        trial, _ = make()
        with pytest.raises(
            TrialError, match=r"trial 17: the study keeps nothing on disk; give tw.Study\(..., directory="
        ):
            trial.library_directory()

    def test_offers_come_with_the_next_report_or_the_end(self, tmp_path):
        trial, channel = make(directory=str(tmp_path))
        path = trial.library_directory()
        assert path == tmp_path / "library/trial-000017/lease-2"
        trial.offer(path / "a", {"x.npy": "00"}, 1)
        trial.report(val_loss=1.0)
        trial.offer(path / "b", {}, 2)
        [batch] = channel.batches
        assert [record.kind for record in batch] == ["offered", "reported"]
        assert batch[0].body["path"] == "library/trial-000017/lease-2/a"
        records, metrics, epoch = trial.close()
        assert records == [facts.offered(17, 2, epoch=2, path="library/trial-000017/lease-2/b", digests={})]
        assert (metrics, epoch) == ({"val_loss": 1.0}, 1)

    def test_seeds_reach_all_generators(self):
        """Equal seeds give equal draws of Python, NumPy and torch; others give others."""
        draws = []
        for seed in (2**62 + 3, 2**62 + 3, 4):
            seed_all(seed)
            draws.append((random.random(), np.random.random(), torch.rand(()).item()))  # noqa: NPY002
        assert draws[0] == draws[1]
        assert not set(draws[0]) & set(draws[2])


class TestPrepare:
    def parts(self):
        model = torch.nn.Linear(3, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.5)

    def test_twice(self):
        trial, _ = make()
        trial.prepare(*self.parts())
        with pytest.raises(TrialError, match=r"trial 17: prepare was called twice; call it once, before trial.epochs"):
            trial.prepare(*self.parts())

    def test_step_needs_a_loss(self):
        run = make()[0].prepare(*self.parts())
        with pytest.raises(
            TrialError, match=r"run.step needs a loss; give trial.prepare\(..., loss=f\) with f\(model, b"
        ):
            run.step(torch.zeros(1, 3))

    def test_step_is_one_optimizer_step(self):
        """Forward, backward, update: the loss comes back detached, and gradients do not add up over steps."""
        model, optimizer = self.parts()
        run = make()[0].prepare(model, optimizer, loss=lambda net, batch: net(batch).sum())
        before = model.weight.detach().clone()
        for number in (1, 2):
            loss = run.step(torch.ones(1, 3))
            assert not loss.requires_grad
            assert torch.allclose(model.weight, before - 0.5 * number)

    def test_batches_of_any_shape_are_placed(self):
        """Tensors in lists, tuples, named tuples and dicts go to the device; the rest is left alone."""
        batch = {"x": [torch.zeros(1), SimpleNamespace()], "y": (torch.ones(1), "label")}
        run = make()[0].prepare(*self.parts(), [batch])
        [placed] = run.loader
        assert len(run.loader) == 1
        assert placed["x"][1] is batch["x"][1]
        assert torch.equal(placed["y"][0], torch.ones(1))
        assert placed["y"][1] == "label"

    def test_in_memory_no_checkpoint_is_saved(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        trial, channel = make()
        trial.prepare(*self.parts())
        trial.report(val_loss=1.0)
        assert [record.kind for record in channel.batches[0]] == ["reported"]
        assert list(tmp_path.iterdir()) == []

    def test_the_checkpoint_of_another_model(self, tmp_path):
        """A function that was changed meanwhile does not go on with half of the old weights."""
        trial, _ = make(directory=str(tmp_path))
        trial.prepare(*self.parts())
        trial.report(val_loss=1.0)
        trial.close()
        model = torch.nn.Linear(4, 1)
        with pytest.raises(
            CheckpointMismatchError, match=r"cannot be restored exactly: model.weight was .*\[1, 3\].*\[1, 4\]"
        ):
            make(directory=str(tmp_path))[0].prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))

    def test_a_checkpoint_comes_before_its_report(self, tmp_path):
        """Both records reach the ledger together, the checkpoint first."""
        trial, channel = make(directory=str(tmp_path))
        trial.prepare(*self.parts())
        trial.report(val_loss=1.0, step=4)
        checkpointed, reported = channel.batches[0]
        assert (checkpointed.kind, reported.kind) == ("checkpointed", "reported")
        assert checkpointed.body["path"] == "checkpoints/trial-000017/lease-2/step-000000000000"
        folder = tmp_path / checkpointed.body["path"]
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        assert sizes.keys() == {"manifest.json", "rank-00000.safetensors", "state.json"}
        assert sum(sizes.values()) - sizes["manifest.json"] == checkpointed.body["bytes"]

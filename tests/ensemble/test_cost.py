"""What a model costs: measured once, without a trace in the model."""

import numpy as np
import pytest

from trainwright.ensemble import leave
from trainwright.ensemble.library.cost import measure
from trainwright.errors import EnsembleError

torch = pytest.importorskip("torch")


@pytest.fixture
def model():
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(5, 4)
    )
    model[1].eval()  # frozen by its user
    return model


class Watch(torch.nn.Module):
    """Notes how it was called."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.calls = []

    def forward(self, batch):
        self.calls.append((tuple(batch.shape), batch.dtype, self.training, torch.is_grad_enabled()))
        return torch.rand_like(batch) * self.weight


def test_footprint(model):
    cost = measure(model, None)
    assert cost.parameter_count == 6 * 5 + 5 + 2 * 5 + 5 * 4 + 4
    assert cost.weight_bytes == 4 * cost.parameter_count + 4 * 10 + 8  # running mean and variance, a counter in int64
    assert cost.seconds is None


@pytest.mark.parametrize("rows", [1, 50, 128, 300])
def test_evaluation_at_128_rows_without_a_trace(rows):
    watch = Watch()
    state = torch.random.get_rng_state()
    cost = measure(watch, np.zeros((rows, 3)))
    assert set(watch.calls) == {((128, 3), torch.float32, False, False)}
    assert watch.training
    assert torch.equal(state, torch.random.get_rng_state())
    assert (cost.device, cost.rows) == ("cpu", 128)
    assert cost.seconds > 0
    assert len(watch.calls) >= 10  # three to warm up, seven timed at least


def test_modes_are_put_back_one_by_one(model):
    before = [module.training for module in model.modules()]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    measure(model, torch.zeros(10, 6))
    assert [module.training for module in model.modules()] == before
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_modes_are_put_back_after_an_error(model):
    with pytest.raises(RuntimeError, match="shape"):
        measure(model, torch.zeros(10, 7))
    assert model.training
    assert not model[1].training


def test_refusals(model):
    for arguments, sentence in (
        ((np.zeros(3), None), "model: got ndarray; allowed: a torch.nn.Module"),
        ((model, "x"), "sample: got str; allowed: a tensor, an array"),
        ((model, np.zeros((0, 6))), r"sample: got shape \(0, 6\); allowed: a batch of at least one row"),
        ((model, torch.tensor(1.0)), r"sample: got shape \(\)"),
    ):
        with pytest.raises(EnsembleError, match=sentence):
            measure(*arguments)


def test_once_per_trial(study, model):
    asked = []

    def sample():
        asked.append(1)
        return torch.zeros(20, 6)

    trial = study.trial()
    for epoch in (1, 2, 3):
        trial.next_epoch = epoch
        leave(trial, model, predictions=study.predictions(0), targets=study.targets, sample=sample)
    assert len(asked) == 1
    member = study.library().members[0]
    assert member.seconds_per_row == trial.scratch["ensemble.cost"].seconds / 128
    assert member.parameter_count == 69
    assert member.device == "cpu"

"""Networks as programs: equal to the factory's, for any number of rows, without the factory's code, without pickles."""

import io
import os
import subprocess
import sys
import zipfile
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from trainwright.ensemble import BudgetedGreedy, Ensemble, leave
from trainwright.errors import EnsembleError, ExportError

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

import networks_for_tests  # noqa: E402
from honest_networks import NETWORKS  # noqa: E402

from trainwright.ensemble.export.program import export_network, load_network  # noqa: E402

X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)


class Convolving(torch.nn.Module):
    """Everything that behaves differently in training."""

    def __init__(self):
        super().__init__()
        parts = (torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout(0.5))
        self.body = torch.nn.Sequential(*parts, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


class Branching(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1 if x.sum() > 0 else super().forward(x)


class OfOneSize(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.arange(128.0)[:, None]


class Random(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.rand_like(x[:, :1])


def left(study, number, network, **more):
    told = {name: one[:, : network.out_features] for name, one in study.predictions(number).items()}
    told = {name: one / one.sum(axis=1, keepdims=True) for name, one in told.items()}
    targets = {name: labels % network.out_features for name, labels in study.targets.items()}
    return leave(study.trial(number, params={"outputs": 2}), network, predictions=told, targets=targets, **more)


@pytest.mark.slow
def test_equal_for_any_number_of_rows():
    """To 1e-6, and the network's modes, weights and the random state are as before."""
    network = Convolving()
    network.body[1].eval()
    before, modes = torch.get_rng_state(), [module.training for module in network.modules()]
    content = export_network(network, np.zeros((2, 1, 8, 8)) + np.arange(8), whose="it")
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in network.modules()] == modes
    again = load_network(content, whose="it")
    network.eval()
    for rows in (1, 2, 7, 128, 300):
        x = torch.randn(rows, 1, 8, 8)
        torch.testing.assert_close(again(x), network(x), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_honest_networks_need_no_trust(name):
    """Whatever they are made of; a copy, as fused members are, prints alike and runs without memory."""
    network, x = NETWORKS[name]
    again = load_network(export_network(network, x, whose="it"), whose="it")
    network.eval()
    for rows in (1, 3, 130):
        batch = x[torch.arange(rows) % len(x)]
        with torch.no_grad():
            torch.testing.assert_close(again(batch), network(batch), rtol=1e-5, atol=1e-6)
    copy = deepcopy(again).to("meta")
    assert str(copy) == str(again)
    assert copy(x.to("meta")).device.type == "meta"


@pytest.mark.slow
def test_what_is_not_known_needs_trust(tmp_path):
    """It can be exported all the same, and the sentence names what it needs."""
    content = export_network(torch.nn.EmbeddingBag(50, 8), torch.randint(0, 50, (4, 9)), whose="it")
    with pytest.raises(ExportError, match=r"it: model\.pt2 uses 'torch\.ops\.aten\.embedding_bag.*trust=True"):
        load_network(content, whose="it")
    assert load_network(content, whose="it", trust=True)(torch.zeros(2, 9, dtype=torch.int64)).shape == (2, 8)


@pytest.mark.slow  # torch takes seconds to get ready for its first export
@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Branching, r"trial 3: cannot be exported \(Could not guard on data-dependent expression .*allowed: a network"),
        (OfOneSize, r"trial 3: cannot be exported \(Constraints violated .*any number of rows; give factory= instead"),
        (Random, r"trial 3: its exported program differs from it by .*; allowed: 1e-06; is it random"),
    ],
)
def test_refused(study, kind, sentence):
    """In one sentence, and nothing is left."""
    with pytest.raises(ExportError, match=sentence) as found:
        left(study, 3, kind(3, 2), sample=X, export=True)
    assert "\n" not in str(found.value)
    assert not (study.directory / "library").exists()


@pytest.mark.slow
def test_an_ensemble_loads_without_the_factory(study, tmp_path):
    """Left with export, or with a factory and saved self-contained; in a process that knows neither of them."""
    torch.manual_seed(0)
    networks = [torch.nn.Linear(3, 2) for _ in range(2)]
    left(study, 0, networks[0], sample=X, export=True)
    left(study, 1, networks[1], sample=X, factory=networks_for_tests.linear)
    front = study.library().select(BudgetedGreedy(max_members=2))
    chosen = front.ensemble(front.baselines["top-2"])
    expected = chosen.predict(X)
    by_hand = sum(network(torch.as_tensor(X)).double().softmax(1) for network in networks).detach().numpy() / 2
    np.testing.assert_allclose(expected, by_hand, rtol=0, atol=1e-6)
    folder = chosen.save(tmp_path / "out", self_contained=True)
    assert len(list(folder.rglob("model.pt2"))) == len(list(folder.rglob("weights.safetensors"))) == 2
    np.save(tmp_path / "x.npy", X)
    code = (
        "import pickle, sys, numpy as np, torch, trainwright as tw\n"
        "torch.load = pickle.loads = pickle.load = None  # whoever would run one fails\n"
        "ensemble = tw.Ensemble.load('out')\n"
        "np.save('y.npy', ensemble.predict(np.load('x.npy')))\n"
        "sys.exit('networks_for_tests' in sys.modules)\n"
    )
    paths = os.pathsep.join(each for each in sys.path if each != str(Path(__file__).parent))
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths})
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=0, atol=1e-6)
    program = next(folder.rglob("model.pt2"))
    program.write_bytes(program.read_bytes()[:-1] + b"?")
    with pytest.raises(ExportError, match=r"model\.pt2: its content differs from the manifest's digest"):
        Ensemble.load(folder)


@pytest.mark.slow
def test_pickles_are_not_read():
    """A file into which somebody put one, or that is no program, is refused before torch reads it."""
    content = export_network(torch.nn.Linear(3, 2), X, whose="it")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert all(not one for name, one in files.items() if name.endswith(".pt"))
    name = next(name for name in files if name.endswith("weights_config.json"))
    for changed, sentence in (
        ({"archive/data/sample_inputs/model.pt": b"\x80\x04."}, "holds data/sample_inputs/model.pt as a pickle"),
        ({name: files[name].replace(b'"use_pickle": false', b'"use_pickle": true')}, "holds .* as a pickle; allowed"),
        ({name: b"{}"}, "is no program of torch.export"),
    ):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for each, one in {**files, **changed}.items():
                archive.writestr(each, one)
        with pytest.raises(ExportError, match=sentence):
            load_network(buffer.getvalue(), whose="it")
    with pytest.raises(ExportError, match=r"is no program of torch\.export"):
        load_network(b"nothing", whose="it")


def test_what_it_needs(study, tmp_path):
    with pytest.raises(EnsembleError, match="leave, export: got no sample; allowed: both"):
        left(study, 0, torch.nn.Linear(3, 2), export=True)
    left(study, 0, torch.nn.Linear(3, 2), factory=networks_for_tests.linear)
    with pytest.raises(ExportError, match=r"self_contained: trial 0: left no sample.*allowed: .*sample="):
        study.library().select(BudgetedGreedy()).pick().save(tmp_path / "out", self_contained=True)
    assert not (tmp_path / "out").exists()

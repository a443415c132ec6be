"""Networks as ONNX files: equal to the factory's, for any number of rows, without the factory's code."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trainwright.ensemble import BudgetedGreedy, Ensemble, leave
from trainwright.errors import EnsembleError, ExportError

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parent))

import networks_for_tests  # noqa: E402

from trainwright.ensemble.export.onnx_file import OnnxModel, export_network  # noqa: E402

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
    again = OnnxModel(content, whose="it")
    assert str(Path(__file__).name).encode() not in content  # nothing of the source is told
    network.eval()
    for rows in (1, 2, 7, 128, 300):
        x = torch.randn(rows, 1, 8, 8)
        expected = network(x).detach().numpy()
        np.testing.assert_allclose(again(x.numpy()), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow  # torch takes seconds to get ready for its first export
@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Branching, r"trial 3: cannot be exported \(Could not guard on data-dependent expression .*allowed: a network"),
        (OfOneSize, r"trial 3: cannot be exported \(Constraints violated .*any number of rows; give factory= instead"),
        (Random, r"trial 3: its ONNX file differs from it by .*; allowed: 1e-05; is it random"),
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
    assert [path.name for path in folder.rglob("mod*")] == ["model.onnx"] * 2
    assert not list(folder.rglob("weights.safetensors"))
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
    program = next(folder.rglob("model.onnx"))
    program.write_bytes(program.read_bytes()[:-1] + b"?")
    with pytest.raises(ExportError, match=r"model\.onnx: its content differs from the manifest's digest"):
        Ensemble.load(folder)


def made(kind="Softmax", domain="", names=("x", "y"), version=8, **initial):
    """Return the bytes of an ONNX file of one node, for rows of three numbers."""
    tensor, helper = onnx.TensorProto, onnx.helper
    node = helper.make_node(kind, [names[0], *initial], [names[1]], domain=domain)
    inputs = [helper.make_tensor_value_info(names[0], tensor.FLOAT, ["rows", 3])]
    outputs = [helper.make_tensor_value_info(names[1], tensor.FLOAT, ["rows", 3])]
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in initial.items()]
    graph = helper.make_graph([node], "graph", inputs, outputs, weights)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=version)


def test_a_file_is_a_member(study, tmp_path):
    """Left by its path, timed, selected, saved and loaded, beside a torch network."""
    study.targets = {name: labels % 3 for name, labels in study.targets.items()}
    file = tmp_path / "softmax.onnx"
    onnx.save(made(), file)
    study.classes = 3
    told = {"predictions": study.predictions(0), "targets": study.targets, "sample": X}
    leave(study.trial(0), file, **told)
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 3)
    told["predictions"] = study.predictions(1)
    leave(study.trial(1, params={"outputs": 3}), network, **told, factory=networks_for_tests.linear)
    front = study.library().select(BudgetedGreedy(max_members=2))
    chosen = front.ensemble(front.baselines["top-2"])
    assert [member.weight_bytes for member in chosen.members] == [file.stat().st_size, 4 * 12]
    loaded = Ensemble.load(chosen.save(tmp_path / "out"))
    by_hand = torch.as_tensor(X).double().softmax(1) + network(torch.as_tensor(X)).double().softmax(1)
    np.testing.assert_allclose(loaded.predict(X.astype(np.float64)), by_hand.detach() / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"nothing", "it: model.onnx cannot be loaded by onnxruntime .*allowed: a file of the operators"),
        (made("Teleport", "mine").SerializeToString(), "cannot be loaded by onnxruntime .*Teleport"),
        (made("ArgMax").SerializeToString(), "cannot be loaded|outputs tensor"),
        (
            made(version=99).SerializeToString(),
            r"FAIL : Unsupported model IR version: 99, max supported .*\d\); allowed",
        ),
    ],
)
def test_bad_files(content, sentence):
    with pytest.raises(ExportError, match=sentence) as found:
        OnnxModel(content, whose="it")
    assert "\n" not in str(found.value)


def test_weights_elsewhere(tmp_path):
    """A file must not make onnxruntime open another."""
    model = made("Add", b=np.ones((300, 3), dtype=np.float32)[:1])
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    with pytest.raises(ExportError, match="refers to weights in another file; allowed: weights inside"):
        OnnxModel(path.read_bytes(), whose="it")


def test_other_rows_are_refused():
    with pytest.raises(ExportError, match=r"refuses a batch of shape \(2, 5\) .*allowed: \['rows', 3\]"):
        OnnxModel(made().SerializeToString(), whose="it")(np.zeros((2, 5), dtype=np.float32))


def test_what_it_needs(study, tmp_path):
    with pytest.raises(EnsembleError, match="leave, export: got no sample; allowed: both"):
        left(study, 0, torch.nn.Linear(3, 2), export=True)
    left(study, 0, torch.nn.Linear(3, 2), factory=networks_for_tests.linear)
    with pytest.raises(ExportError, match=r"self_contained: trial 0: left no sample.*allowed: .*sample="):
        study.library().select(BudgetedGreedy()).pick().save(tmp_path / "out", self_contained=True)
    assert not (tmp_path / "out").exists()

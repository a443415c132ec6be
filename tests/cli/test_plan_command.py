"""`trainwright plan MODEL`: the table, the reasons, the last line; and what it refuses."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from trainwright.cli import plan
from trainwright.cli.inputs import find_cluster, read_costs, read_devices, read_profile
from trainwright.cluster import Cluster
from trainwright.errors import InputError
from trainwright.model.describe.transformer import describe_transformer
from trainwright.plan import Input, ParallelPlan


@pytest.fixture
def run(monkeypatch):
    profile = describe_transformer(hidden=256, layers=4, heads=8, sequence=128, vocabulary=1000, precision="fp32")
    monkeypatch.setattr("trainwright.cli.plan.read_profile", lambda *_, **__: profile)
    return lambda *arguments: CliRunner().invoke(plan.app, [str(each) for each in arguments])


def test_table_and_reasons(run):
    """Every strategy of the table is in the JSON, with what it costs; parts add up."""
    said = run(
        "some:model",
        "--cluster",
        "abci-v100",
        "--nodes",
        2,
        "--devices",
        "4,8",
        "--batch",
        16,
        "--samples",
        1000,
        "--json",
    )
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    last = json.loads(lines[-1])
    assert (last["schema"], last["cluster"]["name"]) == (1, "abci-v100")
    best = last["plans"][0]
    assert sum(best["breakdown"].values()) == pytest.approx(best["seconds_per_iteration"])
    assert best["interval"][0] <= best["seconds_per_iteration"] <= best["interval"][1]
    assert best["device_hours_per_epoch"] > 0
    assert {each["strategy"] for each in last["rejected"]} >= {"filter", "spatial", "expert"}
    assert "uncalibrated" in said.output
    for words in (
        "at most 4 devices",
        "at most 8 devices",
        "comes first",
        "tokens/s a device",
        "MFU",
        "device-hours",
    ):
        assert words in said.output
    assert "left out:" not in said.output  # of what the model has no parts for there is no line
    assert best["tokens_per_second"] == pytest.approx(16 * 128 / best["seconds_per_iteration"])
    assert 0 < best["mfu"] < 1


CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 64,
    "num_key_value_heads": 2, "intermediate_size": 1024, "moe_intermediate_size": 128, "num_experts": 8,
    "num_experts_per_tok": 2, "vocab_size": 1000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip


def from_config(tmp_path, config, *arguments):
    (tmp_path / "config.json").write_text(json.dumps(config))
    common = ["--cluster", "dgx-h100", "--batch", "16", "--precision", "amp-bf16"]
    return CliRunner().invoke(plan.app, [str(tmp_path / "config.json"), *common, *arguments])


def test_a_configuration_of_hugging_face(tmp_path):
    """A mixture of experts is planned from its config.json alone, with hours until so many tokens."""
    said = from_config(tmp_path, CONFIG, "--sequence", "512", "--tokens", "1e9", "--json")
    assert said.exit_code == 0, said.output
    last = json.loads(said.output.splitlines()[-1])
    attention = 256 * 64 * (8 + 2 * 2) + 64 * 8 * 256
    experts = 8 * 3 * 256 * 128 + 256 * 8
    assert last["profile"]["parameters"] == 4 * (attention + experts + 2 * 256) + 2 * 1000 * 256 + 256
    assert any(each["degrees"]["expert"] > 1 for each in last["plans"])
    best = last["plans"][0]
    assert best["hours"] * 3600 == pytest.approx(1e9 / best["tokens_per_second"], rel=1e-3)


def test_fixed_degrees_and_recomputation(tmp_path):
    """Every plan has the degrees and the recomputation that were asked for."""
    said = from_config(tmp_path, CONFIG, "--degrees", "tensor=2,pipeline=2", "--recompute", "full", "--json")
    plans = json.loads(said.output.splitlines()[-1])["plans"]
    assert plans
    assert {(one["degrees"]["tensor"], one["degrees"]["pipeline"], one["recompute"]) for one in plans} == {
        (2, 2, "full")
    }


@pytest.mark.parametrize(
    ("changes", "arguments", "sentence"),
    [
        ({"model_type": "unheard_of"}, [], "model_type: got 'unheard_of', of which transformers"),
        ({"hidden_size": None}, [], "hidden_size is missing"),
        ({}, ["--degrees", "tensor=3"], "degrees: tensor: got 3; allowed: 1, 2, 4, 8 (the attention heads)"),
        ({}, ["--degrees", "tensr=2"], "did you mean 'tensor'"),
        ({}, ["--degrees", "tensor"], "--degrees: got 'tensor'; allowed: such as tensor=8,pipeline=4"),
        ({}, ["--recompute", "some"], "recompute: got 'some'"),
    ],
)
def test_configurations_refused(tmp_path, changes, arguments, sentence):
    said = from_config(tmp_path, {**CONFIG, **changes}, *arguments)
    assert isinstance(said.exception, InputError)
    assert sentence in str(said.exception)


def test_a_profile_of_another_precision(tmp_path):
    """A file is all there is: it is converted, and the table says what that may cost."""
    traced = replace(describe_transformer(hidden=64, layers=1, heads=2, sequence=16, vocabulary=0), origin="traced")
    replace(traced, precision="fp32").save(tmp_path / "model.json")
    arguments = [str(tmp_path / "model.json"), "--cluster", "abci-v100", "--devices", "1", "--batch", "1"]
    for precision, said in (("amp-bf16", True), ("fp32", False)):
        found = CliRunner().invoke(plan.app, [*arguments, "--precision", precision])
        assert found.exit_code == 0, found.output
        assert ("caveat: the profile is of fp32, converted to amp-bf16" in found.output) is said


def test_the_best_as_a_file(run, tmp_path):
    out = tmp_path / "plan.json"
    said = run("some:model", "--cluster", "abci-v100", "--devices", 4, "--batch", 16, "--out", out, "--json")
    assert said.exit_code == 0, said.output
    found = ParallelPlan.load(out)
    assert (found.strategy, found.devices) == (json.loads(said.output.splitlines()[-1])["plans"][0]["strategy"], 4)
    assert f"{found.strategy} on 4 devices: {out}" in said.output


def test_one_strategy(run):
    """A filter of strategies leaves serial and what was asked for."""
    said = run("some:model", "--cluster", "abci-v100", "--nodes", 1, "--batch", 16, "--strategies", "tensor", "--json")
    last = json.loads(said.output.splitlines()[-1])
    assert {each["strategy"] for each in last["plans"]} == {"serial", "tensor"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--devices", "0"], "--devices: got '0'; allowed: numbers from 1 to 8"),
        (["--devices", "9"], "--devices: got '9'"),
        (["--batch", "0"], "batch: got 0"),
        (["--precision", "fp31"], "did you mean 'fp32'"),
        (["--strategies", "dota"], "did you mean 'data'"),
        (["--max-memory", "1000"], "no strategy fits: each needs more than 1 kB a device"),
        (["--input", "byte=3"], "--input: 'byte' is unknown; allowed: bytes, decode, workers"),
        (["--input", "bytes=many"], "--input: got 'bytes=many'"),
        (["--cluster", "abci"], "abci-v100"),
        (["--cluster", "none.toml"], "there is no such file"),
    ],
)
def test_refused(run, arguments, sentence):
    """A mistake is one sentence."""
    said = run("some:model", "--cluster", "abci-v100", "--nodes", "2", "--batch", "16", *arguments)
    assert isinstance(said.exception, InputError)
    assert sentence in str(said.exception)


@pytest.mark.parametrize(
    ("model", "sample", "sentence"),
    [
        ("models", "a:b", "MODEL: got 'models'; allowed: 'module:function'"),
        ("no_such_module:model", "a:b", "there is no module 'no_such_module'"),
        ("json:nothing", "a:b", "json has no 'nothing'"),
        ("os:getcwd", "a:b", "allowed: a function that returns a nn.Module"),
        ("os:stat", "a:b", "MODEL: os:stat failed with TypeError"),
        ("os:getcwd", None, "--sample: got none"),
    ],
)
def test_models_refused(model, sample, sentence):
    """The part that failed is named."""
    with pytest.raises(InputError) as caught:
        read_profile(model, sample, precision="fp32", optimizer="adamw")
    assert sentence in str(caught.value)


def test_inputs(tmp_path):
    """Numbers with commas, max, costs of input, a cluster from a file."""
    cluster = find_cluster("abci-v100", 2)
    assert read_devices("4,max,2", cluster) == [2, 4, 8]
    assert read_costs("bytes=110e3, decode=8e-3,workers=4") == Input(bytes=110e3, decode=8e-3, workers=4)
    cluster.save(tmp_path / "mine.toml")
    assert find_cluster(str(tmp_path / "mine.toml"), None) == Cluster.load(tmp_path / "mine.toml")


STUDY = """
import trainwright as tw
from trainwright.model.describe.transformer import describe_transformer

space = tw.Space(layers=tw.Int(1, 4), lr=tw.Float(1e-4, 1e-1, log=True))
study = tw.Study(space, objectives="min loss", directory="runs")
scheduler = tw.ASHA(max_epochs=4)
samples = 1024


def train(trial):
    raise AssertionError("nothing is trained")


def profile_of(params):
    shape = {"hidden": 128, "heads": 4, "sequence": 64, "vocabulary": 500, "precision": "fp32"}
    return describe_transformer(layers=params["layers"], **shape), 16
"""


def search(tmp_path, monkeypatch, name, text, *more):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    arguments = [
        "--search",
        f"{name}.py",
        "--cluster",
        "abci-v100",
        "--nodes",
        "1",
        "--trials",
        "8",
        "--seeds",
        "2",
        *more,
    ]
    return CliRunner().invoke(plan.app, arguments)


def test_cost_of_a_search(tmp_path, monkeypatch):
    """Device-hours, wall time and the share that does not fit, from the study's own space and scheduler."""
    said = search(tmp_path, monkeypatch, "searched_study", STUDY, "--json")
    assert said.exit_code == 0, (said.output, said.exception)
    last = json.loads(said.output.splitlines()[-1])
    assert 0 < last["cost"]["device_hours"] <= last["cost"]["device_hours_90"]
    assert last["cost"]["infeasible"] == 0
    assert "nine of ten studies below" in said.output


@pytest.mark.parametrize(
    ("number", "missing", "sentence"),
    [
        (1, "def profile_of", "with profile_of(params)"),
        (2, "samples", "and samples, those of an epoch"),
        (3, "scheduler", "sets no length of a trial"),
    ],
)
def test_searches_refused(tmp_path, monkeypatch, number, missing, sentence):
    """What the file lacks is named."""
    text = STUDY.replace(
        missing, missing.replace("def profile_of", "def other").replace("samples", "rows").replace("scheduler", "rule")
    )
    said = search(tmp_path, monkeypatch, f"lacking_{number}", text)
    assert isinstance(said.exception, InputError)
    assert sentence in str(said.exception)


def test_what_is_not_set_up_is_marked(run, tmp_path, monkeypatch):
    """By the layout alone without a module; of a module by a dry run, whose reason the table says too."""
    said = run("some:model", "--cluster", "dgx-a100", "--devices", 2, "--batch", 8, "--precision", "amp-fp16", "--json")
    assert said.exit_code == 0, said.output
    assert "* : priced, but not set up by trial.prepare(plan=...): precision 'amp-fp16'" in said.output
    assert all(plan["refusal"] for plan in json.loads(said.output.splitlines()[-1])["plans"])
    monkeypatch.undo()
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unplannable.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)\n"
        "    def forward(self, x):\n"
        "        return self.last(torch.eye(x.shape[1]) @ self.first(x).T).T\n"
        "build, batch = Model, lambda: torch.zeros(8, 8)\n"
    )
    arguments = ["unplannable:build", "--sample", "unplannable:batch", "--cluster", "dgx-a100", "--devices", "2"]
    said = CliRunner().invoke(plan.app, [*arguments, "--batch", "8", "--strategies", "data,channel", "--json"])
    assert said.exit_code == 0, (said.output, said.exception)
    refusals = {one["strategy"]: one["refusal"] for one in json.loads(said.output.splitlines()[-1])["plans"]}
    assert not refusals["serial"]

"""`trainwright memory`: plans, curves and reports from chain files, and what they refuse."""

import json

import pytest

STAGE = {"forward_seconds": 0.1, "backward_seconds": 0.2, "output_bytes": 4096, "saved_bytes": 16384}


@pytest.fixture
def chain(tmp_path):
    path = tmp_path / "chain.json"
    path.write_text(json.dumps({"name": "net", "input_bytes": 1024, "stages": [{**STAGE, "name": "block"}] * 6}))
    return path


def last_line(done):
    return json.loads(done.out.strip().splitlines()[-1])


def test_plan_and_explain(trainwright, chain, tmp_path):
    """A plan is written and explained; its numbers are those of the JSON line."""
    plan = tmp_path / "plan.json"
    done = trainwright("memory", "plan", str(chain), "--budget", "0.6", "--out", str(plan), "--json")
    assert done.status == 0, done.err
    answer = last_line(done)
    assert answer["peak_bytes"] <= answer["budget_bytes"] < answer["full_bytes"]
    assert 0 < answer["overhead"] < 0.5
    assert json.loads(plan.read_text())["seconds"] == answer["seconds"]
    told = trainwright("memory", "explain", str(plan), "--json")
    assert told.status == 0, told.err
    assert sum(last_line(told)["peak_owners"].values()) == answer["peak_bytes"]
    assert "block" in told.out


MODELS = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh()))), torch.ones(256, 32)

def with_loss():
    return *build(), lambda out: out.square().mean()

def only():
    return build()[0]
"""


def test_a_model_of_ones_own(trainwright, tmp_path, monkeypatch):
    """A function gives model, sample and loss; they and the optimizer's state are in the chain of the plan."""
    (tmp_path / "models_of_a_test.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    arguments = ("--budget", "0.8", "--out", "plan.json", "--json")
    done = trainwright("memory", "plan", "models_of_a_test:with_loss", "--optimizer", "adamw", *arguments)
    assert done.status == 0, done.err
    assert last_line(done)["peak_bytes"] <= last_line(done)["budget_bytes"]
    chain = json.loads((tmp_path / "plan.json").read_text())["chain"]
    assert [len(chain["stages"]), chain["fixed"]["optimizer"]] == [6, 2 * 6 * (32 * 32 + 32) * 4]
    assert chain["loss"]["saved_bytes"] > 0
    assert trainwright("memory", "curve", "models_of_a_test:build", "--points", "3").status == 0
    refused = trainwright("memory", "plan", "models_of_a_test:only", "--budget", "0.7")
    assert refused.status == 2
    assert "SPEC: models_of_a_test:only returned Sequential; allowed: a function that returns" in refused.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plan", "--budget", "0.6", "--offload", "--bandwidth", "fast"), "bandwidth: got 'fast'; allowed: a size"),
        (("plan", "--budget", "nan"), "budget: got 'nan'; allowed: a size"),
    ],
)
def test_sizes(trainwright, chain, arguments, says):
    """A size that is none, or a share where nothing is to be shared, is named as what it was given for."""
    done = trainwright("memory", arguments[0], str(chain), *arguments[1:])
    assert done.status == 2
    assert says in done.err


def test_curve(trainwright, chain):
    done = trainwright("memory", "curve", str(chain), "--points", "4", "--json")
    assert done.status == 0, done.err
    answer = last_line(done)
    assert answer["points"][0]["peak_bytes"] <= answer["minimal_bytes"]
    assert {each["name"] for each in answer["baselines"]} >= {"none", "every block", "sequential(2)"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "CHAIN", "--budget", "8 GiBs"], "budget: got '8 GiBs'; allowed: a size"),
        (["plan", "CHAIN", "--budget", "2000"], "the least possible"),
        (["plan", "CHAIN", "--budget", "0.5", "--solver", "best"], "solver: got 'best'"),
        (["plan", "CHAIN", "--budget", "0.5", "--offload"], "bandwidth"),
        (["plan", "none.json", "--budget", "0.5"], "there is no such file"),
        (["plan", "no_such_module:build", "--budget", "0.5"], "SPEC: there is no module 'no_such_module'"),
        (["explain", "CHAIN"], "no memory plan"),
    ],
)
def test_mistakes_are_told_in_a_sentence(trainwright, chain, arguments, says):
    done = trainwright("memory", *[str(chain) if each == "CHAIN" else each for each in arguments])
    assert done.status == 2
    assert says in done.err
    assert "Traceback" not in done.err

"""`trainwright plan calibrate`: the file, the table, the last line; and what it refuses."""

import json

import pytest
import typer
from typer.testing import CliRunner

from trainwright.cli._plan_calibrate import add
from trainwright.cluster import Cluster
from trainwright.errors import InputError


@pytest.fixture
def run(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    app = typer.Typer()
    add(app)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])


def test_one_rank_says_that_it_has_no_links(run, tmp_path):
    """The file, its name, the table with errors, a note, and the same as JSON."""
    said = run("--out", tmp_path / "mine.toml", "--repeats", 2, "--file", 1e6, "--json")
    assert said.exit_code == 0, said.output
    cluster = Cluster.load(tmp_path / "mine.toml")
    last = json.loads(said.output.splitlines()[-1])
    assert (last["cluster"], last["errors"], last["tiers"]) == ("mine", dict(cluster.errors), [])
    assert "one rank: compute, memory and storage only" in last["notes"][0]
    for words in ("peak fp32", "share of peak, conv", "memory bandwidth", "storage read", "note: one rank", "%"):
        assert words in said.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--out", "no/such/folder/x.toml"], "--out: got no/such/folder, which is no folder; make it first"),
        (["--out", "x.toml", "--storage", "nowhere"], "--storage: got nowhere, which is no folder"),
        (["--out", "x.toml", "--launch", "slurm"], "launch slurm: SLURM_PROCID is .*; start it as srun"),
        (["--out", "x.toml", "--largest", 100], "--largest: got 100; allowed: a number of bytes from 256"),
        (["--out", "x.toml", "--devices", "tpu"], "devices: got 'tpu'; allowed: cpu, cuda"),
    ],
)
def test_bad_options(run, arguments, sentence, monkeypatch):
    """One sentence each, before anything is measured."""
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    error = run(*arguments).exception
    assert isinstance(error, InputError)
    with pytest.raises(InputError, match=sentence):
        raise error

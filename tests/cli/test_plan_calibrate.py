"""`trainwright plan calibrate`: the file, the table, the last line; and what it refuses."""

import json

import pytest

from trainwright.cluster import Cluster


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


def test_one_rank_says_that_it_has_no_links(trainwright, tmp_path):
    """The file, its name, the table with errors, a note, and the same as JSON."""
    options = ("--repeats", 2, "--file", 1e6, "--json")
    said = trainwright("plan", "calibrate", "--out", tmp_path / "mine.toml", *options)
    assert said.status == 0, said.err
    cluster = Cluster.load(tmp_path / "mine.toml")
    last = json.loads(said.out.splitlines()[-1])
    assert (last["cluster"], last["errors"], last["tiers"]) == ("mine", dict(cluster.errors), [])
    assert any("one rank: links need two ranks or more" in note for note in last["notes"])
    assert said.err.splitlines() == ["measuring compute and memory", "measuring storage"]
    for words in (
        "flops, fp32",
        "efficiency, conv",
        "memory_bandwidth",
        "storage, node_read",
        "note: one rank",
        "error, compute",
    ):
        assert words in said.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--out", "no/such/folder/x.toml"], "--out: got no/such/folder, which is no folder; make it first"),
        (["--out", "x.toml", "--storage", "nowhere"], "--storage: got nowhere, which is no folder"),
        (
            ["--out", "x.toml", "--launch", "slurm"],
            "launch slurm: SLURM_PROCID is None; allowed: a number; start it as",
        ),
        (["--out", "x.toml", "--largest", 100], "--largest: got 100.0; allowed: a number of bytes from 256"),
        (["--out", "x.toml", "--devices", "tpu"], "devices: got 'tpu'; allowed: 'cpu', 'cuda'"),
        (["--out", "x.toml", "--repeats", 1], "repeats: got 1; allowed: a whole number >= 2"),
    ],
)
def test_bad_options(trainwright, tmp_path, monkeypatch, arguments, sentence):
    """Status 2 and one sentence, before anything is measured."""
    monkeypatch.chdir(tmp_path)
    said = trainwright("plan", "calibrate", *arguments)
    assert said.status == 2
    assert sentence in said.err
    assert "Traceback" not in said.err
    assert not list(tmp_path.iterdir())

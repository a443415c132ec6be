"""This machine as a preset: measured once, remembered, measured again if the cache is no good."""

import subprocess

import pytest

from trainwright.cluster import Cluster
from trainwright.cluster.presets.laptop import cache_path
from trainwright.errors import TrainwrightError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))


def test_measured_at_first_use_and_remembered(monkeypatch):
    """The second call reads the file; a file that is none is measured anew."""
    first = Cluster.preset("laptop")
    assert first.verified
    assert (first.name, first.nodes) == ("laptop", 1)
    assert first.device.flops["fp32"] > 1e8
    assert first.device.memory_bandwidth > 1e8
    assert first.device.memory_bytes > 1e8
    assert len(first.tiers) == (first.devices > 1)
    assert set(first.errors) == {"compute", "copies", *(tier.name for tier in first.tiers)}
    monkeypatch.setattr(subprocess, "run", None)
    assert Cluster.preset("laptop") == first
    cache_path().write_text("schema = 99\n")
    with pytest.raises(TypeError):
        Cluster.preset("laptop")


def test_a_machine_that_cannot_be_measured(monkeypatch):
    """The error says why, and nothing is remembered."""

    def fails(*_args, **_options):
        raise subprocess.TimeoutExpired("python", 120)

    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(TrainwrightError, match=r"laptop: this machine could not be measured .*timed out"):
        Cluster.preset("laptop")
    assert not cache_path().exists()

"""The storm of kills and partitions over namespaces: in small, and its refusal where it cannot run."""

import os
import shutil
import subprocess

import pytest
from benchmarks.scale import partitions


def test_it_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.setattr(partitions.os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit):
        partitions.main([])
    assert "needs root, which is not here" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.outside("Redis")
def test_a_small_storm():
    if shutil.which("redis-server") is None or os.geteuid() != 0:
        pytest.skip("needs root and redis-server")
    made = subprocess.run(["/usr/bin/env", "ip", "netns", "add", "twprobe"], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("network namespaces are not allowed here")
    subprocess.run(["/usr/bin/env", "ip", "netns", "del", "twprobe"], check=True)
    words = "--workers 3 --trials 60 --partitions 3 --kills 5 --longest 2 --seconds 120"
    found = partitions.main(words.split())
    assert found["summary"]["trials"] == 60
    assert (found["summary"]["lost"], found["summary"]["doubled"]) == (0, 0)
    assert found["summary"]["partitions"] + found["summary"]["kills"] > 0

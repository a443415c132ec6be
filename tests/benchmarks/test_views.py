"""The storm over views that know of each other late: in small, and its refusal where it cannot run."""

import os
import shutil

import pytest
from benchmarks.scale import views


def test_it_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.setattr(views.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(views.shutil, "which", lambda name: name)
    with pytest.raises(SystemExit):
        views.main([])
    assert "needs root, which is not here" in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_storm():
    if shutil.which("bindfs") is None or os.geteuid() != 0:
        pytest.skip("needs root and bindfs")
    words = "--views 2 --workers 2 --trials 20 --stops 2 --kills 3 --longest 2 --seconds 240"
    found = views.main(words.split())
    assert found["summary"]["trials"] == 20
    assert (found["summary"]["lost"], found["summary"]["doubled"]) == (0, 0)
    assert found["summary"]["stops"] + found["summary"]["kills"] > 0

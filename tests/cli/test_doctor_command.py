"""`trainwright doctor` tells findings by area, or as JSON, and its status says whether anything essential is broken."""

import json

import pytest

from trainwright.engine.doctor.examination import Finding


@pytest.fixture
def found(monkeypatch):
    """Let the command find what a test says."""

    def give(*findings):
        monkeypatch.setattr("trainwright.cli.doctor.examine", lambda _folder: findings)

    return give


FINE = Finding(area="devices", name="cores", state="fine", says="4 of 4")
ABSENT = Finding(area="extras", name="ray", state="absent", says="trials on several nodes", mend="pip install x")
POOR = Finding(area="folder", name="room", state="poor", says="little", mend="make room")
BROKEN = Finding(area="installed", name="numpy", state="broken", says="is not installed", mend="pip install numpy")


def test_sound(trainwright, found):
    found(FINE, ABSENT)
    done = trainwright("doctor")
    assert done.status == 0
    assert done.out.endswith("All that is essential works.\n")
    assert "-> pip install x" in done.out


def test_worth_a_look(trainwright, found):
    found(FINE, POOR)
    done = trainwright("doctor")
    assert done.status == 0
    assert "Worth a look (!): room." in done.out


def test_broken(trainwright, found):
    found(BROKEN, FINE, POOR)
    done = trainwright("doctor", "--json")
    assert done.status == 1
    told = json.loads(done.out.splitlines()[-1])
    assert told["sound"] is False
    assert told["findings"][0] == {
        "area": "installed",
        "name": "numpy",
        "state": "broken",
        "says": "is not installed",
        "mend": "pip install numpy",
    }
    assert "Broken (X): numpy." in trainwright("doctor").out


def test_no_such_folder(trainwright, tmp_path):
    done = trainwright("doctor", tmp_path / "nowhere")
    assert done.status == 2
    assert "nowhere" in done.err

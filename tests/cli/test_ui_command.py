"""`trainwright ui`: what it prints, and how it refuses."""

import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from trainwright.http_security import bind
from trainwright.ledger import DirectoryLedger

pytest.importorskip("uvicorn", reason="needs the extra ui")
pytest.importorskip("fastapi", reason="needs the extra ui")


@pytest.fixture
def study(tmp_path):
    DirectoryLedger(tmp_path / "study" / "ledger", create=True).close()
    return tmp_path / "study"


def test_it_serves_until_it_is_interrupted(study):
    command = [sys.executable, "-m", "trainwright", "ui", str(study), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        found = re.search(r"http://127\.0\.0\.1:\d+/$", process.stdout.readline().strip())
        assert found is not None
        with urllib.request.urlopen(found[0], timeout=60) as answer:  # noqa: S310 -- our own
            assert b"Trainwright" in answer.read()
            assert "script-src 'self'" in answer.headers["content-security-policy"]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert not said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere"], "there is no such directory"),
        (["STUDY", "--port", "70000"], "--port: got 70000; allowed: 0"),
        (["STUDY", "--host", "no such host"], "--host: got 'no such host'"),
        (["STUDY", "--token-file", "nowhere"], "--token-file: cannot read nowhere"),
    ],
)
def test_bad_input_is_one_sentence(trainwright, study, arguments, why):
    said = trainwright("ui", *(study if each == "STUDY" else each for each in arguments))
    assert said.status == 2
    assert why in said.err
    assert said.err.count("\n") == 1


def test_a_port_in_use_is_a_failure(trainwright, study):
    with bind("127.0.0.1", 0) as taken:
        said = trainwright("ui", study, "--port", taken.getsockname()[1])
    assert said.status == 1
    assert re.fullmatch(r"trainwright: cannot listen on 127\.0\.0\.1:\d+: address already in use; .*\n", said.err)


def test_a_missing_extra_is_named(study, monkeypatch):
    from trainwright.errors import MissingExtra
    from trainwright.ui import serve_page

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=r'the live page needs fastapi and uvicorn: pip install "\.\[ui\]"'):
        serve_page(study, port=0)

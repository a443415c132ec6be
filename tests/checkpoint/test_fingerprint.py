"""The fingerprint: what can change a result, and nothing that names a person or a machine."""

import json
import platform
import re
import socket
import sys
import types
from pathlib import Path

from trainwright.checkpoint.state.differences import Effect
from trainwright.checkpoint.state.fingerprint import ENVIRONMENT, capture_fingerprint, compare_fingerprints


def test_it_is_plain_and_equal_to_itself():
    fingerprint = capture_fingerprint()
    assert json.loads(json.dumps(fingerprint)) == fingerprint
    assert compare_fingerprints(fingerprint, capture_fingerprint()) == []
    assert fingerprint["python"] == platform.python_version()


def test_it_names_nobody(monkeypatch):
    """Neither secrets of the environment, nor the host, the user or a path."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    text = json.dumps(capture_fingerprint())
    for secret in ("hunter2hunter2", str(Path.cwd()), f"{Path.home()}/"):
        assert secret not in text
    # A short name may be a part of another word, such as that of a package.
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    assert json.loads(text)["environment"]["OMP_NUM_THREADS"] == "3"
    assert set(json.loads(text)["environment"]) <= set(ENVIRONMENT)


def test_code_is_what_was_not_installed():
    """This test module is the user's code; numpy, pytest, the standard library and Trainwright itself are not."""
    code = capture_fingerprint()["code"]
    assert __name__ in code
    assert not [name for name in code if name.partition(".")[0] in {"numpy", "pytest", "json", "trainwright", "torch"}]


def test_a_script_that_changed(tmp_path, monkeypatch):
    """It goes by its own name, however it was started; after an edit it has another digest."""
    script = tmp_path / "training.py"
    script.write_text("import helper\n")
    fingerprints = []
    for name in ("__main__", "__mp_main__"):
        module = types.ModuleType(name)
        module.__file__ = str(script)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, module)
            fingerprints.append(capture_fingerprint())
        script.write_text("import helper  # edited\n")
    (difference,) = compare_fingerprints(*fingerprints)
    assert (difference.item, difference.effect) == ("code of training", Effect.CODE)
    assert difference.saved != difference.now


def test_differences():
    saved = {"torch": "2.12.0", "cpu": "A", "environment": {"NCCL_ALGO": "Ring"}, "code": {"a": "1", "b": "2"}}
    now = {"torch": "2.13.0", "cpu": "A", "environment": {}, "code": {"a": "1", "c": "3"}, "later": "x"}
    found = {difference.item: (difference.saved, difference.now) for difference in compare_fingerprints(saved, now)}
    assert found == {"torch": ("2.12.0", "2.13.0"), "$NCCL_ALGO": ("Ring", None)}

"""`trainwright serve run`: a real server in a process of its own, asked and ended by a signal."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))

from served_networks import ensemble, inputs

from trainwright.ensemble import Ensemble
from trainwright.serve import Client, DeploymentPlan

TOKEN = "a-token-of-twenty-letters"  # noqa: S105 -- of these tests


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("served")
    return ensemble(place / "members", [{}, {"hidden": 4}]).save(place / "out")


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--engine", "slurm"], "--engine: got 'slurm'; allowed: 'local', 'ray'"),
            (["--deadline-ms", "-1"], "DeploymentSettings.deadline_ms: got -1.0"),
            (["--queue-rows", "0"], "DeploymentSettings.queue_rows: got 0; allowed: a whole number >= 1"),
            (["--devices", "tpu"], "devices: got 'tpu'"),
            (["--plan", "nowhere.json"], "there is no such file"),
            (["--token-file", "nowhere"], "--token-file: cannot read nowhere"),
            (["--drain", "-1"], "--drain: got -1.0; allowed: a number of seconds >= 0"),
        ],
    )
    def test_run(self, trainwright, folder, arguments, sentence):
        said = trainwright("serve", "run", folder, *arguments)
        assert (said.status, said.out) == (2, "")
        assert sentence in said.err

    def test_changed_by_hand(self, trainwright, folder, tmp_path):
        """An ensemble's folder that was changed is not served."""
        other = Ensemble.load(folder).save(tmp_path / "changed")
        manifest = other / "manifest.json"
        told = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**told, "weights": [1.0, 0.0]}))
        said = trainwright("serve", "run", other)
        assert (said.status, "was changed after it was written" in said.err) == (2, True)

    def test_plan_of_another(self, trainwright, folder, tmp_path):
        other = ensemble(tmp_path / "members", [{"hidden": 3}])
        file = DeploymentPlan.simple(other, "cpu").save(tmp_path / "plan.json")
        said = trainwright("serve", "run", folder, "--plan", file)
        assert (said.status, "was made for the ensemble" in said.err) == (2, True)


@pytest.mark.slow
def test_run(folder, tmp_path):
    """Workers answer rightly behind the token; the first SIGTERM ends it with a summary and nothing left."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    plan = DeploymentPlan.simple(Ensemble.load(folder), "cpu").save(tmp_path / "plan.json")
    command = [sys.executable, "-c", "from trainwright.cli import main; main()", "serve", "run", str(folder)]
    options = ["--plan", str(plan), "--port", "0", "--token-file", str(token), "--deadline-ms", "60000", "--json"]
    paths = [str(Path(__file__).resolve().parents[1] / "serve"), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    x = inputs(300)
    with subprocess.Popen(
        [*command, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            ready = re.fullmatch(r"ready: (http://127\.0\.0\.1:\d+)/\?token=(\S+)\n", server.stdout.readline())
            assert ready is not None, server.stderr.read()
            assert ready[2] == TOKEN
            with Client(ready[1], token=TOKEN) as client:
                np.testing.assert_allclose(client.predict(x), Ensemble.load(folder).predict(x), atol=1e-6)
                workers = [one["pid"] for one in client.ensemble()["state"]["instances"]]
            server.send_signal(signal.SIGTERM)
            out, err = server.communicate(timeout=120)
        finally:
            server.kill()
    assert (server.returncode, err) == (0, "")
    told = json.loads(out.splitlines()[-1])
    assert (told["requests"], told["rows"], told["degraded"]) == ({"200": 1}, 300, 0)
    assert out.splitlines()[0] == "requests: 1 with status 200; rows: 300; degraded: 0"
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]

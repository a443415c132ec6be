"""optuna-dashboard opens an exported study: its web service lists every trial, and a browser shows them."""

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from trainwright.integrations.optuna.journal import export_optuna_journal
from trainwright.report.exports import FinishedTrials

pytestmark = [pytest.mark.slow, pytest.mark.outside("optuna-dashboard"), pytest.mark.timeout(300)]


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 -- a server of ours
        return json.load(answer)


@pytest.fixture
def dashboard(asha, tmp_path):
    """Return the address of a dashboard over the journal of a study of 60 trials."""
    pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is absent; pip install optuna-dashboard")
    journal = export_optuna_journal(asha, tmp_path / "journal.log")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("optuna-dashboard")
    options = ["--port", str(port), "--storage-class", "JournalFileStorage", "--server", "wsgiref", "--quiet"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen([program, *options, journal], stdout=log, stderr=subprocess.STDOUT) as server,
    ):
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                with contextlib.suppress(urllib.error.URLError, ConnectionError):
                    get(f"{address}/api/studies")
                    break
                assert server.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.1)
            yield address
        finally:
            server.terminate()


def test_the_study_and_its_trials_are_there(dashboard, asha):
    """States, values, parameters and curves as the study holds them."""
    [study] = get(f"{dashboard}/api/studies")["study_summaries"]
    assert (study["study_name"], study["directions"]) == ("digits", ["minimize"])
    detail = get(f"{dashboard}/api/studies/{study['study_id']}?after=0")
    ours = {trial.number: trial for trial in FinishedTrials(asha, lost=True).trials}
    assert len(detail["trials"]) == len(ours) == 60
    states = {"complete": "Complete", "stopped": "Pruned", "failed": "Fail"}
    for shown in detail["trials"]:
        attributes = {item["key"]: item["value"] for item in shown["user_attrs"]}
        trial = ours[int(attributes["tw_number"])]
        assert shown["state"] == states[trial.status.value]
        if trial.has_result:
            assert shown["values"] == [pytest.approx(trial.values["val_loss"])]
        assert {item["name"] for item in shown["params"]} == set(trial.params)
        assert [item["step"] for item in shown["intermediate_values"]] == sorted(trial.reports)


def test_a_browser_shows_them(dashboard, asha, chromium, tmp_path):
    """The pages are drawn by scripts: a browser that runs them finds the study, its best value and its parameters."""
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1400,2400",
        f"--user-data-dir={tmp_path}/c",
    ]
    trials = [trial for trial in FinishedTrials(asha).trials if trial.status == "complete"]
    best = min(trials, key=lambda trial: trial.values["val_loss"])
    for page, texts in {
        "/dashboard": ["digits"],
        "/dashboard/studies/0": [f"Best Trial (number={best.number})", repr(best.values["val_loss"]), "Importance"],
        "/dashboard/studies/0/trials": ["60 Trials", "Pruned", "Trial 10", "val_accuracy"],
    }.items():
        picture = f"--screenshot={tmp_path}{page.replace('/', '-')}.png"
        command = [chromium, *options, "--virtual-time-budget=20000", picture, "--dump-dom", f"{dashboard}{page}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        for text in texts:
            assert text in done.stdout, page

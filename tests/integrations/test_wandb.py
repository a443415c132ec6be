"""The export to Weights & Biases, offline: a run for each trial, in one group, with what the trial reported."""

import json
import os
import subprocess
import sys

import pytest

import trainwright as tw
from trainwright.errors import InputError
from trainwright.integrations.wandb import export_wandb


def train(trial):
    for epoch in trial.epochs():
        if trial.number == 1:
            raise ValueError("no luck")
        trial.report(loss=trial.params["x"] / epoch)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("wandb") / "study"
    with tw.Study(tw.Space(x=tw.Float(1, 2)), "min loss", directory=folder, seed=0) as made:
        made.run(train, trials=2, scheduler=tw.FixedEpochs(2), engine=tw.Local(workers=0), progress=False)
    return folder


READ = """
import json, sys
from pathlib import Path
from wandb.proto import wandb_internal_pb2 as pb


def records(content):
    # A log of LevelDB: blocks of 32 KiB, behind a head of seven bytes.
    at, whole = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


found = {}
for folder in sorted(Path("wandb").glob("offline-run-*")):
    [file] = folder.glob("*.wandb")
    run = {"history": []}
    for data in records(file.read_bytes()):
        record = pb.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run |= {"group": record.run.run_group, "name": record.run.display_name, "project": record.run.project}
            run["config"] = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if kind == "history":
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            run["history"].append({name: value for name, value in items.items() if name in {"loss", "_step"}})
        if kind == "exit":
            run["exit"] = record.exit.exit_code
    found[run["name"]] = run
print(json.dumps(found))
"""
"""In a process of its own: their reader warns of what it is deprecated for."""


def test_offline_runs_hold_what_trials_reported(study, tmp_path, monkeypatch):
    """To export again adds nothing."""
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    export = "import sys; from trainwright.integrations.wandb import export_wandb; export_wandb(sys.argv[1], 'digits')"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", export, study], env=environment, check=True, timeout=120)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", READ], stdout=subprocess.PIPE, check=True, timeout=60)
    runs = json.loads(done.stdout)
    with tw.Study.open(study) as opened:
        trials = opened.state.trials
    assert sorted(runs) == [f"trial-{number:06d}" for number in sorted(trials)]
    assert len([*(tmp_path / "wandb").glob("offline-run-*")]) == len(trials)
    for number, trial in trials.items():
        run = runs[f"trial-{number:06d}"]
        assert (run["group"], run["project"]) == ("study", "digits")
        assert run["config"]["x"] == trial.params["x"]
        assert run["config"]["trainwright"]["state"] == trial.status.value
        assert [point["loss"] for point in run["history"]] == [r.metrics["loss"] for r in trial.reports.values()]
        assert run["exit"] == (1 if trial.failure is not None else 0)


def test_without_a_login_one_sentence_says_so(study, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="no login for project 'digits'; run `wandb login`, or set WANDB_MODE=offline"):
        export_wandb(study, "digits")

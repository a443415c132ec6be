"""The demo from its study file to its summary, in small; a second run repeats nothing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trainwright as tw

EXAMPLES = Path(__file__).parents[1] / "examples"
DEMO = EXAMPLES / "projects/images"
TRIALS, EPOCHS = 4, 2


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Return the demo's study file, cut to a few short trials, and its directory, after a first run."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("demo")
    text = (DEMO / "digits.toml").read_text()
    for name, value in (("trials", TRIALS), ("max_epochs", EPOCHS), ("workers", 1)):
        text, count = re.subn(rf"(?m)^{name} = \d+$", f"{name} = {value}", text)
        assert count == 1
    text = text.replace('"runs/demo"', json.dumps(str(folder / "study")))
    (folder / "digits.toml").write_text(text)
    (folder / "image_classification.py").write_text((DEMO / "image_classification.py").read_text())
    done = run(folder / "digits.toml")
    assert done.returncode == 0, done.stderr
    return folder / "digits.toml", folder / "study", done


def run(file):
    """Run the study file as a person does."""
    command = [sys.executable, "-c", "from trainwright.cli import main; main()", "run", str(file)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, env=environment, cwd=file.parent, capture_output=True, text=True, timeout=280, check=False
    )


def test_the_summary_holds_what_came_out(demo):
    """summary.json has the names that others read, with sensible values."""
    _, directory, _ = demo
    summary = json.loads((directory / "summary.json").read_text())
    names = {"trials", "finished", "single_test_accuracy", "ensemble_test_accuracy", "ensemble_cost", "seconds"}
    assert names <= set(summary)
    assert (summary["trials"], summary["finished"]) == (TRIALS, TRIALS)
    assert 0.1 < summary["single_test_accuracy"] <= 1
    assert 0.1 < summary["ensemble_test_accuracy"] <= 1
    assert 0 < summary["ensemble_cost"] < 1
    assert summary["seconds"] > 0


def test_it_ends_with_a_table_a_report_and_the_way_on(demo):
    """The last lines compare single and ensemble, name the report, and give one command."""
    file, directory, done = demo
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("best single")]
    assert [line for line in lines if line.startswith("best ensemble")]
    assert f"report:     {directory / 'report.html'}" in lines
    assert lines[-1] == f"continue:   trainwright run {file} --trials {2 * TRIALS}"
    assert (directory / "report.html").stat().st_size > 10_000


def test_every_trial_leaves_curves_and_predictions(demo):
    """Trials run to the full length or were stopped at a rung, and each result is in the library."""
    _, directory, _ = demo
    with tw.Study.open(directory) as study:
        trials = study.trials
    assert {trial.status for trial in trials} <= {"complete", "stopped"}
    assert {trial.epoch for trial in trials if trial.status == "complete"} == {EPOCHS}
    assert all(set(trial.values) == {"val_loss", "val_accuracy"} for trial in trials)
    assert all(trial.offered and trial.checkpoints for trial in trials)


def test_a_second_run_repeats_nothing(demo):
    """Nothing is trained, and the summary says the same."""
    file, directory, _ = demo
    summary = json.loads((directory / "summary.json").read_text())
    checkpoints = {path: path.stat().st_mtime_ns for path in (directory / "checkpoints").rglob("*")}
    again = run(file)
    assert again.returncode == 0, again.stderr
    assert json.loads((directory / "summary.json").read_text()) == summary
    assert {path: path.stat().st_mtime_ns for path in (directory / "checkpoints").rglob("*")} == checkpoints
    with tw.Study.open(directory) as study:
        assert [trial.lease for trial in study.trials] == [1] * TRIALS


@pytest.mark.slow
def test_plug_ins_pass_the_conformance_class_of_their_kind(tmp_path):
    """As their author runs it, in a folder of their own; each module that is a script runs too."""
    for file in (EXAMPLES / "plugins").glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    scripts = [file.name for file in tmp_path.glob("*.py") if "__main__" in file.read_text()]
    assert scripts
    for command in (["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_plugins.py"], *([name] for name in scripts)):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

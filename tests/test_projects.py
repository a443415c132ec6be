"""The example projects in small: their workflows from plan to deployment, and a stranger's scripts."""

import difflib
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.cli._study_file import read_job

ROOT = Path(__file__).parents[1]
PROJECTS, STRANGER = ROOT / "examples/projects", ROOT / "examples/stranger"
WORKFLOWS = sorted(PROJECTS.glob("*/*.toml"))


def run(command, folder):
    """Run a command of Python as a person does; return what it printed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_workflow_is_a_valid_one(file, monkeypatch):
    """Each file is read, its functions are found, and each project has a README that names it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    job = read_job(file)
    assert [stage.name for stage in job.stages][-1] in {"ensemble", "deployment"}
    assert file.name in (file.parent / "README.md").read_text()
    for table in ("plan", "deployment"):
        for key in ("profile", "rows"):
            if key in job.tables.get(table, {}):
                module, name = job.tables[table][key].split(":")
                assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("project", ["tabular", "gpt"])
def test_a_project_in_small(project, tmp_path):
    """Two short trials go through every stage."""
    for file in (PROJECTS / project).iterdir():
        (tmp_path / file.name).write_text(file.read_text()) if file.is_file() else None
    text = (tmp_path / "workflow.toml").read_text()
    for name, value in (("trials", 2), ("max_epochs", 2), ("max_members", 2)):
        text, count = re.subn(rf"(?m)^{name} = \d+", f"{name} = {value}", text)
        assert count == 1
    (tmp_path / "workflow.toml").write_text(text)
    said = run(["-m", "trainwright", "run", "workflow.toml"], tmp_path)
    assert "2 of 2 trials have a result" in said
    assert "best ensemble" in said
    assert "as the ensemble itself answers" in said


class TestStranger:
    def changes(self):
        """Return the diff of the two scripts, without its header."""
        plain, study = ((STRANGER / name).read_text().splitlines() for name in ("plain.py", "study.py"))
        return list(difflib.unified_diff(plain, study, "plain.py", "study.py", lineterm="", n=1))

    def test_fewer_than_fifteen_lines(self):
        """From a plain script to a study: lines added and lines removed together."""
        changed = [line for line in self.changes()[2:] if line[0] in "+-"]
        assert 0 < len(changed) < 15

    def test_the_guide_shows_this_diff(self):
        page = (ROOT / "docs/guide/from-a-script.md").read_text()
        assert "```diff\n" + "\n".join(self.changes()) + "\n```" in page

    @pytest.mark.slow
    def test_the_plain_script_runs(self):
        pytest.importorskip("sklearn")
        assert "epoch 8: " in run(["plain.py"], STRANGER)

    @pytest.mark.slow
    def test_an_optuna_script_runs_unchanged(self, tmp_path):
        """The same file under Optuna, and in worker processes of ours."""
        pytest.importorskip("optuna")
        pytest.importorskip("sklearn")
        for name in ("optuna_script.py", "optuna_study.py"):
            (tmp_path / name).write_text((STRANGER / name).read_text())
        assert "'width'" in run(["optuna_script.py"], tmp_path)
        assert re.search(r"12 trials, best with \{'width'", run(["optuna_study.py"], tmp_path))

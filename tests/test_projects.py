"""The example projects in small: their workflows from plan to deployment, and a stranger's scripts."""

import difflib
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trainwright.cli.workflow.study_file import read_job

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


@pytest.mark.slow
def test_networks_and_trees_share_an_ensemble(tmp_path):
    """Estimators of two kinds are searched in one study; the ensemble is ahead of the best single one on test rows."""
    file = PROJECTS / "tabular" / "networks_and_trees.py"
    (tmp_path / file.name).write_text(file.read_text())
    single, chosen, sets = run([file.name], tmp_path).splitlines()[-3:]
    assert float(chosen.split()[-1]) < float(single.split()[-1])
    assert 0.9 <= float(re.search(r"hold ([\d.]+)%", sets)[1]) / 100 <= 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cifar_10_from_its_files(tmp_path, monkeypatch):
    """Files of the binary version's format, with random bytes, are read, cut into splits and trained on."""
    draw = np.random.default_rng(0)
    for name, rows in (("data_batch_1.bin", 10_000), ("test_batch.bin", 2_000)):
        content = draw.integers(0, 256, (rows, 3073), dtype=np.uint8)
        content[:, 0] %= 10
        content.tofile(tmp_path / name)
    monkeypatch.setenv("CIFAR10", str(tmp_path))
    for file in (PROJECTS / "images" / name for name in ("cifar-10.toml", "image_classification.py")):
        (tmp_path / file.name).write_text(file.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("image_classification")
    data = module.cifar_10.__wrapped__()
    sizes = {"train": 7_500, "validation": 1_000, "selection": 1_000, "calibration": 500, "test": 2_000}
    assert {name: len(labels) for name, (_, labels) in data.items()} == sizes
    assert data["test"][1].tolist() == content[:, 0].tolist()
    np.testing.assert_allclose(data["test"][0][7].reshape(-1) * 255, content[7, 1:], atol=1e-3)
    text = (tmp_path / "cifar-10.toml").read_text()
    for name, value in (("trials", 1), ("max_epochs", 1), ("high", 8)):
        text = re.sub(rf"(?m)^{name} = \d+$", f"{name} = {value}", text)
    (tmp_path / "cifar-10.toml").write_text(text.replace("low = 16", "low = 4"))
    said = run(["-m", "trainwright", "run", "cifar-10.toml"], tmp_path)
    assert "1 of 1 trials have a result" in said
    assert "best ensemble" in said


def test_cifar_10_without_its_files(tmp_path, monkeypatch):
    monkeypatch.setenv("CIFAR10", str(tmp_path))
    monkeypatch.syspath_prepend(PROJECTS / "images")
    module = importlib.import_module("image_classification")
    with pytest.raises(FileNotFoundError, match=r"holds no data_batch_1.bin; set CIFAR10 to the folder"):
        module.cifar_10.__wrapped__()


class TestStranger:
    def changes(self):
        """Return the diff of the two scripts, without its header."""
        plain, study = ((STRANGER / name).read_text().splitlines() for name in ("plain.py", "study.py"))
        return list(difflib.unified_diff(plain, study, "plain.py", "study.py", lineterm="", n=1))

    def test_fewer_than_fifteen_lines(self):
        """From a plain script to a study: lines added and lines removed together."""
        changed = [line for line in self.changes()[2:] if line[0] in "+-"]
        assert 0 < len(changed) < 15

    def test_get_started_shows_this_diff(self):
        page = (ROOT / "docs" / "get-started.md").read_text()
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

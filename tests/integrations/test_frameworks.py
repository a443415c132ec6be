"""Scripts of other frameworks: killed twice, each ends with the metrics of the undisturbed run, bit for bit."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
ALONE = {
    "lightning": [
        "lightning_classifier",
        "lightning_datamodule",
        "lightning_accumulate",
        "lightning_gan",
        "lightning_early_stopping",
        "lightning_finetuning",
    ],
    "transformers": [
        "transformers_classification",
        "transformers_metrics",
        "transformers_language_model",
        "transformers_subclass",
    ],
    "peft": ["transformers_peft", "accelerate_two_models"],
    "accelerate": [
        "accelerate_loop",
        "accelerate_accumulate",
        "accelerate_average",
        "accelerate_complete",
        "accelerate_batch_size",
    ],
    "torch": ["torch_prepare", "torch_own_files", "optuna_pruning"],
}
QUICK = {
    "lightning_classifier",
    "lightning_gan",
    "lightning_early_stopping",
    "transformers_classification",
    "transformers_subclass",
    "transformers_peft",
    "accelerate_loop",
    "accelerate_accumulate",
    "torch_prepare",
    "torch_own_files",
    "optuna_pruning",
}
"""Of each framework what saves in another way; the others vary what is trained."""
RANKS = {name: [f"{name}_ranks"] for name in ("accelerate", "lightning", "transformers")}


def run(harness, scripts, folder):
    """Return what a harness printed of the scripts."""
    done = subprocess.run(
        [sys.executable, SCRIPTS / harness, folder, *scripts],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=280,
    )
    return json.loads(done.stdout.splitlines()[-1])


def changed_lines(path):
    """Return the numbers of the lines that use the trial, but for its parameters, or what is imported from us."""
    tree = ast.parse(path.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    ours = [node for node in imports if "trainwright" in ast.unparse(node)]
    names = {alias.asname or alias.name for node in ours for alias in node.names}
    # The trial of an Optuna objective is Optuna's.
    names |= set() if any("optuna" in ast.unparse(node) for node in imports) else {"trial"}
    chosen = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "params"}
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names]
    return {node.lineno for node in [*ours, *used] if id(node) not in chosen}


def parts():
    """Yield each framework's quick scripts, and the others as a slow case."""
    for name, scripts in ALONE.items():
        quick = tuple(script for script in scripts if script in QUICK)
        yield pytest.param((name, quick), id=name)
        if others := tuple(script for script in scripts if script not in QUICK):
            yield pytest.param((name, others), id=f"{name}, more", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=parts())
def runs(request, tmp_path_factory):
    name, scripts = request.param
    pytest.importorskip(name)
    return run("killed_twice.py", scripts, tmp_path_factory.mktemp(name))


def test_a_script_killed_twice_ends_as_if_nothing_had_been(runs):
    """Bit-equal metrics, and no epoch computed twice but the one in work at each death."""
    for script, found in runs.items():
        assert found["ends"] == [-9, -9, 0], (script, found["log"])
        assert found["whole"]["status"] == "complete", script
        assert found["torn"] == found["whole"], (script, found["log"])
        epochs = len(found["whole"]["reports"])
        assert epochs >= 3, script
        repeated = found["torn_steps"] - found["steps"]
        if script in REPEATS:
            assert "restarts at epoch 1" in found["log"], script
        else:
            assert repeated < 2 * found["steps"] / epochs, script


REPEATS = {"optuna_pruning"}
"""An Optuna objective has nothing to resume from, and the study says so once."""


@pytest.mark.parametrize("script", [s for scripts in ALONE.values() for s in scripts])
def test_a_script_changes_three_lines(script):
    """The import among them; beside what the trial chooses, its parameters. On several ranks the same script runs."""
    assert 2 <= len(changed_lines(SCRIPTS / f"{script}.py")) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", RANKS)
def test_two_ranks_of_which_one_is_killed(name, tmp_path):
    """The trial resumes with equal bits; a trial that is stopped at a rung ends on both ranks."""
    pytest.importorskip(name)
    for found in run("killed_rank.py", RANKS[name], tmp_path).values():
        whole, torn = found["whole"], found["torn"]
        assert [(t["status"], t["reports"], t["failure"]) for t in torn] == [
            (t["status"], t["reports"], t["failure"]) for t in whole
        ]
        assert {t["status"] for t in whole} == {"complete", "stopped"}
        assert torn[0]["leases"] == whole[0]["leases"] + 1

"""The example of probabilistic regression, run as a person would."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/projects/tabular/autodeuq.py"


@pytest.mark.slow
def test_example(tmp_path):
    """It searches, selects, calibrates, predicts with the networks built again, and says both parts of the variance."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    single, several = (float(line.rsplit(" ", 1)[1]) for line in lines[:2])
    assert max(single, several) < 1.42  # that of a normal distribution fitted to the targets alone
    assert "aleatoric" in lines[2]
    assert len(lines) == 7

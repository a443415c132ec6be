"""A strategy with an axis of its own, added as docs/extending.md says: it is one file and its entry point."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RANK = """
from trainwright.cluster import Cluster
from trainwright.plan import Degrees, Oracle
from trainwright.model.describe.transformer import describe_transformer
profile = describe_transformer(hidden=256, layers=4, heads=8, sequence=128, vocabulary=1000)
oracle = Oracle(Cluster.preset("dgx-a100"))
ranking = oracle.rank(profile, batch=4, devices=8, strategies=["ring", "data"])
print(sorted(plan.strategy for plan in ranking))
one, two = (oracle.estimate(profile, batch=4, degrees=Degrees(ring=parts)) for parts in (1, 2))
print(two.devices, two.breakdown.compute < one.breakdown.compute, two.activation_bytes < one.activation_bytes)
"""


@pytest.fixture
def tree(tmp_path):
    """Return a folder with an installed distribution: the strategy of the examples, whose axis is "ring"."""
    own = (ROOT / "examples" / "plugins" / "own_strategy.py").read_text(encoding="utf-8")
    (tmp_path / "ring.py").write_text(own, encoding="utf-8")
    about = tmp_path / "ring-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ring\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[trainwright.strategies]\nring = ring:Ulysses\n", encoding="utf-8")
    return tmp_path


def run(tree):
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", RANK]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_an_axis_of_ones_own_is_searched_and_priced(tree):
    done = run(tree)
    assert not done.returncode, done.stderr
    names, figures = done.stdout.splitlines()
    assert "'ring'" in names
    assert "'data+ring'" in names
    assert figures == "2 True True"


def test_an_axis_that_another_strategy_has_is_refused(tree):
    strategy = tree / "ring.py"
    strategy.write_text(strategy.read_text(encoding="utf-8").replace('"ring"', '"tensor"'), encoding="utf-8")
    done = run(tree)
    assert done.returncode
    assert "the axis 'tensor' is declared twice" in done.stderr

"""The transfer benchmark runs, small, and its summary compares one study, and several, with none."""

import json
import shutil
from pathlib import Path

import pytest
from benchmarks.transfer import run


def test_transfer(tables: Path, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit, match="has no two tables of one space"):
        run.main(["--tables", str(tables)])
    shutil.copy(tables / "accuracies" / "first.npz", tables / "accuracies" / "second.npz")
    run.main(["--tables", str(tables), "--earlier", "11", "--evaluations", "10", "--seeds", "2", "--json"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    summary = result["summary"]
    ways = {"surrogate", "several", "several, one opposite"}
    assert set(summary["mean_regret"]) == {"none", *ways}
    assert set(summary["mean_regret_difference"]) == ways
    assert len(result["detail"]) == 2

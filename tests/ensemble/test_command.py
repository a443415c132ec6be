"""`trainwright ensemble`: the table, the page, the line of JSON, and sentences for mistakes."""

import json
import sys

import numpy as np
import pytest

from trainwright.cli import main
from trainwright.ensemble import BudgetedGreedy, leave


@pytest.fixture
def trainwright(monkeypatch, capsys):
    """Return a function that runs `trainwright ensemble ARGUMENTS` here: its exit status, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["trainwright", "ensemble", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return run


def test_table_page_and_json(filled, trainwright, tmp_path):
    """Readable lines, the page with its three pictures, and the numbers by name; each loss named by its rows."""
    page = tmp_path / "ensemble.html"
    status, out, _ = trainwright(filled.directory, "--pick", "best", "--max-members", 3, "--html", page, "--json")
    assert status == 0
    told = json.loads(out.splitlines()[-1])
    front = filled.library().select(BudgetedGreedy(max_members=3))
    assert told["front"][0]["loss"] == pytest.approx(front.points[0].loss)
    assert told["pick"]["losses"]["test"] == pytest.approx(front.pick().score("test", "cross_entropy"), abs=1e-3)
    assert set(told["cross_validated"]) == {"single best", "top-k"}  # 60 rows are too few for more
    assert "only 60 rows to select on" in told["warnings"][0]
    for text in (
        "selection loss",
        "chosen (best), combination rule weighted:",
        "best ensemble",
        "calibration: not available, the models left no such rows",
        "test cross entropy:",
        "warning: only 60 rows",
        "cost:",
    ):
        assert text in out
    assert told["baselines"]["single best"]["members"] == [told["summary"]["single_trial"]]
    assert {"caruana", "top-2", "top-3"} < set(told["baselines"])
    content = page.read_text()
    assert "plot-ensembles" in content


def test_budget_and_library_top(filled, trainwright, tmp_path):
    page = ("--html", tmp_path / "page.html")
    status, out, _ = trainwright(filled.directory, "--budget-seconds", 0.0035, "--library-top", 4, *page, "--json")
    assert status == 0
    told = json.loads(out.splitlines()[-1])
    assert told["models"] < 8 or told["front"]
    assert all(point["seconds_per_row"] <= 0.0035 for point in told["front"])


def test_validation_rows_alone(study, trainwright, tmp_path):
    """They are divided, and it is said that every number is too good."""
    for number in range(3):
        told = {"validation": study.predictions(number)["test"]}
        leave(study.trial(number), predictions=told, targets={"validation": study.targets["test"]})
    status, out, _ = trainwright(study.directory, "--html", tmp_path / "page.html", "--json")
    content = json.loads(out.splitlines()[-1])
    assert status == 0
    assert content["pick"]["rows_seen_by_search"]
    assert set(content["pick"]["losses"]) == {"selection", "test"}
    assert "warning: the models left validation rows alone, which steered the search" in out


def test_mistakes(filled, study, trainwright, tmp_path):
    """One sentence each, status 2, no traceback."""
    labels = np.array([0, 1] * 10)
    odds = np.tile([[0.6, 0.4]], (20, 1))
    leave(study.trial(0), predictions={"selection": odds}, targets={"selection": labels})
    leave(study.trial(1), predictions={"selection": odds[:10]}, targets={"selection": labels[:10]})
    for arguments, sentence in (
        ([tmp_path / "nowhere"], "nowhere"),
        ([filled.directory, "--metric", "acuracy"], "did you mean 'accuracy'"),
        ([filled.directory, "--pick", "cheapest"], "allowed: 'best', 'fallback'"),
        ([filled.directory, "--rule", "mixture"], "rule: got 'mixture' for predictions that are classes"),
        ([filled.directory, "--budget-seconds", "1e-9"], "allowed: at least 0.001"),
        ([filled.directory, "--split", "validation"], "split: got 'validation'; allowed: selection, test"),
        ([filled.directory, "--max-members", "0"], "max_members: got 0"),
        ([study.directory], "got 2 different sets of rows"),
    ):
        status, _, err = trainwright(*arguments, "--html", tmp_path / "page.html")
        assert (status, "Traceback" in err) == (2, False)
        assert sentence in err

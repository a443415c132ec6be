"""The benchmark of allocation policies keeps what it has simulated."""

import json

import pytest
from benchmarks.schedule import real, whole
from benchmarks.schedule import run as schedule
from benchmarks.schedule.grid import Cell, Seeds


def test_finished_cells_are_kept(capsys: pytest.CaptureFixture, tmp_path):
    small = ["--parts", "grid", "--grid", "band", "--devices", "64", "--seeds", "1", "--cells", str(tmp_path), "--json"]
    schedule.main(small)
    names = {"asha", "rasda", "marginal-gain", "static-8", "static-16"}
    assert {path.stem for path in tmp_path.iterdir()} == names
    before = [path.read_text() for path in sorted(tmp_path.iterdir())]
    schedule.main(small)
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == before
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    summary = result["summary"]
    assert summary["cells"] == 24
    assert 0 < summary["ours_over_rasda_makespan_worst"] <= summary["ours_over_rasda_makespan_worst_high"]
    assert 0 < summary["ours_over_asha_first_full_worst"] <= 1.0 + 1e-9
    assert [row[:2] for row in result["table"]["rows"]] == [["64", "at once"], ["64", "queue"]]
    assert all(result["table"]["rows"][0])


def test_parts_that_are_not_run_stay(capsys: pytest.CaptureFixture, tmp_path):
    file = tmp_path / "schedule.json"
    row = ["64", "queue", *["1.00 (1.00 to 1.00)"] * 8]
    file.write_text(json.dumps({"summary": {"ray_trials": 3.0, "cells": 9}, "table": {"rows": [row]}}))
    schedule.main(["--parts", "", "--results", str(file)])
    result = json.loads(file.read_text())
    assert (result["summary"], result["table"]["rows"]) == ({"ray_trials": 3.0, "cells": 9}, [row])


def test_many_seeds_where_something_must_hold():
    seeds = Seeds(most=30, few=5)
    assert seeds.of(Cell(4096, 4096, 8, 0.9, 0.1)) == seeds.of(Cell(1024, 256, 8, 1.0, 0.0)) == 30
    assert seeds.of(Cell(512, 128, 8, 1.0, 0.0)) == seeds.of(Cell(1024, 256, 32, 0.9, 0.1)) == 5


def test_the_whole_grid_names_misses_and_stalls(capsys: pytest.CaptureFixture, tmp_path):
    """On eight devices RASDA as published wants more than there are in each setting of more than two epochs."""
    whole.main(["--devices", "8", "--seeds", "1", "--few", "1", "--cells", str(tmp_path), "--json"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    summary = result["summary"]
    assert (summary["first_full_settings"], summary["makespan_settings"], summary["rasda_stalls"]) == (128, 0, 128)
    assert summary["rasda_stalls_elsewhere_than_expected"] == 0
    assert summary["first_full_worst"] >= summary["first_full_mean"] > 0
    assert [row[:5] for row in result["table"]["rows"][:2]] == [
        ["4", "0.7", "at once", "4", "stalls"],
        ["4", "0.7", "queue", "4", "stalls"],
    ]


@pytest.mark.slow
def test_real_studies_beside_their_forecasts(capsys: pytest.CaptureFixture):
    real.main(["--seeds", "1", "--epoch-seconds", "0.2", "--json"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row[:3] for row in result["table"]["rows"]] == [["4", "0", "asha"], ["4", "0", "marginal-gain"]]
    assert all(float(row[3]) > 0 < int(row[5]) for row in result["table"]["rows"])
    assert result["summary"]["ours_over_asha_makespan_measured"] > 0

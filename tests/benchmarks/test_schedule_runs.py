"""The benchmark of allocation policies keeps what it has simulated."""

import json

import pytest
from benchmarks.schedule import run as schedule


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

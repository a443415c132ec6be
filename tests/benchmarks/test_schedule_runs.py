"""The benchmarks of allocation policies: their tables, and what they keep."""

import json

import numpy as np
import pytest
from benchmarks.schedule import deadline, real
from benchmarks.schedule import run as schedule
from benchmarks.schedule.speeds import SPEEDS, derived


@pytest.fixture
def one_small_cluster(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedule, "settings", lambda: [schedule.Setting("held", "ImageNet", "RTX", 16)])


@pytest.mark.usefixtures("one_small_cluster")
def test_every_column_is_the_scheduler_that_it_names(capsys: pytest.CaptureFixture):
    """RASDA is `tw.RASDA`, and all have the same rule."""
    schedule.main(["--parts", "speeds", "--seeds", "2", "--json"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = result["table"]["rows"]
    assert [row[:3] for row in rows] == [
        ["held, ImageNet, RTX (1.21, 1.42)", "16", "at once"],
        ["held, ImageNet, RTX (1.21, 1.42)", "16", "queue"],
    ]
    assert all(len(row) == len(result["table"]["header"]) and all(row) for row in rows)
    assert result["summary"]["asha_over_marginalgain_held_queue_least"] > 0.9
    assert schedule.SCHEDULERS["RASDA"] == schedule.tw.RASDA(max_epochs=8, start=4)
    assert len({scheduler.rule for scheduler in schedule.SCHEDULERS.values()}) == 1


def test_deadlines_are_played_by_all(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """A row for each time, regrets between 0 and 1, and the paired difference to the best of the others."""
    curves = np.random.default_rng(0).normal(1.0, 0.2, (90, 1)) + 1 / np.arange(1, 28)
    np.savez(tmp_path / "made.npz", valid_loss=curves)
    (tmp_path / "taskset").mkdir()
    (tmp_path / "made.npz").rename(tmp_path / "taskset" / "made.npz")
    monkeypatch.setattr(deadline, "DEADLINES", (0.5, 2.0))
    result = deadline.main(["--data", str(tmp_path), "--seeds", "3"])
    assert [row[:2] for row in result["table"]["rows"]] == [["TaskSet", "0.5"], ["TaskSet", "2"]]
    assert all(0.0 <= result["summary"][f"taskset_{time}_deadline"] <= 1.0 for time in ("0.5", "2"))
    assert result["summary"]["taskset_0.5_deadline"] < result["summary"]["taskset_0.5_asha_refills"] == 1.0


def test_parts_that_are_not_run_stay(tmp_path):
    file = tmp_path / "schedule.json"
    file.write_text(json.dumps({"summary": {"ray_trials": 3.0}, "table": {"rows": [["a"] * len(schedule.HEADER)]}}))
    schedule.main(["--parts", "", "--results", str(file)])
    result = json.loads(file.read_text())
    assert (result["summary"], result["table"]["rows"]) == ({"ray_trials": 3.0}, [["a"] * len(schedule.HEADER)])


def test_speeds_are_those_of_the_step_times(tmp_path):
    """Twice the GPUs with half the batch each, or with the same; between two batches a step time is interpolated."""
    for model in ("imagenet", "cifar10"):
        (tmp_path / model).mkdir()
        for machine, places in (("dgx", ("4", "8", "88")), ("rtx", ("4", "8", "88")), ("aws", ("4", "44", "4444"))):
            lines = ["placement,local_bsz,step_time"]
            lines += [f"{place},{batch},{batch / 100}" for place in places for batch in (20, 60, 100)]
            (tmp_path / model / f"placements-{machine}.csv").write_text("\n".join(lines) + "\n")
    found = derived(tmp_path)
    assert found.keys() == SPEEDS.keys()
    assert set(map(str, found.values())) == {str({"held": (2.0, 4.0), "grown": (2.0, 4.0)})}


@pytest.mark.slow
def test_real_studies_beside_their_forecasts(capsys: pytest.CaptureFixture):
    real.main(["--seeds", "1", "--epoch-seconds", "0.2", "--json"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row[:3] for row in result["table"]["rows"]] == [["4", "0", "asha"], ["4", "0", "marginal-gain"]]
    assert all(float(row[3]) > 0 < int(row[5]) for row in result["table"]["rows"])
    assert result["summary"]["ours_over_asha_makespan_measured"] > 0

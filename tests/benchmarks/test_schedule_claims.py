"""The claims on promotion rules are checked on small tables, and what the comparisons rest on is right."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from benchmarks.schedule import claims
from benchmarks.schedule.paired import Kept, average, growth, holds, ratio
from benchmarks.schedule.replays import Watched, algoperf, study, taskset

from trainwright.engine.simulated.task import Parametric
from trainwright.schedule import ASHA, FixedEpochs, SuccessiveHalving

EVEN = Parametric(epoch_seconds=1.0, speed_jitter=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a table of 24 falling curves in the format of TaskSet, one diverging."""
    (tmp_path / "taskset").mkdir()
    ends = np.linspace(0.1, 1.0, 24)[:, None]
    losses = (ends + (1.0 - ends) * np.arange(1, 5) ** -1.0).astype(np.float32)
    losses[5, 3:] = np.nan
    np.savez(tmp_path / "taskset" / "first.npz", valid_loss=losses, hp=ends, hp_names=["end"])
    return tmp_path


def test_each_part_gives_its_numbers_or_says_why_not(folder: Path, capsys: pytest.CaptureFixture):
    file = folder / "result.json"
    wanted = ["--data", str(folder), "--seeds", "1", "--units", "6", "--results", str(file), "--json"]
    claims.main([*wanted, "--parts", "stragglers,target,workers"])
    claims.main([*wanted, "--parts", "pasha,order,order_algoperf,order_surrogate,discarding"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    summary = result["summary"]
    assert summary["speedup_2"] > 1.0
    assert summary["full_lead_asha_promotion_halving_alone_growth_drops"] > 0.0
    assert {"full_asha_stopping_s0.25_p0.01", "first_full_lead_asha_stopping_halving_overlapping"} < summary.keys()
    assert {"target_lead_asha_promotion_halving_alone_stragglers", "target_reached_halving_alone"} < summary.keys()
    assert 0.0 <= summary["order_i_epoch_1_regret"] <= 1.0
    assert 0.0 <= summary["hypervolume_log_epochs_asha"] <= 1.0
    assert {"asha_over_pasha_epochs", "pasha_minus_asha_regret", "studies"} < summary.keys()
    assert "algoperf/*.parquet" in summary["skipped"]["order_algoperf"]
    assert "yahpo_lcbench/model.onnx" in summary["skipped"]["order_surrogate"]
    assert {row[-1] for row in result["table"]["rows"]} <= {"", "yes", "no", "open"}
    assert json.loads(file.read_text())["parts"].keys() == claims.PARTS.keys()


def test_an_unknown_part_is_named(folder: Path, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        claims.main(["--data", str(folder), "--parts", "speed"])
    assert "got 'speed'; allowed: workers, pasha" in capsys.readouterr().err


def test_algoperf_epochs_hold_the_latest_value_of_long_runs(tmp_path: Path):
    pl = pytest.importorskip("polars")
    (tmp_path / "algoperf").mkdir()
    count = 13
    runs = {"run": range(count), "workload": ["w"] * count, "metric": ["bleu"] * count, "max_runtime_s": [100] * count}
    pl.DataFrame(runs).write_parquet(tmp_path / "algoperf" / "algoperf_runs.parquet")
    times = [2.0, 46.0, 95.0]
    rows = [(run, at, value) for run in range(count) for at, value in zip(times, (0.1, 0.2, 0.3), strict=True)]
    rows = [row for row in rows if row[0] != 12 or row[1] < 90.0]  # that run was cut off
    frame = pl.DataFrame(rows, schema=["run", "submission_time_s", "val_metric"], orient="row")
    frame.write_parquet(tmp_path / "algoperf" / "algoperf_curves.parquet")
    (curves,) = algoperf(tmp_path)
    assert (curves.rows, curves.length, curves.seconds) == (12, 50, pytest.approx(90.0))
    first = curves.task.losses[0][:, 0]
    assert (first[0], first[1], first[24], first[25], first[49]) == (math.inf, -0.1, -0.1, -0.2, -0.2)


def test_a_watched_study_ends_in_time_and_notes_each_epoch():
    watched, run = study(Watched(FixedEpochs(10), until=25.0, each_epoch=True), EVEN, slots=2, trials=100, seed=0)
    assert run.full == 4
    assert {epoch for epoch, _ in watched.latest().values()} == {5, 10}
    assert len(watched.reports) == 2 * 25
    assert watched.reached(watched.best(12.0)) <= 12.0
    assert watched.reached(-math.inf) == math.inf


def test_a_bracket_alone_waits_for_the_one_before():
    def starts(bracket: int) -> list[float]:
        rule = SuccessiveHalving(n=4, max_epochs=4, eta=2)
        watched, _ = study(Watched(rule, bracket=bracket), EVEN, slots=2, trials=8, seed=0)
        firsts = {trial: at for at, trial, epoch, _ in reversed(watched.reports) if epoch == 1}
        return [firsts[trial] for trial in range(8)]

    assert starts(0)[:4] == starts(4)[:4] == [1.0, 1.0, 2.0, 2.0]
    assert min(starts(0)[4:]) == 3.0  # a slot was free when the third had come
    assert min(starts(4)[4:]) == 6.0  # the winner's four epochs are over at 5


def test_regret_is_zero_at_the_best_end_and_one_from_the_median_on(folder: Path):
    (curves,) = taskset(folder)
    finals = np.sort(curves.finals[np.isfinite(curves.finals)])
    assert len(finals) == 23
    assert curves.regret(finals[0]) == 0.0
    assert curves.regret(finals[11]) == pytest.approx(1.0)
    assert curves.regret(math.inf) == 1.0


def test_intervals_are_of_pairs(tmp_path: Path):
    under = np.array([1.0, 50.0, 100.0, 4.0])
    value = ratio(3 * under + 1.0, under)
    assert value[1] <= value[0] <= value[2]
    assert value[2] - value[1] < 1.0  # unpaired ones are much wider
    assert growth((under, under), (3 * under, under))[0] == pytest.approx(3.0, rel=0.02)
    assert average(under)[0] == pytest.approx(38.75)
    assert [holds(value, than) for than in (1.0, value[0], 9.0)] == ["yes", "open", "no"]
    kept = Kept(tmp_path / "cells.jsonl")
    assert kept.of("a", lambda: [1]) == Kept(tmp_path / "cells.jsonl").of("a", lambda: [2]) == [1.0]


def test_asha_passes_halving_when_runs_straggle():
    full = {}
    for rule in (ASHA(max_epochs=16, min_epochs=1, eta=4), SuccessiveHalving(n=16, max_epochs=16, eta=4)):
        bracket = 16 if isinstance(rule, SuccessiveHalving) else 0
        watched = Watched(rule, until=100.0, bracket=bracket)
        study(watched, EVEN, slots=8, trials=10**4, seed=0, stragglers=1.0)
        full[bracket] = sum(epoch == 16 for _, _, epoch, _ in watched.reports)
    assert full[0] > full[16]

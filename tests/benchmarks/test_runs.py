"""Each speed benchmark runs, small, and its last line holds the numbers that are promised by name."""

import json

import pytest
from benchmarks.asktell import run as asktell
from benchmarks.ledger import run as ledger
from benchmarks.overhead import run as overhead
from benchmarks.ray import run as ray


def test_ledger(capsys: pytest.CaptureFixture):
    ledger.main(["--records", "600", "--trials", "200", "--repeats", "1", "--writers", "4", "--json"])
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
    assert summary["appends_per_second_unsynced"] > 0
    assert summary["replay_seconds_100000"] > 0
    assert {"resident_bytes_per_record", "appends_per_second_default"} < summary.keys()
    assert summary["sync_calls_4"] == summary["sync_least_calls_4"] == 1 + 4 + 3 * 4
    assert {"sync_ms_4", "sync_ms_4_none", "operation_ms_memory", "operation_ms_directory"} < summary.keys()
    assert "redis" in summary["skipped"] or summary["operation_ms_redis"] > 0
    assert "optuna" in summary["skipped"] or summary["write_ratio_to_optuna_always"] > 0


def test_asktell(capsys: pytest.CaptureFixture):
    asktell.main(["--searchers", "forest", "--observations", "100", "--repeats", "1", "--json"])
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
    assert 0 < summary["forest_ms_100"] <= summary["forest_p95_ms_100"]
    assert summary["forest_directory_ms_100"] > 0


def test_overhead(capsys: pytest.CaptureFixture):
    overhead.main(["--trials", "10", "--repeats", "1", "--json"])
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
    assert summary["import_pulls"] == []
    assert summary["import_seconds"] > 0
    assert {"trivial_driver_ms", "sleep_10ms_driver_ms", "sleep_10ms_idle_ms", "start_seconds"} < summary.keys()


@pytest.mark.slow
def test_ray(capsys: pytest.CaptureFixture):
    pytest.importorskip("ray")
    ray.main(["--trials", "6", "--reports", "3", "--repeats", "1", "--json"])
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
    assert summary["trials_per_second_ours"] > 0
    assert summary["report_ms_ours"] > 0
    assert "ray-tune" in summary["skipped"] or summary["ray_over_ray_tune_trials_per_second"] > 0

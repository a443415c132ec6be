"""The benchmark of checkpoints runs, small, part by part, and its last line holds the numbers promised by name."""

import json

import pytest
from benchmarks.checkpoint import models, run

BLOCKING = {"blocking_over_torch_save_200mb", "slowdown_over_torch_save_200mb", "restore_over_torch_load_cold_200mb"}


def summary_of(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]


def test_intervals_and_flips(capsys, tmp_path):
    run.main(["--parts", "intervals,flips", "--failures", "200000", "--ratios", "3", "--flips", "6", "--json"])
    summary = summary_of(capsys)
    assert summary["interval_gap_worst"] < 0.02 < summary["interval_gap_worst_young"]
    assert summary["horizon_mistakes"] == 0
    assert (summary["bit_flips"], summary["bit_flips_undetected"], summary["damages_undetected"]) == (6, 0, 0)


def test_parts_that_are_not_run_stay(capsys, tmp_path):
    """A result file collects the parts of several runs, each with its own environment."""
    results = tmp_path / "checkpoint.json"
    small = ["--failures", "20000", "--ratios", "1", "--flips", "2", "--results", str(results)]
    run.main(["--parts", "flips", *small])
    run.main(["--parts", "intervals", *small])
    kept = json.loads(results.read_text())
    assert list(kept["parts"]) == ["flips", "intervals"]
    assert {"bit_flips", "interval_gap_worst"} <= set(kept["summary"])
    assert "environment" in kept["parts"]["flips"]


@pytest.mark.parametrize("option", ["--parts", "--sizes"])
def test_unknown_names_are_refused(option, capsys):
    with pytest.raises(SystemExit, match="2"):
        run.main([option, "nothing"])
    assert f"{option}: got 'nothing'; allowed: " in capsys.readouterr().err


@pytest.mark.slow
def test_kills(capsys):
    run.main(["--parts", "kills", "--kills", "10", "--json"])
    summary = summary_of(capsys)
    assert (summary["kills"], summary["kills_lost"], summary["kills_wrong"]) == (10, 0, 0)


@pytest.mark.slow
def test_blocking(capsys, monkeypatch):
    monkeypatch.setitem(run._SIZES, "200mb", 20_000_000)
    run.main(["--parts", "blocking", "--sizes", "200mb", "--rounds", "2", "--json"])
    summary = summary_of(capsys)
    assert set(summary) >= BLOCKING
    assert summary["blocking_over_torch_save_200mb"] > 0


@pytest.mark.slow
def test_resume(capsys):
    run.main(["--parts", "resume", "--quick", "--json"])
    summary = summary_of(capsys)
    assert summary["resume_combinations"] > 2
    assert summary["resume_mismatches"] == 0


@pytest.mark.slow
def test_models(capsys):
    models.main(["--models", "MLP", "--repeats", "1", "--json"])
    assert all(summary_of(capsys).values())

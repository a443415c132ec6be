"""The benchmark of searchers together with rules, end to end on a small table of curves."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.search import rules
from benchmarks.search.curves import find_curves


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    hp = generator.random((60, 2)) * [1.0, 9.0] + [1e-3, 1.0]
    curves = np.abs(hp[:, :1] - 0.3) + 1.0 / np.arange(1, 10)
    curves[7, 3:] = np.nan
    (tmp_path / "taskset").mkdir()
    np.savez(tmp_path / "taskset" / "small.npz", hp=hp, hp_names=["rate", "width"], valid_loss=curves)
    return tmp_path


def test_regret_is_zero_at_the_best_one_at_the_median_and_never_above(folder: Path):
    [problem] = find_curves(folder)
    assert problem.length == 9
    assert problem.regret(problem.best) == 0.0
    assert problem.regret(problem.median) == 1.0
    assert problem.regret(1e9) == problem.regret(np.inf) == 1.0
    assert np.isinf(problem.model._losses[7, 3:]).all()


def test_pairs_meet_the_same_studies_and_a_second_run_takes_what_is_kept(folder: Path, tmp_path: Path):
    arguments = ["--data", str(folder), "--families", "taskset,lcbench", "--seeds", "1", "--workers", "2"]
    arguments += ["--pairs", "random+asha,forest+asha,evil+asha"]
    with pytest.raises(SystemExit):
        rules.main(arguments)
    arguments[-1] = "random+asha,forest+asha,optuna-tpe+median"
    arguments += ["--cells", str(tmp_path / "cells"), "--results", str(tmp_path / "result.json")]
    summary = rules.main(arguments)["summary"]
    assert "lcbench" in summary["skipped"]
    regrets = summary["taskset random+asha"]
    assert regrets == sorted(regrets, reverse=True)
    assert len(regrets) == len(rules.MARKS)
    assert len(summary["taskset forest+asha minus random"]) == len(rules.MARKS)
    kept = (tmp_path / "cells").read_bytes()
    assert rules.main(arguments)["summary"] == summary
    assert (tmp_path / "cells").read_bytes() == kept
    assert json.loads((tmp_path / "result.json").read_text())["benchmark"] == "rules"

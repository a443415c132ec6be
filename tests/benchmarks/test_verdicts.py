"""The benchmark of verdicts by a model: what it says of curves where the better predictor is known."""

import json

import numpy as np
import pytest
from benchmarks.schedule import verdicts


def judge(folder, capsys, *, known_by):
    """Write a table whose ends follow from the configuration, or from the first loss; return the summary."""
    generator = np.random.default_rng(0)
    x, noise = generator.uniform(size=(2, 140, 1))
    epochs = np.arange(30)[None, :] / 29
    end = np.abs(x - 0.4) if known_by == "configuration" else noise
    (folder / "taskset").mkdir()
    curves = (1 - epochs) * noise + epochs * end
    np.savez(folder / "taskset" / "one.npz", hp=x, hp_names=["x"], valid_loss=curves)
    verdicts.main(["--data", str(folder), "--seeds", "1", "--json"])
    return json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]


def test_the_model_sees_what_follows_from_the_configuration(tmp_path, capsys):
    summary = judge(tmp_path, capsys, known_by="configuration")
    assert summary["taskset_nobody_stopped_model_auc_minus_loss"] > 0.1
    assert summary["taskset_nobody_stopped_best_so_far_auc_minus_loss"] == pytest.approx(0.0, abs=0.05)


def test_where_ranks_stay_nobody_is_ahead_of_the_loss(tmp_path, capsys):
    summary = judge(tmp_path, capsys, known_by="loss")
    assert summary["taskset_nobody_stopped_model_auc_minus_loss"] <= 0.0
    assert summary["taskset_asha_ended"] == 0.0 <= summary["taskset_asha_regret"] < 0.2


def test_a_folder_without_curves_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        verdicts.main(["--data", str(tmp_path)])
    assert "no curves in" in capsys.readouterr().err

"""`trainwright demo`: what it claims holds; in small, it resumes."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainwright.cli import demo as module
from trainwright.ensemble.metrics import SMALLEST

pytest.importorskip("sklearn")
pytest.importorskip("torch")


def test_in_small_it_says_all_that_it_measures(tmp_path, monkeypatch, capfd):
    """To run it again trains nothing, and says the same."""
    monkeypatch.setattr(module, "_TRIALS", 6)
    monkeypatch.setattr(module, "_EPOCHS", 9)
    first, again = (module.demo(tmp_path / "study", workers=2) for _ in range(2))
    assert again.content == first.content
    saved, test, served = (first.content[name] for name in ("early_stopping", "test", "served"))
    assert 6 * 3 <= saved["epochs"] <= saved["full_epochs"] == 54
    assert test["low"] <= test["change"] <= test["high"]
    assert test["change"] == pytest.approx(test["ensemble"] / test["single"] - 1)
    assert served["right"] / served["rows"] == pytest.approx(test["ensemble_accuracy"], abs=0.1)
    capfd.readouterr()
    first.show()
    lines = capfd.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if ":" in line][-2:] == ["served", "report"]


@pytest.mark.slow
def test_the_ensemble_is_clearly_better(tmp_path):
    """By at least 5 % in test cross-entropy, with an interval that excludes 0, after less than half of the epochs."""
    content = module.demo(tmp_path / "study", workers=2).content
    assert content["test"]["change"] <= -0.05
    assert content["test"]["high"] < 0
    assert content["early_stopping"]["saved_share"] > 0.5


def test_a_probability_of_zero_is_clipped_as_in_the_metric():
    """One network that is sure and wrong leaves finite figures."""
    sure = SimpleNamespace(predictions=lambda _: np.array([[1.0, 0.0]]), score=lambda *_: 0.0)
    fair = SimpleNamespace(
        predictions=lambda _: np.array([[0.5, 0.5]]),
        score=lambda *_: 0.5,
        members=[SimpleNamespace(targets=lambda _: np.array([1]))],
    )
    found = module._compare(SimpleNamespace(front=SimpleNamespace(single_best=sure), ensemble=fair))
    assert found["single"] == pytest.approx(-np.log(SMALLEST))
    assert found["change"] == pytest.approx(np.log(2) / -np.log(SMALLEST) - 1)

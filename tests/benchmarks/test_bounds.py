"""The benchmark of bounds and constraints runs, small, and judges legal trials only."""

import json

import numpy as np
import pytest
from benchmarks.multiobjective import bounds


def test_bounds(capsys: pytest.CaptureFixture):
    bounds.main(["--trials", "8", "--seeds", "1", "--json"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["detail"]) == set(bounds.PROBLEMS)
    assert set(result["summary"]["mean_regret"]) == set(bounds.SEARCHERS)
    assert all(0.0 <= value <= 1.0 for found in result["detail"].values() for [value] in found.values())


def test_what_breaks_a_bound_counts_nothing():
    regret, volume = bounds.PROBLEMS["branin, ring"], bounds.PROBLEMS["zdt1, bound"]
    illegal = np.array([[0.0, 0.0], [0.0, -0.1]])
    assert bounds._mean_regrets(regret, [[illegal]]) == [[1.0]]
    legal, beyond = np.array([[0.5, 0.5]]), np.array([[0.5, 0.5], [0.1, 1.1]])
    assert bounds._hypervolumes(volume, [[legal], [beyond]]) == [[1.0], [1.0]]

"""Traced peaks against real training steps: the benchmark's own comparison, on a few of its configurations."""

import pytest

peaks = pytest.importorskip("benchmarks.plan.peaks")


def chosen(*models, way):
    return [c for c in peaks.CONFIGURATIONS if c.model in models and c.batch == 8 and (c.optimizer, c.precision) == way]


def test_there_are_enough_configurations():
    assert len(peaks.CONFIGURATIONS) == len(set(peaks.CONFIGURATIONS)) >= 50


def test_traced_peaks_are_those_of_real_steps():
    """Within 3 % of tracked bytes, never below by more than the margin; of the allocator's, below by 10 % at most."""
    found = [*chosen("mlp", "unet", way=("adamw", "fp32")), *chosen("gpt", way=("adamw", "amp-bf16"))]
    assert len(found) == 3
    measured = peaks.measure(found)
    assert measured["configurations"] == 3
    assert measured["peak_error_worst"] <= 0.03
    assert measured["false_fits"] == 0
    assert measured["allocator_below_worst"] <= 0.1


def test_a_false_fit_is_seen():
    """A traced peak that is too low by more than the margin counts, one within it does not."""
    configuration = peaks.CONFIGURATIONS[0]
    row = {"configuration": configuration, "tracked_bytes": 1000, "allocator_bytes": 1000}
    assert peaks.Row(traced_bytes=960, **row).false_fit
    assert not peaks.Row(traced_bytes=975, **row).false_fit
    assert peaks.Row(traced_bytes=960, **row).error == pytest.approx(0.04)

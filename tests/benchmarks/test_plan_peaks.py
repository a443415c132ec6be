"""Predicted peaks against real training steps: the benchmark's own comparison, on a few of its configurations."""

import pytest

peaks = pytest.importorskip("benchmarks.plan.peaks")


def chosen(*models, precision):
    return [each for each in peaks.CONFIGURATIONS if each.model in models and each.precision == precision]


def test_there_are_enough_configurations():
    assert len(peaks.CONFIGURATIONS) == len(set(peaks.CONFIGURATIONS)) >= 60
    assert len({each.model for each in peaks.CONFIGURATIONS}) >= 30


def test_predicted_peaks_are_not_below_the_allocators():
    """Convolutions in two and three dimensions, with what their kernels borrow, and half precision."""
    measured = peaks.measure(
        [*chosen("mlp", "unet", "volumes", precision="fp32"), *chosen("gpt", precision="amp-bf16")]
    )
    assert measured["configurations"] == 4
    assert measured["false_fits"] == 0
    assert measured["peak_error_worst"] < 0.2


def test_a_false_fit_is_seen():
    """A prediction that is too low by more than the margin counts, one within it does not."""
    row = {"configuration": peaks.CONFIGURATIONS[0], "allocator_bytes": 1000}
    low = 1000 / (1 + peaks.MARGIN)
    assert peaks.Row(predicted_bytes=int(low) - 2, **row).false_fit
    assert not peaks.Row(predicted_bytes=int(low) + 2, **row).false_fit
    assert peaks.Row(predicted_bytes=960, **row).error == pytest.approx(-0.04)

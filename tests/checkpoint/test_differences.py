"""Differences between what was saved and what is: ordered by what they do, refused in exact mode."""

import pytest

from trainwright.checkpoint.state.differences import Difference, Effect, settle_differences
from trainwright.errors import CheckpointMismatchError

TORCH = Difference(item="torch", saved="2.12", now="2.13", effect=Effect.ROUNDING)
RANDOM = Difference(item="random.cuda", saved=2, now=1, effect=Effect.DRAWS)
OPTIMIZER = Difference(item="optimizer", saved=[0.1] * 100, now=None, effect=Effect.STATE)


def test_best_effort_returns_them_gravest_first():
    found = settle_differences([TORCH, OPTIMIZER, RANDOM], mode="best_effort", what="step-7")
    assert found == (OPTIMIZER, RANDOM, TORCH)


def test_exact_refuses_and_names_all():
    with pytest.raises(CheckpointMismatchError) as caught:
        settle_differences([TORCH, OPTIMIZER, RANDOM], mode="exact", what="step-7")
    text = str(caught.value)
    assert text.startswith("step-7 cannot be restored exactly: optimizer was [0.1, ")
    assert "...; random.cuda" not in text  # a long value is cut, and its successor still named
    assert "random.cuda was 2 and is 1 (draws other random numbers)" in text
    assert "torch was '2.12' and is '2.13' (may round differently)" in text
    assert text.endswith("restore(mode='best_effort')")
    assert len(text) < 500


def test_none_is_fine():
    assert settle_differences([], mode="exact", what="step-7") == ()

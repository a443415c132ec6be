"""Objectives: what their texts mean, and the sentences for texts and values that mean nothing."""

import math

import pytest

from trainwright.errors import ObjectiveError
from trainwright.ledger import Objective
from trainwright.ledger.objectives import parse_objectives, refusal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("min val_loss", Objective("val_loss", "min")),
        ("  max   accuracy>=0.85 ", Objective("accuracy", "max", 0.85)),
        ("min step_seconds <= 1e-3", Objective("step_seconds", "min", 1e-3)),
        ("min max", Objective("max", "min")),
    ],
)
def test_parse(text, expected):
    assert Objective.parse(text) == expected
    assert Objective.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("val_loss", "objective 'val_loss' lacks a direction; write 'min val_loss' or 'max val_loss'"),
        ("", "objective '' is not of the form 'min METRIC' or 'max METRIC >= BOUND'"),
        ("minimize val_loss", "objective 'minimize val_loss' is not of the form"),
        ("min a b", "objective 'min a b' is not of the form"),
        (7, "objective 7 is not of the form"),
        ("min loss >= 3", "objective 'min loss >= 3': a bound on 'min' is written with <=, got >="),
        ("max accuracy <= 1", "a bound on 'max' is written with >=, got <="),
        ("min loss <= low", "objective 'min loss <= low': the bound 'low' is not a number"),
        ("min loss <= nan", "objective 'min loss <= nan': the bound 'nan' is not a number"),
    ],
)
def test_texts_that_mean_nothing(text, sentence):
    with pytest.raises(ObjectiveError) as caught:
        Objective.parse(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ([], "objectives: at least one is needed, such as 'min val_loss'; got none"),
        (["min loss", "max loss"], "objectives: 'loss' is named twice; give each metric one direction"),
        (["min loss", "accuracy"], "write 'min accuracy' or 'max accuracy'"),
        (7, "objectives: got 7; allowed: a text such as 'min val_loss', or a list of them"),
        (None, "objectives: got None; allowed"),
    ],
)
def test_lists_that_mean_nothing(texts, sentence):
    with pytest.raises(ObjectiveError) as caught:
        parse_objectives(texts)
    assert sentence in str(caught.value)


def test_losses():
    """Lower is better inside; what is not finite is as bad as can be, in both directions."""
    low, high = Objective("x", "min"), Objective("x", "max")
    assert (low.loss(2.0), high.loss(2.0)) == (2.0, -2.0)
    for value in (math.nan, math.inf, -math.inf):
        assert low.loss(value) == high.loss(value) == math.inf


def test_refusals():
    goals = parse_objectives(["min loss", "max accuracy"])
    assert refusal(goals, {"loss": 1.0, "accuracy": 0.5, "other": math.nan}, "at epoch 1") is None
    assert refusal(goals, {"loss": 1.0, "acc": 0.5}, "at epoch 1") == (
        "objective 'accuracy' is missing at epoch 1; reported: acc, loss"
    )
    assert refusal(goals, {"loss": math.nan, "accuracy": 0.5}, "at epoch 3") == "objective 'loss' is nan at epoch 3"
    assert refusal(goals, {"loss": "-inf", "accuracy": 0.5}, "at the end") == "objective 'loss' is -inf at the end"
    assert "reported: nothing" in refusal(goals, {}, "at epoch 1")

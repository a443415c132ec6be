"""Every rule, with every kind of prediction, however the ensemble comes about: one answer, or refused."""

from dataclasses import replace

import numpy as np
import pytest

from trainwright.ensemble import BudgetedGreedy, Ensemble, EnsembleSettings, leave
from trainwright.ensemble.combine.rules import RULES, combine, default_rule
from trainwright.errors import EnsembleError

ROWS = 30
DRAWS = np.random.default_rng(0)


def predictions(kind, seed):
    draws = np.random.default_rng(seed)
    if kind == "classes":
        odds = draws.random((ROWS, 3))
        return odds / odds.sum(axis=1, keepdims=True)
    mean = draws.normal(size=ROWS)
    return mean if kind == "values" else np.stack([mean, 0.5 + draws.random(ROWS)], axis=-1)


@pytest.fixture(params=["classes", "values", "moments"])
def left(request, study):
    """Return the kind of prediction, and a study of three members without networks."""
    targets = DRAWS.integers(0, 3, ROWS) if request.param == "classes" else DRAWS.normal(size=ROWS)
    for number in range(3):
        told = {name: predictions(request.param, (number, at)) for at, name in enumerate(("selection", "test"))}
        leave(study.trial(number), predictions=told, targets=dict.fromkeys(told, targets))
    return request.param, study


def by_hand(members, rule):
    return Ensemble(members=members, weights=(0.5, 0.25, 0.25), rule=rule)


WAYS = {
    "by its name": by_hand,
    "as an object": lambda members, rule: by_hand(members, RULES[rule]),
    "as what was kept": lambda members, rule: by_hand(members, RULES[rule].to_json()),
    "another rule before": lambda members, rule: replace(by_hand(members, None), rule=rule),
    "with_rule": lambda members, rule: by_hand(members, None).with_rule(RULES[rule]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", [*RULES, None])
def test_one_rule_or_refused(left, rule, way):
    kind, study = left
    members = study.library().members
    if rule is None:
        found = by_hand(members, None)
        assert found.rule == default_rule(kind)
    elif kind not in RULES[rule].outputs:
        with pytest.raises(EnsembleError, match=f"rule: got {rule!r} for predictions that are {kind}; allowed: "):
            WAYS[way](members, rule)
        return
    else:
        found = WAYS[way](members, rule)
        assert found.rule.name == rule
    if rule in ("stacking", "linear") and way != "with_rule":
        with pytest.raises(EnsembleError, match=r"that it was fitted to; fit it by ensemble\.with_rule"):
            found.predictions()
        return
    expected = combine(found.rule, found.member_predictions("test"), found.weights)
    np.testing.assert_array_equal(found.predictions(), expected)
    assert expected.shape == (ROWS, {"classes": 3, "values": 1, "moments": 1}[kind], 2)[: 3 if kind == "moments" else 2]


@pytest.mark.parametrize("rule", [*RULES, None])
def test_a_front_and_settings_do_as_a_hand_does(left, rule):
    kind, study = left
    library = study.library()
    front = library.select(BudgetedGreedy())
    assert front.pick().rule == Ensemble(members=library.members[:1], weights=(1.0,)).rule == default_rule(kind)
    settings = EnsembleSettings(rule=rule)
    if rule is not None and kind not in RULES[rule].outputs:
        with pytest.raises(EnsembleError, match=f"rule: got {rule!r} for predictions that are {kind}"):
            settings.choose(library)
    else:
        assert settings.choose(library).ensemble.rule.name == (rule or default_rule(kind).name)


def test_members_and_weights(study):
    study.leave(0)
    [member] = study.library().members
    for members, weights in (((), ()), ((member,), ()), ((member,), (0.5, 0.5))):
        with pytest.raises(EnsembleError, match=r"got \d members and \d weights; allowed: one member or more"):
            Ensemble(members=members, weights=weights)

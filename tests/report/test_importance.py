"""Parameter importance: what matters gets the share, what does not gets none, too little data gets a sentence."""

import numpy as np
import pytest

from trainwright.errors import SearchError
from trainwright.ledger import DirectoryLedger, MemoryLedger, facts, fold
from trainwright.report.figures.parameters import importance_figure, nothing_known
from trainwright.search.importance import importance_of
from trainwright.space import Choice, Constant, Float, Space, equals

SPACE = Space(
    a=Float(0.0, 1.0),
    b=Float(0.0, 1.0),
    kind=Choice("x", "y"),
    c=Float(0.0, 1.0, when=equals("kind", "y")),
    fixed=Constant(3),
)


def study(function, count=120, space=SPACE):
    ledger = MemoryLedger()
    ledger.append([facts.created(space=space.to_json(), objectives=["min loss"], seed=0, versions={})])
    rows = space.sample(np.random.default_rng(5), count)
    for number, params in enumerate(space.decode(rows)):
        ledger.append(
            [
                facts.proposed(number, params=params, key=str(number), origin={}, seen=0, seen_hash=""),
                facts.finished(number, 1, reason="completed", values={"loss": function(params)}, wall_seconds=1.0),
            ]
        )
    return fold(ledger.read()[0])


def shares(function, **settings):
    found = importance_of(study(function, **settings), SPACE)
    assert sum(found.shares) == pytest.approx(1.0)
    return dict(zip(found.names, found.shares, strict=True)), found


def test_the_one_parameter_that_matters_gets_nearly_all():
    by_name, found = shares(lambda p: p["a"])
    assert by_name["a"] > 0.95
    assert found.ordered[0] == "a"
    assert found.results == 120
    assert found.epoch is None  # of values that were returned
    assert found.known == ("a",)
    assert all(low <= share <= high for low, share, high in zip(found.low, found.shares, found.high, strict=True))
    assert found.explained > 0.9


def test_equal_effects_get_equal_shares():
    by_name, _ = shares(lambda p: p["a"] + p["b"], count=300)
    assert by_name["a"] == pytest.approx(by_name["b"], abs=0.12)
    assert by_name["kind"] + by_name["c"] < 0.1


def test_a_parameter_behind_a_condition():
    """The parent is credited with what it switches on."""
    by_name, _ = shares(lambda p: 0.2 if p["kind"] == "x" else 1 + 3 * p["c"], count=300)
    assert by_name["kind"] > by_name["c"] > by_name["a"] + by_name["b"]


def test_diverged_trials_do_not_decide():
    """One loss of 1e12 changes ranks by one place, not the shares."""
    by_name, _ = shares(lambda p: 1e12 if p["b"] > 0.99 else p["a"])
    assert by_name["a"] > 0.8


def test_noise_is_told_as_such():
    draws = iter(np.random.default_rng(0).random(1000))
    _, found = shares(lambda p: float(next(draws)))
    assert found.explained < 0.2
    assert found.known == ()
    assert importance_figure(found, "loss") is None
    assert nothing_known(found, "loss") == "120 results do not tell yet which parameters move loss."


def test_it_is_the_same_every_time():
    state = study(lambda p: p["a"] * p["b"])
    assert importance_of(state, SPACE) == importance_of(state, SPACE)


def test_early_stopped_trials_count(asha):
    state = fold(DirectoryLedger(asha / "ledger").read()[0])
    found = importance_of(state, Space.from_json(state.space))
    assert found.ordered[0] == "lr"
    assert found.epoch == 1  # which nearly all have reached
    assert found.known[0] == "lr"
    assert "at epoch 1" in importance_figure(found, "val_loss").title


def test_the_epoch_and_the_metric_can_be_chosen(asha):
    state = fold(DirectoryLedger(asha / "ledger").read()[0])
    space = Space.from_json(state.space)
    early, late = (importance_of(state, space, "val_accuracy", epoch=epoch) for epoch in (2, 3))
    assert (early.epoch, late.epoch) == (2, 3)
    assert late.results <= early.results
    with pytest.raises(SearchError, match="no trial has reported 'val_loss' at epoch 99; allowed: 1 to 27"):
        importance_of(state, space, epoch=99)
    with pytest.raises(
        SearchError, match=r"no trial has the metric 'val_los'; allowed: val_loss, val_accuracy \(did you mean"
    ):
        importance_of(state, space, "val_los")


def test_refusals():
    with pytest.raises(SearchError, match="at least 10 results are needed; so far: 9"):
        importance_of(study(lambda p: p["a"], count=9), SPACE)
    with pytest.raises(SearchError, match="no parameter makes a difference in 20 results"):
        importance_of(study(lambda p: 1.0, count=20), SPACE)

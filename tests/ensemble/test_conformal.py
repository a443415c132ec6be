"""Conformal sets and intervals: what they promise holds over seeds, whatever the model, and bad input is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.ensemble import BudgetedGreedy, Ensemble, EnsembleSettings, leave
from trainwright.ensemble.combine.conformal import METHODS, Conformal
from trainwright.errors import EnsembleError


def intervals(draws, rows, tails):
    """Return a prediction [N, 1, 2], off by a factor in its deviations, and targets [N, 1]."""
    deviation = 0.5 + draws.random((rows, 1))
    noise = {
        "normal": draws.normal,
        "heavy": lambda size: draws.standard_t(2, size),
        "skew": lambda size: draws.exponential(size=size) - 1,
    }
    mean = draws.normal(size=(rows, 1))
    return np.stack([mean, (2 * deviation) ** 2], axis=-1), mean + deviation * noise[tails](size=(rows, 1))


def classes(draws, rows, shares=(0.5, 0.3, 0.2)):
    """Return probabilities [N, 3] that are too sure, and classes drawn with these shares."""
    targets = draws.choice(3, rows, p=shares).astype(np.int32)
    odds = np.exp(3 * (draws.normal(size=(rows, 3)) + 0.8 * np.eye(3)[targets]))
    return odds / odds.sum(axis=1, keepdims=True), targets


@pytest.mark.parametrize("tails", ["normal", "heavy", "skew"])
@pytest.mark.parametrize("method", METHODS["moments"])
def test_intervals_cover(method, tails):
    """On average over draws of calibration and new rows: at least 1 - alpha, and at most 1 / (n + 1) more."""
    found = []
    for seed in range(300):
        draws = np.random.default_rng(seed)
        fitted = Conformal.fit(*intervals(draws, 99, tails), output="moments", alpha=0.2, method=method)
        prediction, targets = intervals(draws, 200, tails)
        ends = fitted.predict_interval(prediction)
        assert ends.shape == (200, 1, 2)
        found.append(((ends[..., 0] <= targets) & (targets <= ends[..., 1])).mean())
    assert np.mean(found) == pytest.approx(0.8, abs=4 * np.std(found) / math.sqrt(300))


def test_sets_by_class_cover_under_shift():
    """With a threshold for each class each is covered, so that other shares of classes change nothing."""
    covered = []
    for seed in range(200):
        draws = np.random.default_rng(seed)
        rows, shifted = classes(draws, 199), classes(draws, 300, shares=(0.05, 0.05, 0.9))
        fitted = Conformal.fit(*rows, output="classes", alpha=0.1, by="class")
        covered.append(fitted.predict_set(shifted[0])[np.arange(300), shifted[1]].mean())
    assert np.mean(covered) == pytest.approx(0.9, abs=0.015)


def test_groups():
    """Two groups of other noise: one threshold covers neither as promised, one each does."""
    covered = {None: [[], []], "group": [[], []]}
    for seed in range(100):
        draws = np.random.default_rng(seed)

        def rows(count, draws=draws):
            group = draws.integers(0, 2, count)
            return np.zeros((count, 1)), (1 + 4 * group[:, None]) * draws.normal(size=(count, 1)), group

        mean, targets, group = rows(400)
        new, truth, other = rows(400)
        for by, kept in covered.items():
            named = {"by": by, "groups": group} if by else {}
            fitted = Conformal.fit(mean, targets, output="values", alpha=0.1, **named)
            ends = fitted.predict_interval(new, other if by else None)
            inside = ((ends[..., 0] <= truth) & (truth <= ends[..., 1]))[:, 0]
            for one in (0, 1):
                kept[one].append(inside[other == one].mean())
    assert np.mean(covered[None][0]) > 0.97
    assert np.mean(covered[None][1]) < 0.85
    for one in (0, 1):
        assert np.mean(covered["group"][one]) == pytest.approx(0.9, abs=0.015)


@given(seed=st.integers(0, 10**6), rows=st.integers(9, 60), alpha=st.sampled_from([0.1, 0.2, 0.5]))
def test_the_promise_is_met_on_any_exchangeable_rows(seed, rows, alpha):
    """Leave one of n + 1 rows out in turn: at most a share alpha of them lies outside, for scores without ties."""
    draws = np.random.default_rng(seed)
    targets = draws.standard_t(1, size=(rows + 1, 1))
    outside = 0
    for one in range(rows + 1):
        rest = np.delete(np.arange(rows + 1), one)
        fitted = Conformal.fit(np.zeros((rows, 1)), targets[rest], output="values", alpha=alpha)
        [[[low, high]]] = fitted.predict_interval(np.zeros((1, 1)))
        outside += not low <= targets[one, 0] <= high
    assert outside <= alpha * (rows + 1) + 1e-9


def left(study, number, output):
    draws = np.random.default_rng(number)
    rows = {"selection": 60, "calibration": 40, "test": 50}
    if output == "classes":
        pairs = {name: classes(np.random.default_rng(len(name)), count) for name, count in rows.items()}
        told = {name: 0.8 * one[0] + 0.2 * draws.dirichlet([1, 1, 1], len(one[0])) for name, one in pairs.items()}
    else:
        pairs = {name: intervals(np.random.default_rng(len(name)), count, "normal") for name, count in rows.items()}
        told = {name: one[0] if output == "moments" else one[0][..., 0] for name, one in pairs.items()}
        told = {name: one + 0.01 * draws.random(one.shape) for name, one in told.items()}
    return leave(study.trial(number), predictions=told, targets={name: one[1] for name, one in pairs.items()})


@pytest.mark.parametrize("output", ["classes", "values", "moments"])
def test_an_ensemble_promises_and_reports(study, output):
    for number in range(3):
        left(study, number, output)
    chosen = EnsembleSettings().choose(study.library())
    promise = chosen.ensemble.conformity
    assert (promise.alpha, promise.method, promise.rows) == (0.1, METHODS[output][0], 40)
    told = chosen.report.conformal
    assert 0.7 < told["coverage"] <= 1
    assert told["size"] > 0
    other = chosen.ensemble.with_rule("mean") if output != "moments" else chosen.ensemble.with_rule("mixture")
    assert other.conformity is None
    with pytest.raises(EnsembleError, match="allowed: predict_set of classes and predict_interval of values, after"):
        other.predict_interval(np.zeros((1, 3)))
    with pytest.raises(EnsembleError, match=r"alpha: got 0\.01 with 40 calibration rows; allowed: at least 99 rows"):
        EnsembleSettings(alpha=0.01).choose(study.library())


def test_kept_by_save_and_load(study, tmp_path):
    torch = pytest.importorskip("torch")
    import networks_for_tests

    draws = np.random.default_rng(0)
    x = {name: draws.normal(size=(60, 3)).astype(np.float32) for name in ("selection", "calibration")}
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 3)
    told = {name: network(torch.as_tensor(one)).softmax(1) for name, one in x.items()}
    targets = {name: draws.integers(0, 3, 60) for name in x}
    settings = {"sample": x["selection"], "factory": networks_for_tests.linear}
    leave(study.trial(params={"outputs": 3}), network, predictions=told, targets=targets, **settings)
    group = np.arange(60) % 2
    found = study.library().select(BudgetedGreedy()).pick()
    for promised, groups in (
        (found.conformal(), None),
        (found.conformal(by="class"), None),
        (found.conformal(alpha=0.2, by="group", groups=group), group),
    ):
        loaded = Ensemble.load(promised.save(tmp_path / f"{promised.conformity.by}"))
        assert loaded.conformity == promised.conformity
        sets = loaded.predict_set(x["calibration"], groups)
        assert (sets.dtype, sets.shape) == (np.dtype(bool), (60, 3))
        inside = sets[np.arange(60), targets["calibration"]].mean()
        assert inside >= 1 - promised.conformity.alpha - 0.001
    with pytest.raises(EnsembleError, match="got predictions that are classes; allowed: predict_set of classes"):
        loaded.predict_interval(x["calibration"])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"alpha": 0.0}, "alpha: got 0.0; allowed: a number above 0 and below 1"),
        ({"alpha": 0.001}, r"alpha: got 0\.001 with 20 calibration rows; allowed: at least 999 rows .* 0\.0476"),
        ({"by": "class"}, "with 1 calibration rows of class 2; allowed: at least 9 rows"),
        ({"by": "classes"}, "by: got 'classes' for classes; allowed: None, class, group"),
        ({"method": "scaled"}, "method: got 'scaled' for classes; allowed: probability"),
        ({"by": "group"}, "by='group' without groups for predictions that are classes; allowed: by='class'"),
        ({"groups": np.zeros(20, int)}, "by=None with groups"),
        ({"by": "group", "groups": np.zeros(3, int)}, r"got int64 of shape \(3,\); allowed: an integer for each of 20"),
    ],
)
def test_refused(more, sentence):
    targets = np.array([0] * 10 + [1] * 9 + [2])
    with pytest.raises(EnsembleError, match=sentence):
        Conformal.fit(np.full((20, 3), 1 / 3), targets, output="classes", **{"alpha": 0.1, **more})


def test_groups_that_are_not_known():
    fitted = Conformal.fit(
        np.zeros((20, 1)), np.ones((20, 1)), output="values", alpha=0.1, by="group", groups=np.repeat([2, 5], 10)
    )
    with pytest.raises(EnsembleError, match="got group 3, which no calibration row was of; allowed: 2, 5"):
        fitted.predict_interval(np.zeros((2, 1)), np.array([5, 3]))
    with pytest.raises(EnsembleError, match="groups: got none; allowed: groups=, the group of each row"):
        fitted.predict_interval(np.zeros((2, 1)))

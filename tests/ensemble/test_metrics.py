"""Metrics by name, against scikit-learn's and against integrals; metrics of all rows and functions select too."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.ensemble import BudgetedGreedy, leave
from trainwright.ensemble.metrics import METRICS, find_metric
from trainwright.errors import EnsembleError


@given(seed=st.integers(0, 10**6), classes=st.integers(2, 4), rows=st.integers(8, 40), coarse=st.booleans())
def test_against_scikit_learn(seed, classes, rows, coarse):
    """Balanced accuracy, F1 and AUC, with ties and without."""
    scores = pytest.importorskip("sklearn.metrics")
    draws = np.random.default_rng(seed)
    odds = draws.integers(1, 4, (rows, classes)).astype(float) if coarse else draws.random((rows, classes)) + 0.01
    found = odds / odds.sum(axis=1, keepdims=True)
    targets = np.concatenate([np.arange(classes), draws.integers(0, classes, rows - classes)]).astype(np.int32)
    likeliest = found.argmax(axis=1)
    expected = {
        "balanced_accuracy": scores.balanced_accuracy_score(targets, likeliest),
        "f1": scores.f1_score(targets, likeliest, average="binary" if classes == 2 else "macro", zero_division=0.0),
        "auc": scores.roc_auc_score(targets, found[:, 1] if classes == 2 else found, multi_class="ovr"),
    }
    for name, value in expected.items():
        assert METRICS[name].score(found, targets) == pytest.approx(value, abs=1e-12), name


def test_of_values():
    draws = np.random.default_rng(0)
    mean, targets = draws.normal(size=(50, 2)), draws.normal(size=(50, 2))
    assert METRICS["rmse"].score(mean, targets) == pytest.approx(np.sqrt(((mean - targets) ** 2).mean()))
    assert METRICS["pinball"].score(mean, targets) == pytest.approx(np.abs(mean - targets).mean() / 2)
    # The pinball loss over all quantiles is half of the CRPS.
    normal = np.stack([mean, draws.random((50, 2)) + 0.5], axis=-1)
    half = METRICS["crps"].score(normal, targets) / 2
    assert METRICS["pinball"].score(normal, targets) == pytest.approx(half, rel=0.1)


def test_a_function_selects(study):
    """A loss of one's own, of all rows; it is what the front is ordered by, and cross-validated."""

    def worst_class(predictions, targets):
        return max(1 - predictions[targets == label, label].mean() for label in np.unique(targets))

    for number in range(5):
        study.leave(number, skill=number / 2)
    front = study.library().select(BudgetedGreedy(max_members=3), metric=worst_class)
    assert front.metric == "worst_class"
    chosen = front.pick()
    # Selection averages probabilities as they were rounded for storage.
    assert chosen.score("selection", worst_class) == pytest.approx(front.points[0].loss, abs=1e-9)
    assert front.points[0].loss <= front.baselines["single best"].loss
    assert front.protection.chosen in front.protection.checked


@pytest.mark.parametrize("name", ["auc", "f1", "balanced_accuracy", "log_loss"])
def test_names(study, name):
    for number in range(4):
        study.leave(number, skill=number / 2)
    front = study.library().select(BudgetedGreedy(max_members=3), metric=name)
    metric = find_metric(name, "classes")
    score = front.pick().score("selection", name)
    assert float(metric.loss(np.array(score))) == pytest.approx(front.points[0].loss, abs=1e-6)


def test_refused(study):
    study.leave(0)
    library = study.library()
    with pytest.raises(EnsembleError, match=r"metric: got 'rmse' for predictions that are classes; allowed: cross_ent"):
        library.select(BudgetedGreedy(), metric="rmse")
    with pytest.raises(EnsembleError, match=r"metric: got 'acuracy'; allowed: .*did you mean 'accuracy'"):
        library.select(BudgetedGreedy(), metric="acuracy")
    with pytest.raises(EnsembleError, match=r"metric: got int; allowed: a name .*or a function"):
        library.select(BudgetedGreedy(), metric=3)
    trial = study.trial(1)
    leave(trial, predictions=study.predictions(1), targets=study.targets)

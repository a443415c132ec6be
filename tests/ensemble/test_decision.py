"""The threshold between two classes: against trying all of them, kept only where it gains."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.ensemble.combine.decision import MEASURES, decide
from trainwright.errors import EnsembleError


def rare(seed, rows, share=0.1, lean=1.0):
    """Return honest probabilities of a rare class and its labels."""
    draws = np.random.default_rng(seed)
    logits = np.log(share / (1 - share)) + lean * draws.normal(size=rows)
    chance = 1 / (1 + np.exp(-logits))
    return np.column_stack([1 - chance, chance]), (draws.random(rows) < chance).astype(np.int64)


def scored(name, targets, labels):
    """Compute a measure as its textbook has it."""
    recalls = [(labels[targets == each] == each).mean() for each in (0, 1)]
    if name == "accuracy":
        return (labels == targets).mean()
    if name == "balanced_accuracy":
        return np.mean(recalls)
    right = (labels & targets).sum()
    return 2 * right / (labels.sum() + targets.sum()) if right else 0.0


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), name=st.sampled_from(sorted(MEASURES)), rows=st.integers(4, 60))
def test_no_threshold_is_better(seed, name, rows):
    prediction, targets = rare(seed, rows, share=0.4)
    prediction = prediction.round(1 + seed % 3)  # with ties
    targets[:2] = 0, 1
    found = decide(prediction, targets, name)
    chance = prediction[:, 1]
    every = [scored(name, targets, (chance > at).astype(np.int64)) for at in (-1.0, *np.unique(chance))]
    best = scored(name, targets, (chance > found.fitted).astype(np.int64))
    assert best == pytest.approx(max(every))
    half = scored(name, targets, (chance > 0.5).astype(np.int64))
    assert found.gain == pytest.approx(best - half)
    assert found.applied in {0.5, found.fitted}
    assert np.array_equal(found.labels(prediction), (chance > found.applied).astype(np.int64))
    assert found.score(prediction, targets) == (
        pytest.approx(half),
        pytest.approx(scored(name, targets, found.labels(prediction))),
    )


def test_kept_where_it_gains():
    """A rare class is never called at one half; for accuracy honest probabilities need no other threshold."""
    prediction, targets = rare(0, 4000)
    balanced = decide(prediction, targets)
    assert 0.05 < balanced.applied < 0.2
    fresh, labels = rare(1, 4000)
    before, after = balanced.score(fresh, labels)
    assert after > before + 0.1
    assert decide(prediction, targets, "accuracy").applied == 0.5


def test_standard_error():
    """The bootstrap's is that of drawing rows anew one by one."""
    prediction, targets = rare(2, 500)
    found = decide(prediction, targets, "f1")
    draws = np.random.default_rng(0)
    gains = []
    for _ in range(400):
        rows = draws.integers(0, 500, 500)
        chance, truth = prediction[rows, 1], targets[rows]
        after, before = (scored("f1", truth, (chance > at).astype(np.int64)) for at in (found.fitted, 0.5))
        gains.append(after - before)
    assert found.standard_error == pytest.approx(np.std(gains), rel=0.2)


def test_refusals():
    prediction, targets = rare(0, 20)
    for wrong, sentence in (
        (lambda: decide(np.full((3, 3), 1 / 3), np.array([0, 1, 1])), r"shape \(3, 3\); allowed: two classes"),
        (lambda: decide(prediction, np.zeros(20, dtype=int)), "got 20 rows of one class; allowed: rows of both"),
        (lambda: decide(prediction, targets, "acuracy"), "allowed: .*balanced_accuracy, f1 .did you mean 'accuracy'"),
    ):
        with pytest.raises(EnsembleError, match=sentence):
            wrong()

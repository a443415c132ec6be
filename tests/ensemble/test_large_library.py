"""A library of thousands of models is selected from without ever being in memory as a whole."""

import tracemalloc

import numpy as np
import pytest

from trainwright.ensemble import BudgetedGreedy, leave

ROWS, CLASSES = 400, 100


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "models"), [("cross_entropy", 2000), ("accuracy", 400)])
def test_many_models(study, filled, metric, models):
    """Peak bytes that Python has allocated, mapped files apart, while models are read and selected from."""
    draws = np.random.default_rng(0)
    targets = {"selection": draws.integers(0, CLASSES, ROWS)}
    odds = draws.random((ROWS, CLASSES)) + 0.1
    for number in range(models):
        odds[np.arange(ROWS), draws.integers(0, CLASSES, ROWS)] += 1.0  # each differs, in other rows
        predictions = {"selection": odds / odds.sum(axis=1, keepdims=True)}
        leave(study.trial(number), predictions=predictions, targets=targets)
    strategy = BudgetedGreedy(max_members=3, max_additions=3)
    filled.library().select(strategy, metric=metric)  # imports and compiles what is needed
    tracemalloc.start()
    library = study.library()
    opened = tracemalloc.get_traced_memory()[1]
    front = library.select(strategy, metric=metric)
    selected = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(library.members) == models
    assert front.points[0].loss <= front.baselines["single best"].loss
    whole = models * ROWS * CLASSES * 2  # bytes of all predictions of the split, in float16
    assert opened < whole / 8
    assert selected < whole / 8

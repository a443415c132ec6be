"""Generated studies: random legal spaces, each searched with reports, stops, failures, batches and open trials.

Study number n is a function of n alone; a failure names it, and `generated_study(searcher, n)` plays it again.
"""

import itertools
import math

import numpy as np
import pytest
from random_spaces import random_space

from trainwright.errors import SpaceExhausted
from trainwright.integrations.botorch import BoTorchSearcher
from trainwright.integrations.optuna.searcher import OptunaSearcher
from trainwright.randomness import rng
from trainwright.search import (
    DefaultSearcher,
    EvolutionSearcher,
    ForestSearcher,
    GaussianProcessSearcher,
    GridSearcher,
    QuasiRandomSearcher,
    RandomSearcher,
    SearchView,
)
from trainwright.space import Choice, Float, Int, Space, equals, greater, less
from trainwright.testing.searcher import bowl

TRIALS = 15
SEARCHERS = {
    "random": (RandomSearcher(), 100),
    "halton": (QuasiRandomSearcher(), 60),
    "evolution": (EvolutionSearcher(initial=3), 100),
    "forest": (ForestSearcher(initial=3, candidates=40), 150),
    "forest with a constant kappa": (ForestSearcher(initial=1, candidates=40, kappa_final=1.96), 40),
    "gp": (GaussianProcessSearcher(initial=3, candidates=24), 24),
    "default": (DefaultSearcher(), 20),
    "optuna": (OptunaSearcher(), 40),
    "botorch": (BoTorchSearcher(initial=8, candidates=8, samples=8), 5),
}


def generated_study(searcher, number, trials=TRIALS):
    """Search space `number` in a view drawn likewise; return the number of trials, fewer where the space has none."""
    generator = rng(1, "generated study", number)
    space = random_space(number)
    objectives = 1 if isinstance(searcher, EvolutionSearcher) else int(generator.integers(1, 3))
    bounds = [math.inf] * objectives + [float(generator.uniform(0.0, 2.0))] * int(generator.integers(2))
    epochs = (None, 9, 27)[int(generator.integers(3))]
    slot = int(generator.integers(4)) if generator.random() < 0.3 else None
    view = SearchView(space, number, objectives, epochs=epochs, bounds=bounds, slot=slot)
    keys, open_trials = [], []
    while len(keys) < trials:
        try:
            batch = searcher.ask(view, range(len(keys), len(keys) + int(generator.integers(1, 4))))
        except SpaceExhausted:
            break
        for configuration in batch:
            assert space.check(configuration.params) == [], (number, configuration)
            keys.append(configuration.key)
            view.propose(configuration.number, configuration)
            open_trials.append(configuration)
        while open_trials and generator.random() < 0.8:
            place = int(generator.integers(len(open_trials)))
            end(view, open_trials.pop(place), epochs, generator)
    assert len(set(keys)) == len(keys), number
    return len(keys)


def end(view, configuration, epochs, generator):
    """Let a trial report and stop or complete, or end without reports, or fail, or be withdrawn."""
    number, fate = configuration.number, generator.random()
    losses = [bowl(configuration, number)[0] + outcome for outcome in range(len(view.bounds))]
    if epochs is not None and fate < 0.8:
        last = int(generator.choice([1, 2, 3, 7, epochs]))
        for epoch in range(1, last + 1):
            view.report(number, epoch, [loss + 1.0 / epoch for loss in losses])
        view.result(number, losses, epoch=last, complete=last == epochs)
    elif fate < 0.9:
        view.result(number, losses, epoch=None, complete=True)
    elif fate < 0.95:
        view.result(number, None, epoch=None, complete=False)
    else:
        view.withdraw(number)


@pytest.mark.parametrize("name", SEARCHERS)
def test_generated_studies_come_to_their_end(name, request):
    if name == "botorch":
        request.getfixturevalue("uncompiled_botorch")
    searcher, studies = SEARCHERS[name]
    assert sum(generated_study(searcher, number) for number in range(studies)) > 0.8 * TRIALS * studies


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHERS)
def test_many_more_generated_studies(name):
    searcher, studies = SEARCHERS[name]
    for number in range(1000, 1000 + 10 * studies):
        generated_study(searcher, number, 2 * TRIALS)


def test_grids_of_generated_spaces_come_to_their_end():
    """Grids of two points a column are walked whole, of all spaces where they are small."""
    walked = 0
    for number in range(200):
        space = random_space(number)
        size = math.prod(column.points or 2 for column in space.columns)
        if size > 300:
            continue
        view = SearchView(space, number)
        for trial in itertools.count():
            try:
                [configuration] = GridSearcher(points=2).ask(view, [trial])
            except SpaceExhausted:
                break
            assert space.check(configuration.params) == [], number
            view.propose(trial, configuration)
        walked += 1
    assert walked > 40


@pytest.mark.parametrize("log", [False, True])
def test_a_threshold_at_a_point_of_the_grid_divides_it_as_it_divides_its_values(log):
    """Rounding moves a unit by its last bits on the way to a number; what lies on the threshold stays on it."""
    for low, high in ((1.3, 3.74), (2.67, 124.96), (0.81, 2.82), (2.19, 61.03), (1e-5, 1e-1)):
        parent = Float(low, high, log=log)
        middle = float(parent.axis.to_numbers(np.array([0.5]))[0])
        space = Space(
            parent=parent,
            below=Int(1, 2, when=less("parent", middle)),
            same=Choice("a", "b", when=equals("parent", middle)),
            above=Int(1, 2, when=greater("parent", middle)),
        )
        view = SearchView(space, 0)
        found = [GridSearcher(points=3).ask(view, [trial])[0].params for trial in range(6)]
        assert [space.check(params) for params in found] == [[]] * 6
        assert [name for params in found for name in params if name != "parent"] == [
            *("below", "below", "same", "same", "above", "above")
        ]

"""Regularised evolution: conformance, who breeds, and what a mutation changes."""

import re

import numpy as np
import pytest

from trainwright.errors import SearchError
from trainwright.search import EvolutionSearcher, QuasiRandomSearcher, SearchView
from trainwright.space import Choice, Float, Int, Space, equals
from trainwright.testing.searcher import SearcherConformance, bowl, play


class TestEvolution(SearcherConformance):
    several_objectives = False

    def make_searcher(self):
        return EvolutionSearcher(initial=5)


def square(configuration, number):
    return [sum((value - 0.4) ** 2 for value in configuration.params.values())]


def test_it_finds_better_points_than_an_even_spread():
    space = Space(**{name: Float(-1.0, 1.0) for name in "abcd"})
    best = {}
    for searcher in (EvolutionSearcher(), QuasiRandomSearcher()):
        views = [SearchView(space, seed) for seed in range(5)]
        for view in views:
            play(searcher, view, 150, square)
        best[type(searcher)] = np.mean([view.losses.min() for view in views])
    assert best[EvolutionSearcher] < 0.2 * best[QuasiRandomSearcher]


def test_a_mutant_differs_from_its_parent_in_one_active_parameter_and_its_freed_children():
    space = Space(x=Float(0.0, 1.0), k=Int(1, 4), o=Choice("sgd", "adam"), m=Float(0.0, 1.0, when=equals("o", "sgd")))
    done = play(EvolutionSearcher(initial=5), SearchView(space, 0), 80, bowl)
    mutants = [c for c in done if "parent" in c.origin]
    assert len(mutants) > 60
    for mutant in mutants:
        parent = done[mutant.origin["parent"]].params
        changed = {name for name in parent.keys() | mutant.params.keys() if parent.get(name) != mutant.params.get(name)}
        assert len(changed) == 1 or changed == {"o", "m"}


def test_only_the_youngest_breed():
    """A good old result leaves the population, and with one trial in it each is the child of the one before."""
    view = SearchView(Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)), 0)
    done = play(EvolutionSearcher(population=1, initial=3), view, 20, bowl)
    assert [c.origin["parent"] for c in done[3:]] == list(range(2, 19))
    view = SearchView(Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)), 0)
    done = play(EvolutionSearcher(population=10, initial=3), view, 60, lambda c, n: [0.0 if n == 0 else 1.0])
    parents = [c.origin["parent"] for c in done[3:]]
    assert max(number for number, parent in enumerate(parents, 3) if parent == 0) == 10


def test_who_breaks_a_bound_breeds_last():
    view = SearchView(Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0)), 0, bounds=[np.inf, 0.5])
    done = play(EvolutionSearcher(initial=9), view, 100, lambda c, n: [-c["x"] + (c["y"] - 0.3) ** 2, c["x"]])
    assert np.median([c["x"] for c in done[50:]]) < 0.6


def test_several_objectives_are_refused():
    message = "EvolutionSearcher handles one objective, the study has 2; use ForestSearcher"
    with pytest.raises(SearchError, match=re.escape(message)):
        EvolutionSearcher().ask(SearchView(Space(x=Float(0.0, 1.0)), 0, objectives=2), [0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"population": 0}, "population: got 0; allowed: a whole number >= 1"),
        ({"tournament": 2.5}, "tournament: got 2.5; allowed: a whole number >= 1"),
        ({"initial": 0}, "initial: got 0; allowed: a whole number >= 1"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(SearchError, match=re.escape(message)):
        EvolutionSearcher(**settings)

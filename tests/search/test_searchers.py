"""Every searcher passes the conformance class; what each adds to it is tested in its own file."""

import subprocess
import sys

import pytest

from trainwright.errors import SearchError, SpaceExhausted
from trainwright.search import GridSearcher, QuasiRandomSearcher, RandomSearcher, SearchView
from trainwright.space import Choice, Float, Int, Normal, Space, equals, require
from trainwright.testing.searcher import PARENTS, SearcherConformance, bowl, parent_space, play


class TestRandom(SearcherConformance):
    def make_searcher(self):
        return RandomSearcher()


class TestHalton(SearcherConformance):
    def make_searcher(self):
        return QuasiRandomSearcher()


class TestGrid(SearcherConformance):
    wide_spaces = False  # a grid over 200 parameters has no end

    def make_searcher(self):
        return GridSearcher(points=5)

    def conditional_space(self):
        return Space(
            require("width * depth <= 512"),
            rate=Float(1e-5, 1e-1, log=True),
            width=Choice(16, 32, 64, 128, 256, ordered=True),
            depth=Int(1, 8),
            optimizer=Choice("sgd", "adamw"),
            momentum=Float(0.0, 0.99, when=equals("optimizer", "sgd")),
        )

    @pytest.mark.parametrize("kind", PARENTS)
    def test_conditions_on_every_kind_of_parent(self, kind):
        """With fewer points, as the grid over 256 numbers and six more columns would be too wide."""
        view = SearchView(parent_space(kind), 10)
        done = play(GridSearcher(points=3), view, 40, bowl)
        assert [view.space.check(c.params) for c in done] == [[]] * 40
        assert len({c.key for c in done}) == 40

    def test_seeds_differ(self):
        """A grid knows no chance: equal points for all seeds."""
        first, second = (play(GridSearcher(), SearchView(self.conditional_space(), seed), 9, bowl) for seed in (0, 1))
        assert first == second


def test_a_grid_holds_the_bounds_and_every_combination_once():
    space = Space(x=Float(1.0, 100.0, log=True), o=Choice("sgd", "adam"), m=Float(0.0, 1.0, when=equals("o", "sgd")))
    view = SearchView(space, 0)
    done = play(GridSearcher(points=3), view, 12, bowl)
    assert {(round(c["x"], 9), c["o"], c.get("m")) for c in done} == {
        (x, o, m) for x in (1.0, 10.0, 100.0) for o, m in (("sgd", 0.0), ("sgd", 0.5), ("sgd", 1.0), ("adam", None))
    }
    with pytest.raises(SpaceExhausted, match="all 12 points of the grid"):
        GridSearcher(points=3).ask(view, [12])


def test_a_grid_goes_round_what_the_user_has_told():
    """Points tried out of turn are left out, and none of the others is lost."""
    space = Space(x=Choice(*range(10)))
    view = SearchView(space, 0)
    view.propose(0, space.configuration_of({"x": 4}))
    done = play(GridSearcher(), view, 9, bowl, start=1)
    assert sorted(c["x"] for c in done) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_a_grid_too_wide_says_its_size():
    with pytest.raises(SearchError, match=r"100 \(a\) \* 100 \(b\) \* 100 \(c\) \* 2 \(d\) = 2000000 points"):
        GridSearcher(points=100).ask(
            SearchView(Space(a=Float(0, 1), b=Float(0, 1), c=Float(0, 1), d=Choice(1, 2)), 0), [0]
        )


@pytest.mark.parametrize("points", [0, -1, 2.5, True])
def test_a_grid_needs_points(points):
    with pytest.raises(SearchError, match=r"GridSearcher.points: got .*; allowed: a whole number >= 1"):
        GridSearcher(points=points)


def test_quasi_random_points_are_evenly_spread():
    """Of the first 64 points each tenth of a column holds 5 to 8, which independent draws would hardly ever do."""
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    done = play(QuasiRandomSearcher(), SearchView(space, 3), 64, bowl)
    for name in ("x", "y"):
        tenths = [sum(int(c[name] * 10) == tenth for c in done) for tenth in range(10)]
        assert min(tenths) >= 5, tenths
        assert max(tenths) <= 8, tenths


def test_quasi_random_points_depend_on_their_number_alone():
    """Workers need no talk: point n is the same whoever asks, in whatever order, past the first block too."""
    space = Space(x=Float(0.0, 1.0), o=Choice("a", "b", "c"))
    searcher = QuasiRandomSearcher()
    together = searcher.ask(SearchView(space, 3), range(150))
    alone = {n: searcher.ask(SearchView(space, 3), [n])[0] for n in (149, 0, 64, 63, 17)}
    assert all(together[n] == configuration for n, configuration in alone.items())


def test_priors_shape_quasi_random_points():
    space = Space(x=Float(0.0, 1.0, prior=Normal(0.8, 0.05)))
    done = play(QuasiRandomSearcher(), SearchView(space, 0), 50, bowl)
    assert all(0.6 < c["x"] < 1.0 for c in done)


@pytest.mark.parametrize("searcher", [RandomSearcher(), QuasiRandomSearcher()])
def test_defaults_are_the_first_trial(searcher):
    space = Space(x=Float(1e-4, 1e-1, log=True, default=0.003), o=Choice("a", "b", default="b"))
    done = play(searcher, SearchView(space, 0), 3, bowl)
    assert done[0].params == {"x": 0.003, "o": "b"}  # to the last bit
    assert done[1].params != done[0].params


def test_importing_the_searchers_is_light():
    """Neither numba nor scipy nor torch is imported before a searcher needs it."""
    code = (
        "import sys, trainwright.search as s; s.ForestSearcher(); "
        "print([m for m in ('numba', 'scipy', 'torch', 'pytest') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

"""The forest searcher: conformance in all its kinds, the formulas of its acquisition, and that it searches."""

import math
import re

import numpy as np
import pytest

from trainwright.errors import SearchError, SpaceExhausted
from trainwright.search import ForestSearcher, RandomSearcher, SearchView
from trainwright.search.bayes.candidates import Moves
from trainwright.search.bayes.forest_model import Forest, Trees
from trainwright.space import Choice, Float, Int, Normal, Space, equals, require
from trainwright.testing.searcher import SearcherConformance, bowl, play


class TestForest(SearcherConformance):
    def make_searcher(self):
        return ForestSearcher(initial=7)  # below that it is the initial design, which other tests know


class TestSmall(SearcherConformance):
    def make_searcher(self):
        return ForestSearcher(initial=5, max_rows=20, trees=3, candidates=50)


class TestPlainUcb(SearcherConformance):
    """Plain asynchronous UCB, which is blind to what is pending, so that it may propose that again."""

    def make_searcher(self):
        return ForestSearcher(initial=5, kappa_final=1.96, pending="ignore", trees=4, candidates=100)

    def test_batches_hold_no_duplicates_and_nothing_pending(self):
        view = SearchView(self.finite_space(), 4)
        play(self.make_searcher(), view, 10, bowl)
        batch = self.make_searcher().ask(view, range(10, 30))
        assert len({c.key for c in batch}) == 20
        assert not {c.key for c in batch} & {view.space.configuration(row).key for row in view.rows}


def square_space():
    return Space(**{name: Float(-1.0, 1.0) for name in "abcd"})


def square(configuration, number):
    return [sum((value - 0.4) ** 2 for value in configuration.params.values())]


def best_of(searcher, trials=60, seeds=5, loss=square, space=None):
    losses = []
    for seed in range(seeds):
        view = SearchView(space or square_space(), seed)
        play(searcher, view, trials, loss)
        losses.append(np.min(view.losses))
    return float(np.mean(losses))


def test_it_finds_better_points_than_chance():
    assert best_of(ForestSearcher()) < 0.2 * best_of(RandomSearcher())


def test_all_points_are_searched_without_repeat():
    space = Space(a=Int(1, 10), b=Choice(*range(5)), c=Choice("x", "y", "z"), d=Choice(1, 2, ordered=True))
    view = SearchView(space, 0)
    done = play(ForestSearcher(), view, 300, bowl)
    assert len({c.key for c in done}) == 300
    with pytest.raises(SpaceExhausted):
        ForestSearcher().ask(view, [300])


def kappas(searcher, trials=40):
    return [c.origin.get("kappa") for c in play(searcher, SearchView(square_space(), 0), trials, square)]


def test_kappa_decays_and_returns():
    """After the initial design: 1.96, 1.1562, 0.6820, ..., 0.0170, 1.96, by a constant factor."""
    found = kappas(ForestSearcher())
    assert found[:5] == [None] * 5  # 4 + 1
    assert found[5:8] == pytest.approx([1.96, 1.1562, 0.6820], abs=1e-4)
    assert found[14:16] == pytest.approx([0.0170, 1.96], abs=1e-4)
    assert kappas(ForestSearcher(kappa=0.7, kappa_final=0.7))[5:] == [0.7] * 35


def test_each_worker_slot_has_its_own_kappa():
    """Slot s multiplies the decaying kappa by a draw of mean 1 that depends on seed and slot alone."""

    def first_two(slot):
        view = SearchView(square_space(), 0, slot=slot)
        return [c.origin["kappa"] for c in play(ForestSearcher(trees=1, candidates=8), view, 7, square)[5:]]

    alone = first_two(None)
    shares = np.array([first_two(slot) for slot in range(200)]) / alone
    assert shares[:, 0] == pytest.approx(shares[:, 1])
    assert abs(shares[:, 0].mean() - 1.0) < 3.0 / math.sqrt(200)
    assert len(np.unique(shares[:, 0])) == 200


def test_batches_draw_their_kappas_from_an_exponential_law():
    """The first has the kappa of its number; the others' shares of theirs have mean 1, within 3 standard errors."""
    view = SearchView(square_space(), 0)
    play(ForestSearcher(), view, 5, square)
    batch = ForestSearcher(candidates=8).ask(view, range(5, 305))
    found = np.array([c.origin["kappa"] for c in batch])
    own = 1.96 * (0.01 / 1.96) ** (np.arange(300) % 10 / 10)  # the first five are the initial design
    assert found[0] == pytest.approx(own[0])
    assert abs((found / own)[1:].mean() - 1.0) < 3 / math.sqrt(299)
    assert len({c.key for c in batch}) == 300


def test_the_second_batch_is_better_than_random():
    """With one objective and with two: its proposals are nearer to the best, and spread along the front."""

    def two(configuration, number):
        del number
        a, *rest = ((value + 1.0) / 2.0 for value in configuration.params.values())
        far = 1.0 + sum(rest)
        return [a, far * (1.0 - (a / far) ** 0.5)]

    found = {}
    for searcher in (ForestSearcher(), RandomSearcher()):
        for loss in (square, two):
            view = SearchView(square_space(), 0, len(loss(searcher.ask(SearchView(square_space(), 0), [1])[0], 0)))
            play(searcher, view, 128, loss)
            batch = searcher.ask(view, range(128, 256))
            found[type(searcher), loss] = np.array([loss(each, 0) for each in batch])
    assert found[ForestSearcher, square].mean() < 0.5 * found[RandomSearcher, square].mean()
    ours, theirs = found[ForestSearcher, two], found[RandomSearcher, two]
    assert ours[:, 1].mean() < theirs[:, 1].mean()
    assert np.ptp(ours[:, 0]) > 0.7
    # Neither end of the front takes most of the batch.
    assert 0.1 < np.mean(ours[:, 0] < 0.5) < 0.9


def test_a_large_batch_is_distinct_and_legal():
    """A large batch shares candidates and local search, and is legal and free of duplicates all the same."""
    space = Space(require("x + y <= 1.5"), x=Float(0.0, 1.0), y=Float(0.0, 1.0), o=Choice("a", "b"))
    view = SearchView(space, 0)
    play(RandomSearcher(), view, 50, bowl)
    batch = ForestSearcher().ask(view, range(50, 450))
    assert len({c.key for c in batch}) == 400
    assert [c.number for c in batch] == list(range(50, 450))
    assert all(space.check(c.params) == [] for c in batch)


def test_the_default_comes_first():
    space = Space(x=Float(0.0, 1.0, default=0.5), o=Choice("a", "b", default="a"))
    done = play(ForestSearcher(), SearchView(space, 0), 4, bowl)
    assert done[0].params == {"x": 0.5, "o": "a"}


def test_failures_are_not_initial_points_and_are_avoided():
    """A region that fails is left, and failed trials do not end the initial design."""
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))

    def loss(configuration, number):
        return None if configuration["x"] > 0.5 else [configuration["y"]]

    view = SearchView(space, 1)
    done = play(ForestSearcher(), view, 60, loss)
    initial = sum("kappa" not in c.origin for c in done)
    assert sum(not view.failed[n] for n in range(initial)) == 3
    assert initial > 3
    assert sum(c["x"] > 0.5 for c in done[30:]) < 8


def test_intermediate_values_help():
    """Trials that were stopped teach about full ones: losses at a third of the epochs are lower bounds in order."""
    space = square_space()

    def run(stop):
        view, searcher, best = SearchView(space, 0, epochs=9), ForestSearcher(), math.inf
        for number in range(60):
            [configuration] = searcher.ask(view, [number])
            view.propose(number, configuration)
            [final] = square(configuration, number)
            best = min(best, final)
            last = 3 if stop and number % 3 else 9
            for epoch in range(1, last + 1):
                view.report(number, epoch, [final + 2.0 / epoch])
            view.result(number, [final + 2.0 / last], epoch=last, complete=last == 9)
        return best

    assert run(stop=True) < 0.2
    assert run(stop=False) < 0.2


def test_grown_trees_predict_as_planted_ones():
    """Kept trees rank points as freshly planted ones do: Spearman >= 0.95 between the means."""
    from scipy.stats import spearmanr

    view = SearchView(square_space(), 0)
    play(RandomSearcher(), view, 300, square)
    M = np.ones((500, 5))
    M[:, :4] = view.space.sample(np.random.default_rng(0), 500)
    forest = Forest(view, 100, 10_000)
    forest.update(view)
    y = forest.value()
    planted = Trees(view.space, 0, 100)
    planted.reserve(300)
    told = np.column_stack([view.space.model_matrix(view.rows), np.ones(300)])
    planted.grow(told, y, 299, 300, np.full(100, 300))
    planted.average(y)
    assert spearmanr(forest.trees.predict(M)[0], planted.predict(M)[0]).statistic >= 0.95


def test_a_forest_is_a_function_of_the_rows_in_their_order():
    """Whether they come one by one, learnt while trials run, or all at once: the next proposal is the same."""
    space, searcher = square_space(), ForestSearcher()
    drawn = space.configurations(space.sample(np.random.default_rng(0), 300))
    one, other = SearchView(space, 0), SearchView(space, 0)
    for number, configuration in enumerate(drawn):
        failed = number % 17 == 5
        for view in (one, other):
            view.propose(number, configuration)
            view.result(number, None if failed else square(configuration, number), epoch=None, complete=not failed)
        if number > 20 and number % 3:
            searcher.learn(one)
        if number % 50 == 49:
            assert searcher.ask(one, [1000 + number]) == searcher.ask(other, [1000 + number])


def test_many_rows_are_thinned():
    """Above max_rows a tree holds the best, the newest and a sample of the rest, and goes on to grow."""
    view = SearchView(square_space(), 0)
    play(RandomSearcher(), view, 400, square)
    searcher = ForestSearcher(max_rows=50)
    searcher.ask(view, [400])
    held = view.memo[searcher].forest.trees.leaf_of[:, :400] >= 0
    assert np.all(held.sum(axis=1) < 50 + 0.1 * 400)
    assert np.all(held[:, np.argsort(view.losses[:, 0])[0]])
    assert len({row.tobytes() for row in held}) == 10


def test_bounds_and_constraints_push_proposals_inside():
    """A bound on the objective's rival, and one on a metric that is no objective, are kept in the end."""
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))

    def run(view, loss):
        return play(ForestSearcher(), view, 60, loss)[30:]

    rivals = run(SearchView(space, 0, 2, bounds=[math.inf, 0.3]), lambda c, n: [c["x"], 1 - c["x"]])
    assert np.mean([1 - c["x"] <= 0.3 for c in rivals]) > 0.8
    limited = run(SearchView(space, 0, 1, bounds=[math.inf, 0.3]), lambda c, n: [c["x"], 1 - c["x"]])
    assert np.mean([1 - c["x"] <= 0.3 for c in limited]) > 0.3  # the best point lies on the limit
    assert min(c["x"] for c in limited if 1 - c["x"] <= 0.3) < 0.71


def test_a_fifth_of_the_candidates_ignores_priors():
    """However narrow a prior is, at least 20 % of the candidates come evenly from the space."""
    space = Space(x=Float(0.0, 1.0, prior=Normal(0.1, 0.01)), o=Choice("a", "b", weights=(999, 1)))
    rows = Moves(space).candidates(np.random.default_rng(0), np.array([[0.1, 0.0]]), 1000)
    assert np.mean(rows[:, 0] > 0.5) > 0.08
    assert np.mean(rows[:500, 1] == 1.0) > 0.15


def test_inactive_parameters_are_no_obstacle():
    """A branch whose own parameter decides is searched although half of the trials do not have it."""
    space = Space(o=Choice("a", "b"), m=Float(0.0, 1.0, when=equals("o", "b")))

    def loss(configuration, number):
        return [0.2 if configuration["o"] == "a" else abs(configuration["m"] - 0.7)]

    assert best_of(ForestSearcher(), trials=40, loss=loss, space=space) < 0.01


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pending": "liar"}, "ForestSearcher.pending: got 'liar'; allowed: 'exclude', 'ignore'"),
        ({"trees": 0}, "ForestSearcher.trees: got 0; allowed: a whole number >= 1"),
        ({"initial": -1}, "ForestSearcher.initial: got -1; allowed: a whole number >= 0"),
        ({"max_rows": 5}, "ForestSearcher.max_rows: got 5; allowed: a whole number >= 10"),
        ({"kappa": 0.001}, "ForestSearcher.kappa_final: got 0.01, above kappa 0.001; allowed: a number up to kappa"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(SearchError, match=re.escape(message)):
        ForestSearcher(**settings)

"""The forest searcher: conformance in all its kinds, the formulas of its acquisition, and that it searches."""

import math
import re

import numpy as np
import pytest

from trainwright.errors import SearchError, SpaceExhausted, TrialError
from trainwright.search import ForestSearcher, RandomSearcher, View
from trainwright.search.conformance import SearcherConformance, bowl, play
from trainwright.space import Choice, Float, Int, Space, equals


class TestForest(SearcherConformance):
    def make_searcher(self):
        return ForestSearcher(initial=7)  # below that it is the initial design, which other tests know


class TestAlways(SearcherConformance):
    def make_searcher(self):
        return ForestSearcher(initial=5, refit="always", scaler="minmax", failures="mean", pending="proximity")


class TestBestCuts(SearcherConformance):
    def make_searcher(self):
        return ForestSearcher(initial=5, kind="forest", acquisition="UCB", failures="ignore", max_rows=20, trees=3)


class TestBagging(SearcherConformance):
    def make_searcher(self):
        return ForestSearcher(initial=5, kind="bagging", design="random", delta=0.0)


class TestSubspace(SearcherConformance):
    def make_searcher(self):
        return ForestSearcher(initial=5, kind="subspace", design="sobol", period=1)


def square_space():
    return Space(**{name: Float(-1.0, 1.0) for name in "abcd"})


def square(configuration, number):
    return [sum((value - 0.4) ** 2 for value in configuration.params.values())]


def best_of(searcher, trials=60, seeds=5, loss=square, space=None):
    losses = []
    for seed in range(seeds):
        view = View(space or square_space(), seed)
        play(searcher, view, trials, loss)
        losses.append(np.min(view.losses))
    return float(np.mean(losses))


def test_it_finds_better_points_than_chance():
    assert best_of(ForestSearcher()) < 0.2 * best_of(RandomSearcher())


def test_a_thousand_points_are_searched_without_repeat():
    space = Space(a=Int(1, 10), b=Choice(*range(10)), c=Choice("x", "y", "z", "u", "v"), d=Choice(1, 2, ordered=True))
    view = View(space, 0)
    done = play(ForestSearcher(), view, 1000, bowl)
    assert len({c.key for c in done}) == 1000
    with pytest.raises(SpaceExhausted):
        ForestSearcher().ask(view, [1000])


def kappas(searcher, trials=40):
    return [c.origin.get("kappa") for c in play(searcher, View(square_space(), 0), trials, square)]


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
        view = View(square_space(), 0, slot=slot)
        return [c.origin["kappa"] for c in play(ForestSearcher(trees=1, candidates=8), view, 7, square)[5:]]

    alone = first_two(None)
    shares = np.array([first_two(slot) for slot in range(200)]) / alone
    assert shares[:, 0] == pytest.approx(shares[:, 1])
    assert abs(shares[:, 0].mean() - 1.0) < 3.0 / math.sqrt(200)
    assert len(np.unique(shares[:, 0])) == 200


def test_batches_draw_their_kappas_from_an_exponential_law():
    """The first has the kappa of its number; the mean of the others is that kappa, within 3 standard errors."""
    view = View(square_space(), 0)
    play(ForestSearcher(), view, 5, square)
    batch = ForestSearcher(candidates=8).ask(view, range(5, 305))
    found = np.array([c.origin["kappa"] for c in batch])
    assert found[0] == 1.96
    assert abs(found[1:].mean() - 1.96) < 3 * 1.96 / math.sqrt(299)
    assert len({c.key for c in batch}) == 300


def test_the_users_points_come_first_then_the_default():
    space = Space(x=Float(0.0, 1.0, default=0.5), o=Choice("a", "b", default="a"))
    searcher = ForestSearcher(points=[{"x": 0.1, "o": "b"}, {"x": 0.2, "o": "a"}])
    done = play(searcher, View(space, 0), 4, bowl)
    assert [c.params for c in done[:3]] == [{"x": 0.1, "o": "b"}, {"x": 0.2, "o": "a"}, {"x": 0.5, "o": "a"}]
    with pytest.raises(TrialError, match=r"x=3.0 is outside"):
        ForestSearcher(points=[{"x": 3.0, "o": "b"}]).ask(View(space, 0), [0])


def test_failures_are_not_initial_points_and_are_avoided():
    """A region that fails is left, and failed trials do not end the initial design."""
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))

    def loss(configuration, number):
        return None if configuration["x"] > 0.5 else [configuration["y"]]

    view = View(space, 1)
    done = play(ForestSearcher(), view, 60, loss)
    initial = sum("kappa" not in c.origin for c in done)
    assert sum(not view.failed[n] for n in range(initial)) == 3
    assert initial > 3
    assert sum(c["x"] > 0.5 for c in done[30:]) < 8


def test_pending_trials_push_proposals_away():
    """With proximity, a pending trial takes away the deviation around it, so the next proposal lies farther off."""
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    distances = {}
    for pending in ("exclude", "proximity"):
        searcher, found = ForestSearcher(pending=pending, kappa=5.0, kappa_final=5.0), []
        for seed in range(20):
            view = View(space, seed)
            play(searcher, view, 15, lambda c, n: [(c["x"] - 0.5) ** 2])
            [first] = searcher.ask(view, [15])
            view.propose(15, first)
            [second] = searcher.ask(view, [15])  # the same number: only the pending trial differs
            found.append(math.dist((first["x"], first["y"]), (second["x"], second["y"])))
        distances[pending] = np.median(found)
    assert distances["proximity"] > distances["exclude"]


def test_intermediate_values_help():
    """Trials that were stopped teach about full ones: losses at a third of the epochs are lower bounds in order."""
    space = square_space()

    def run(stop):
        view, searcher, best = View(space, 0, epochs=9), ForestSearcher(), math.inf
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


def test_grow_predicts_as_always():
    """Kept trees rank points as freshly fitted ones do: Spearman >= 0.95 between the means."""
    from scipy.stats import spearmanr

    view = View(square_space(), 0)
    play(RandomSearcher(), view, 300, square)
    M = np.ones((500, 5))
    M[:, :4] = view.space.sample(np.random.default_rng(0), 500)
    means = []
    for refit in ("grow", "always"):
        searcher = ForestSearcher(refit=refit, trees=100)
        searcher.ask(view, [300])
        forest = view.memo[searcher]
        means.append(forest.predict(M)[0])
    assert spearmanr(*means).statistic >= 0.95


def test_many_rows_are_thinned():
    """Above max_rows a tree holds the best, the newest and a sample of the rest, and goes on to grow."""
    view = View(square_space(), 0)
    play(RandomSearcher(), view, 400, square)
    searcher = ForestSearcher(max_rows=50)
    searcher.ask(view, [400])
    held = view.memo[searcher]._leaf_of[:, :400] >= 0
    assert np.all(held.sum(axis=1) < 50 + 0.1 * 400)
    assert np.all(held[:, np.argsort(view.losses[:, 0])[0]])
    assert len({row.tobytes() for row in held}) == 10


def test_objectives_are_weighted_anew_for_each_trial():
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    view = View(space, 0, objectives=2)
    done = play(ForestSearcher(), view, 60, lambda c, n: [c["x"] ** 2 + c["y"], (1 - c["x"]) ** 2 + c["y"]])
    weights = np.array([c.origin["weights"] for c in done[3:]])
    assert weights.sum(axis=1) == pytest.approx(1.0)
    assert len(np.unique(weights[:, 0])) == 57
    late = done[30:]
    assert np.mean([c["y"] for c in late]) < 0.15  # bad for both
    assert np.std([c["x"] for c in late]) > 0.15  # the front is spread


def test_inactive_parameters_are_no_obstacle():
    """A branch whose own parameter decides is searched although half of the trials do not have it."""
    space = Space(o=Choice("a", "b"), m=Float(0.0, 1.0, when=equals("o", "b")))

    def loss(configuration, number):
        return [0.2 if configuration["o"] == "a" else abs(configuration["m"] - 0.7)]

    assert best_of(ForestSearcher(), trials=40, loss=loss, space=space) < 0.01


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "boosted"}, "kind must be one of 'extra', 'bagging', 'forest', 'subspace', got 'boosted'"),
        ({"pending": "liar"}, "pending must be one of 'exclude', 'proximity', 'ignore', got 'liar'"),
        ({"trees": 0}, "trees must be an integer >= 1, got 0"),
        ({"period": 2.5}, "period must be an integer >= 1, got 2.5"),
        ({"initial": -1}, "initial must be an integer >= 0, got -1"),
        ({"max_rows": 5}, "max_rows must be an integer >= 10, got 5"),
        ({"kappa": 0.001}, "0 < kappa_final <= kappa is needed, got 0.01 and 0.001"),
        ({"delta": -1.0}, "delta must be a number >= 0, got -1.0"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(SearchError, match=re.escape(message)):
        ForestSearcher(**settings)

"""Greedy selection against a plain reference and against exhaustive search, its limits and its invariances."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainwright.ensemble.metrics import METRICS
from trainwright.ensemble.selection.candidates import Candidates, RowScorer, TrueClassScorer, make_scorer
from trainwright.ensemble.selection.greedy import BudgetedGreedy
from trainwright.errors import EnsembleError

METRIC_NAMES = sorted(name for name, metric in METRICS.items() if "classes" in metric.outputs and metric.per_row)


def candidates(seed, members=6, rows=17, classes=3, *, ties=False):
    """Return a library of class probabilities; with ties, of few different numbers, so that many losses are equal."""
    draws = np.random.default_rng(seed)
    odds = (
        draws.integers(1, 4, (members, rows, classes)).astype(float) if ties else draws.random((members, rows, classes))
    )
    predictions = (odds / odds.sum(axis=2, keepdims=True)).astype(np.float32)
    targets = draws.integers(0, classes, rows).astype(np.int32)
    seconds = draws.integers(1, 5, members) / 8 if ties else draws.random(members) + 0.1
    return Candidates(
        trials=np.arange(members) * 3,
        targets=targets,
        read=list(predictions).__getitem__,
        true=predictions[:, np.arange(rows), targets],
        seconds=seconds,
        sizes=draws.integers(1, 9, members).astype(float),
    )


def loss_of(library, metric, picks):
    """Return the loss of the plain mean of picks, one row at a time in Python floats."""
    total = 0.0
    for row, label in enumerate(library.targets.tolist()):
        mean = [0.0] * library.read_member(0).shape[1]
        for pick in picks:
            values = library.read_member(pick)[row].tolist()
            norm = sum(values) if metric != "cross_entropy" else 1.0  # the kept true class probability is final
            mean = [one + value / norm for one, value in zip(mean, values, strict=True)]
        mean = [value / len(picks) for value in mean]
        if metric == "cross_entropy":
            total -= math.log(mean[label])
        elif metric == "accuracy":
            total += mean.index(max(mean)) != label
        else:
            total += sum((value - (column == label)) ** 2 for column, value in enumerate(mean))
    return total / len(library.targets)


def best_single(library, metric):
    return min(
        range(len(library)),
        key=lambda one: (round(loss_of(library, metric, [one]), 12), library.seconds[one], library.trials[one]),
    )


def objective(library, metric, picks, strategy):
    """Return the scalarised objective of picks as the specification writes it."""
    if strategy.cost_weight == 0 and strategy.bytes_weight == 0:
        return loss_of(library, metric, picks)
    best = best_single(library, metric)
    return (
        loss_of(library, metric, picks) / max(loss_of(library, metric, [best]), 1e-12)
        + strategy.cost_weight * sum(library.seconds[one] for one in set(picks)) / library.seconds[best]
        + strategy.bytes_weight * sum(library.sizes[one] for one in set(picks)) / library.sizes[best]
    )


def allowed(library, picks, strategy):
    members = set(picks)
    return (
        len(members) <= strategy.max_members
        and sum(library.seconds[one] for one in members) <= (strategy.budget_seconds or math.inf)
        and sum(library.sizes[one] for one in members) <= (strategy.budget_bytes or math.inf)
    )


def affordable(library, strategy):
    return any(allowed(library, [one], strategy) for one in range(len(library)))


def reference(library, metric, strategy):
    """Return the greedy picks, naively: every step scores every extension from nothing."""
    picks, prefixes = [], []
    for _ in range(strategy.max_additions):
        open_ = [one for one in range(len(library)) if allowed(library, [*picks, one], strategy)]
        if not open_:
            break
        chosen = min(
            open_,
            key=lambda one: (
                round(objective(library, metric, [*picks, one], strategy), 12),
                one not in picks,
                library.seconds[one],
                library.trials[one],
            ),
        )
        picks.append(chosen)
        prefixes.append((round(objective(library, metric, picks, strategy), 12), len(picks)))
    return picks, min(prefixes)[1]


strategies = st.builds(
    BudgetedGreedy,
    max_members=st.integers(1, 4),
    max_additions=st.integers(1, 7),
    budget_seconds=st.none() | st.sampled_from([0.25, 0.75, 1.5]),
    budget_bytes=st.none() | st.sampled_from([3.0, 12.0, 20.0]),
    cost_weight=st.sampled_from([0.0, 0.0, 0.01, 0.3, 2.0]),
    bytes_weight=st.sampled_from([0.0, 0.0, 0.02, 0.5]),
)


class TestAgainstReference:
    @settings(max_examples=120)
    @given(seed=st.integers(0, 10**6), ties=st.booleans(), metric=st.sampled_from(METRIC_NAMES), strategy=strategies)
    def test_same_picks(self, seed, ties, metric, strategy):
        library = candidates(seed, ties=ties)
        if not affordable(library, strategy):
            with pytest.raises(EnsembleError, match="budget_"):
                strategy.run(library, make_scorer(library, METRICS[metric]))
            return
        picks, length = reference(library, metric, strategy)
        found = strategy.run(library, make_scorer(library, METRICS[metric]))
        assert [step.index for step in found.steps] == picks
        assert found.length == length
        for count, step in enumerate(found.steps, start=1):
            assert step.loss == pytest.approx(loss_of(library, metric, picks[:count]), abs=1e-12)
            assert step.objective == pytest.approx(objective(library, metric, picks[:count], strategy))
            assert allowed(library, picks[:count], strategy)

    def test_caruana(self):
        """Without prices and budgets: at each step the member that lowers the ensemble's loss most."""
        library = candidates(5, members=8, rows=50)
        found = BudgetedGreedy(max_members=8, max_additions=20).run(
            library, make_scorer(library, METRICS["cross_entropy"])
        )
        picks = []
        for step in found.steps:
            losses = [loss_of(library, "cross_entropy", [*picks, one]) for one in range(8)]
            assert step.index == int(np.argmin(losses))
            picks.append(step.index)

    def test_a_long_run_on_many_rows(self):
        """Products of 32 terms instead of single logarithms change no pick, with tiny probabilities among them."""
        draws = np.random.default_rng(0)
        true = draws.random((40, 1003)).astype(np.float32) ** 6
        true[draws.random(true.shape) < 0.01] = 0.0
        library = Candidates(trials=np.arange(40), targets=np.zeros(1003, dtype=np.int32), true=true)
        found = BudgetedGreedy(max_members=40).run(library, TrueClassScorer(library, METRICS["cross_entropy"]))
        clipped = np.maximum(true, np.float32(1e-7)).astype(np.float64)
        total = np.zeros(1003)
        for count, step in enumerate(found.steps, start=1):
            losses = -np.log((total + clipped) / count).mean(axis=1)
            assert step.index == int(np.argmin(losses.round(12)))
            assert step.loss == pytest.approx(losses[step.index], abs=1e-13)
            total += clipped[step.index]


class TestAgainstExhaustiveSearch:
    @settings(max_examples=25)
    @given(seed=st.integers(0, 10**6), metric=st.sampled_from(METRIC_NAMES), w=st.sampled_from([0.0, 0.1, 1.0]))
    def test_exact_is_not_worse_and_single_is_not_better(self, seed, metric, w):
        library = candidates(seed, members=5, rows=9)
        strategy = BudgetedGreedy(max_members=3, max_additions=4, cost_weight=w)
        found = strategy.run(library, make_scorer(library, METRICS[metric]))
        greedy = objective(library, metric, list(found.picks), strategy)
        multisets = itertools.chain.from_iterable(
            itertools.combinations_with_replacement(range(5), size) for size in range(1, 5)
        )
        exact = min(objective(library, metric, list(m), strategy) for m in multisets if allowed(library, m, strategy))
        single = min(objective(library, metric, [one], strategy) for one in range(5))
        assert exact <= greedy + 1e-12
        assert greedy <= single + 1e-12

    def test_finds_a_complementary_pair(self):
        """Two members that err on different rows beat the best single one."""
        true = np.full((3, 10), 0.6, dtype=np.float32)
        true[1, :5], true[1, 5:], true[2, :5], true[2, 5:] = 0.99, 0.45, 0.45, 0.99
        library = Candidates(trials=np.arange(3), targets=np.zeros(10, dtype=np.int32), true=true)
        found = BudgetedGreedy().run(library, make_scorer(library, METRICS["cross_entropy"]))
        assert set(found.picks) == {1, 2}


class TestLimits:
    @settings(max_examples=25)
    @given(seed=st.integers(0, 10**6), strategy=strategies)
    def test_pool_keeps_them(self, seed, strategy):
        """Whatever goes to the front keeps members and budgets, in every variant."""
        library = candidates(seed, ties=True)
        scorer = make_scorer(library, METRICS["cross_entropy"])
        assume(affordable(library, strategy))
        pool = list(strategy.pool(library, scorer))
        assert pool
        for picks, loss in pool:
            assert allowed(library, picks, strategy)
            assert loss == pytest.approx(loss_of(library, "cross_entropy", picks), abs=1e-12)

    def test_a_repeat_costs_nothing(self):
        library = candidates(1)
        found = BudgetedGreedy(max_members=1, max_additions=5).run(library, make_scorer(library, METRICS["accuracy"]))
        assert len(found.steps) == 5
        assert found.length == 1
        assert len({step.index for step in found.steps}) == 1

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ({"max_members": 0}, "max_members: got 0; allowed: a whole number >= 1"),
            ({"max_additions": -1}, "max_additions: got -1"),
            ({"cost_weight": -1.0}, "cost_weight: got -1.0; allowed: a number >= 0"),
            ({"bytes_weight": math.nan}, "bytes_weight: got nan"),
            ({"budget_seconds": 0.0}, "budget_seconds: got 0.0; allowed: a number > 0"),
            ({"budget_bytes": math.nan}, "budget_bytes: got nan"),
        ],
    )
    def test_settings(self, arguments, sentence):
        with pytest.raises(EnsembleError, match=sentence):
            BudgetedGreedy(**arguments)

    def test_budget_below_the_cheapest(self):
        library = candidates(2)
        scorer = make_scorer(library, METRICS["cross_entropy"])
        cheapest = int(library.seconds.argmin())
        with pytest.raises(EnsembleError, match=rf"got 0.001; allowed: at least .*\(trial {cheapest * 3}\)"):
            BudgetedGreedy(budget_seconds=0.001).run(library, scorer)

    def test_budgets_that_no_member_keeps_together(self):
        library = Candidates(
            trials=np.arange(2),
            targets=np.zeros(3, dtype=np.int32),
            true=np.full((2, 3), 0.5, np.float32),
            seconds=np.array([1.0, 2.0]),
            sizes=np.array([8.0, 4.0]),
        )
        with pytest.raises(EnsembleError, match="budget_seconds=1 and budget_bytes=4, which no member keeps both"):
            BudgetedGreedy(budget_seconds=1, budget_bytes=4).run(
                library, make_scorer(library, METRICS["cross_entropy"])
            )

    def test_costs_unknown(self):
        library = Candidates(
            trials=np.arange(2), targets=np.zeros(3, dtype=np.int32), true=np.full((2, 3), 0.5, np.float32)
        )
        scorer = make_scorer(library, METRICS["cross_entropy"])
        assert len(BudgetedGreedy().run(library, scorer).picks) == 1
        for strategy, what in (
            (BudgetedGreedy(cost_weight=1.0), "seconds"),
            (BudgetedGreedy(budget_bytes=9.0), "bytes"),
        ):
            with pytest.raises(EnsembleError, match=f"weight or budget on {what}"):
                list(strategy.pool(library, scorer))


class TestInvariances:
    @settings(max_examples=40)
    @given(seed=st.integers(0, 10**6), w=st.sampled_from([0.0, 0.2]), order=st.permutations(range(6)))
    def test_order_of_members(self, seed, w, order):
        """Picks depend on trial numbers, not on the order in which members are found."""
        library = candidates(seed, ties=True)
        order = list(order)
        other = Candidates(
            trials=library.trials[order],
            targets=library.targets,
            true=library.true[order],
            seconds=library.seconds[order],
            sizes=library.sizes[order],
        )
        strategy = BudgetedGreedy(cost_weight=w, max_additions=6)
        metric = METRICS["cross_entropy"]
        one, two = (strategy.run(each, make_scorer(each, metric)) for each in (library, other))
        assert [library.trials[i] for i in one.picks] == [other.trials[i] for i in two.picks]

    @settings(max_examples=40)
    @given(seed=st.integers(0, 10**6), power=st.integers(-3, 3))
    def test_unit_of_costs(self, seed, power):
        library = candidates(seed)
        assume(library.seconds.min() <= 0.9)
        scale_axes = Candidates(
            trials=library.trials, targets=library.targets, true=library.true, seconds=library.seconds * 2.0**power
        )
        metric = METRICS["cross_entropy"]
        one = BudgetedGreedy(cost_weight=0.2, budget_seconds=0.9).run(library, make_scorer(library, metric))
        two = BudgetedGreedy(cost_weight=0.2, budget_seconds=0.9 * 2.0**power).run(
            scale_axes, make_scorer(scale_axes, metric)
        )
        assert one.picks == two.picks

    def test_blocks_of_rows(self):
        """More rows than one block holds give the loss of all rows."""
        library = candidates(3, members=2, rows=40_000)
        found = RowScorer(library, METRICS["squared_error"]).losses((0,), np.array([1]))
        mean = (library.rows(0) + library.rows(1)) / 2
        assert found[0] == pytest.approx(METRICS["squared_error"].score(mean, library.targets), abs=1e-12)

    def test_memory_of_losses(self):
        """A scorer asked in any order answers like a fresh one, to the last bit."""
        library = candidates(4)
        metric = METRICS["cross_entropy"]
        used, everyone = make_scorer(library, metric), np.arange(6)
        for picks in ((), (1,), (1, 2), (3,), (1, 2, 2), (3, 0), ()):
            np.testing.assert_array_equal(
                used.losses(picks, everyone), make_scorer(library, metric).losses(picks, everyone)
            )

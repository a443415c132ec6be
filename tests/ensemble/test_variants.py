"""Selection beyond one greedy run: exact and beam search, bagging, the online selector, the convex bound."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainwright.ensemble import Bagged, Beam, BudgetedGreedy, Exact, OnlineSelector, convex_bound
from trainwright.ensemble.candidates import Candidates, scorer_of
from trainwright.ensemble.metrics import METRICS
from trainwright.errors import EnsembleError

CE = METRICS["cross_entropy"]


def library(seed, members=6, rows=19, *, costs=True):
    """Return probabilities of the true class, of few values so that there are ties, and costs."""
    draws = np.random.default_rng(seed)
    return Candidates(
        trials=draws.permutation(members * 2)[:members],
        targets=np.zeros(rows, dtype=np.int32),
        true=(draws.integers(1, 10, (members, rows)) / 10).astype(np.float32),
        seconds=draws.integers(1, 5, members) / 8 if costs else None,
        sizes=draws.integers(1, 9, members).astype(float) if costs else None,
    )


def plain_caruana(true, steps):
    """Caruana et al. 2004 in plain Python: add what lowers the loss of the mean most, with replacement."""
    picks, losses = [], []
    for _ in range(steps):
        scores = []
        for more in range(len(true)):
            loss = 0.0
            for row in range(len(true[0])):
                loss -= math.log(sum(float(true[one][row]) for one in [*picks, more]) / (len(picks) + 1))
            scores.append(round(loss / len(true[0]), 12))
        picks.append(scores.index(min(scores)))
        losses.append(min(scores))
    return picks[: losses.index(min(losses)) + 1]


class TestCaruana:
    @settings(max_examples=15)
    @given(seed=st.integers(0, 10**6))
    def test_without_prices_and_budgets_greedy_is_caruana(self, seed):
        draws = np.random.default_rng(seed)
        true = (0.05 + 0.95 * draws.random((6, 23))).astype(np.float32)  # no ties, whose order is ours
        candidates = Candidates(trials=np.arange(6), targets=np.zeros(23, dtype=np.int32), true=true)
        found = BudgetedGreedy(max_additions=9).best(candidates, scorer_of(candidates, CE))
        assert list(found) == plain_caruana(true, 9)


class TestOrderOfSearch:
    @settings(max_examples=15)
    @given(
        seed=st.integers(0, 10**6),
        w=st.sampled_from([0.0, 0.2, 1.0]),
        budget=st.sampled_from([None, 0.75]),
        metric=st.sampled_from(["cross_entropy", "squared_error"]),
    )
    def test_exact_beam_greedy(self, seed, w, budget, metric):
        """The exact optimum is a full enumeration's; no beam beats it, and no greedy run beats the beam."""
        candidates = library(seed, members=5)
        if metric == "squared_error":
            draws = np.random.default_rng(seed)
            odds = draws.random((5, 19, 3))
            candidates = Candidates(
                trials=candidates.trials,
                targets=draws.integers(0, 3, 19),
                predictions=list(odds / odds.sum(axis=2, keepdims=True)),
                seconds=candidates.seconds,
                sizes=candidates.sizes,
            )
        assume(budget is None or candidates.seconds.min() <= budget)
        scorer = scorer_of(candidates, METRICS[metric])
        greedy = BudgetedGreedy(max_members=3, max_additions=4, cost_weight=w, budget_seconds=budget)
        objective_of = greedy.objective(candidates, scorer)

        def objective(picks):
            members = sorted(set(picks))
            sums = (candidates.seconds[members].sum(), candidates.sizes[members].sum())
            return float(objective_of(np.array(scorer.loss(tuple(picks))), *sums))

        every = itertools.chain.from_iterable(
            itertools.combinations_with_replacement(range(5), size) for size in range(1, 5)
        )
        least = min(objective(picks) for picks in every if greedy.admits(candidates, picks))
        exact = objective(Exact(settings=greedy).best(candidates, scorer))
        beams = [objective(Beam(settings=greedy, width=width).best(candidates, scorer)) for width in (1, 4)]
        run = objective(greedy.best(candidates, scorer))
        assert exact == pytest.approx(least, abs=1e-11)
        assert all(exact <= beam + 1e-11 and beam <= run + 1e-11 for beam in beams)

    def test_count_of_multisets(self):
        candidates = library(0, members=8)
        pool = list(Exact(settings=BudgetedGreedy(max_additions=5)).pool(candidates, scorer_of(candidates, CE)))
        assert len(pool) == 1286  # sum over k of (8 + k - 1 choose k)

    def test_wide_beam_is_exact(self):
        candidates = library(3, members=4)
        scorer = scorer_of(candidates, CE)
        greedy = BudgetedGreedy(max_additions=4)
        picks = Beam(settings=greedy, width=500).best(candidates, scorer)
        assert scorer.loss(picks) == pytest.approx(scorer.loss(Exact(settings=greedy).best(candidates, scorer)))

    def test_too_many(self):
        candidates = library(0, members=40)
        with pytest.raises(EnsembleError, match=r"got 40 members and up to 8 picks, .*allowed: 200,000"):
            list(Exact(settings=BudgetedGreedy(max_additions=8)).pool(candidates, scorer_of(candidates, CE)))


class TestLimits:
    @settings(max_examples=12)
    @given(
        seed=st.integers(0, 10**6),
        greedy=st.builds(
            BudgetedGreedy,
            max_members=st.integers(1, 3),
            max_additions=st.integers(1, 4),
            budget_seconds=st.none() | st.sampled_from([0.25, 0.75]),
            budget_bytes=st.none() | st.sampled_from([4.0, 9.0]),
        ),
    )
    def test_every_variant_keeps_them(self, seed, greedy):
        candidates = library(seed, members=5)
        scorer = scorer_of(candidates, CE)
        assume(any(greedy.admits(candidates, (one,)) for one in range(5)))
        for variant in (Exact(settings=greedy), Beam(settings=greedy, width=3), Bagged(settings=greedy, bags=4)):
            assert greedy.admits(candidates, variant.best(candidates, scorer))
            for picks, loss in variant.pool(candidates, scorer):
                assert greedy.admits(candidates, picks)
                assert loss == pytest.approx(scorer.loss(picks), abs=1e-12)

    def test_settings(self):
        for wrong, sentence in (
            (lambda: Beam(width=0), "Beam.width: got 0"),
            (lambda: Bagged(bags=0), "Bagged.bags: got 0"),
            (lambda: Bagged(fraction=0.0), r"Bagged.fraction: got 0.0; allowed: a number in \(0, 1\]"),
        ):
            with pytest.raises(EnsembleError, match=sentence):
                wrong()


class TestBagged:
    def test_keeps_out_luck(self):
        """Its members are among those that at least two bags chose, and do not depend on the order of the library."""
        candidates = library(5, members=12, rows=60)
        picks = Bagged(bags=10).best(candidates, scorer_of(candidates, CE))
        order = np.random.default_rng(0).permutation(12)
        other = Candidates(
            trials=candidates.trials[order],
            targets=candidates.targets,
            true=candidates.true[order],
            seconds=candidates.seconds[order],
            sizes=candidates.sizes[order],
        )
        again = Bagged(bags=10).best(other, scorer_of(other, CE))
        assert [candidates.trials[one] for one in picks] == [other.trials[one] for one in again]


class TestOnline:
    @settings(max_examples=40)
    @given(
        seed=st.integers(0, 10**6),
        w=st.sampled_from([0.0, 0.0, 0.3]),
        budget=st.sampled_from([None, 0.5]),
        replacement=st.booleans(),
        members=st.integers(1, 3),
        patience=st.sampled_from([None, 1, 2]),
    )
    def test_every_prefix_is_the_batch_run(self, seed, w, budget, replacement, members, patience):  # noqa: PLR0917
        """After each newcomer, in any order of arrival, weights and loss are those of a run from nothing."""
        candidates = library(seed, members=7)
        greedy = BudgetedGreedy(
            max_members=members,
            max_additions=6,
            cost_weight=w,
            budget_seconds=budget,
            replacement=replacement,
            patience=patience,
        )
        online = OnlineSelector(greedy)
        for count in range(1, 8):
            last = count - 1
            before = online.weights if count > 1 else {}
            changed = online.add(
                int(candidates.trials[last]),
                candidates.true[last],
                seconds=candidates.seconds[last],
                size=candidates.sizes[last],
            )
            seen = Candidates(
                trials=candidates.trials[:count],
                targets=candidates.targets,
                true=candidates.true[:count],
                seconds=candidates.seconds[:count],
                sizes=candidates.sizes[:count],
            )
            if budget is not None and seen.seconds.min() > budget:
                assert online.weights == {}
                continue
            batch = greedy.run(seen, scorer_of(seen, CE))
            assert online.weights == {int(seen.trials[one]): weight for one, weight in batch.weights.items()}
            assert online.loss == pytest.approx(batch.steps[batch.length - 1].loss, abs=1e-12)
            assert changed == (online.weights != before)

    def test_refusals(self):
        online = OnlineSelector()
        assert online.weights == {}
        with pytest.raises(EnsembleError, match="got no member within the budgets"):
            _ = online.loss
        online.add(3, np.array([0.5, 0.5]))
        with pytest.raises(EnsembleError, match="got trial 3 twice"):
            online.add(3, np.array([0.5, 0.5]))
        with pytest.raises(EnsembleError, match="got 3 rows of trial 4; allowed: 2"):
            online.add(4, np.array([0.5, 0.5, 0.5]))
        with pytest.raises(EnsembleError, match="got seconds of trial 4 or of those before, not both"):
            online.add(4, np.array([0.5, 0.5]), seconds=1.0)


class TestBound:
    @settings(max_examples=20)
    @given(seed=st.integers(0, 10**6))
    def test_below_every_ensemble(self, seed):
        """No weights do better than the certificate says, and those found are nearly as good."""
        candidates = library(seed, costs=False)
        found = convex_bound(candidates.true)
        clipped = candidates.true.astype(np.float64)
        assert found.least <= found.loss
        assert found.weights.sum() == pytest.approx(1.0)
        assert found.loss == pytest.approx(-np.log(found.weights @ clipped).mean(), abs=1e-2)
        draws = np.random.default_rng(seed).dirichlet(np.full(6, 0.5), size=200)
        assert (-np.log(draws @ clipped).mean(axis=1) >= found.least - 1e-12).all()
        exact = Exact(settings=BudgetedGreedy(max_additions=3)).best(candidates, scorer_of(candidates, CE))
        assert scorer_of(candidates, CE).loss(exact) >= found.least - 1e-12

    def test_closes_the_gap(self):
        """Against the optimum of a general solver."""
        from scipy.optimize import minimize

        candidates = library(1, rows=200, costs=False)
        true = candidates.true.astype(np.float64)

        def loss(logits):
            odds = np.exp(logits - logits.max())
            return -np.log(odds / odds.sum() @ true).mean()

        best = min(minimize(loss, start).fun for start in np.random.default_rng(0).normal(size=(5, 6)))
        found = convex_bound(candidates.true, tolerance=1e-6, most=20_000)
        assert found.loss - found.least <= 1e-5
        assert found.least - 1e-9 <= best <= found.loss + 1e-5

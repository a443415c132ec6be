"""Protection against selection overfitting: optimism, the one-standard-error fall-back, warnings."""

import numpy as np
import pytest

from trainwright.ensemble import BudgetedGreedy
from trainwright.ensemble.metrics import METRICS
from trainwright.ensemble.selection.candidates import Candidates, make_scorer
from trainwright.ensemble.selection.protection import cross_validate, protect

CE = METRICS["cross_entropy"]


def exchangeable(seed, members=40, rows=400, classes=4, spread=1.5):
    """Return members that are equally good and err independently, and their log-loss on fresh rows."""
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, classes, rows).astype(np.int32)
    logits = spread * draws.normal(size=(members, rows, classes))
    logits[:, np.arange(rows), labels] += 1.0
    odds = np.exp(logits)
    true = (odds / odds.sum(axis=2, keepdims=True))[:, np.arange(rows), labels]
    return Candidates(trials=np.arange(members), targets=labels, true=true.astype(np.float32))


def checked(candidates, greedy, **settings):
    return protect(candidates, CE, greedy, **settings)


class TestOptimism:
    def test_near_the_gap_on_new_rows(self):
        """The corrected loss of the best of many equal members is near what such a choice loses on new rows."""
        told, seen, fresh = [], [], []
        for seed in range(12):
            both = exchangeable(seed, rows=800, spread=2.5)
            candidates, rest = both.subset(np.arange(400)), both.subset(np.arange(400, 800))
            greedy = BudgetedGreedy(max_members=1, max_additions=1)
            found = checked(candidates, greedy, repeats=2).checked["single best"]
            picks = greedy.run(candidates, make_scorer(candidates, CE)).picks
            told.append(found.corrected)
            seen.append(found.loss)
            fresh.append(make_scorer(rest, CE).loss(picks))
        error = np.std(np.subtract(told, fresh), ddof=1) / np.sqrt(12)
        assert abs(np.mean(told) - np.mean(fresh)) < 2 * error + 0.01
        assert np.mean(seen) < np.mean(fresh) - error  # the loss where it was chosen is too good

    def test_every_row_is_left_out_once_a_repeat(self):
        """A procedure that always answers the same has the plain loss of each row, and no optimism on average."""
        candidates = exchangeable(0, rows=60)
        rows, optimism = cross_validate(candidates, CE, lambda _c, _s: (3,), folds=5, repeats=4)
        np.testing.assert_allclose(rows, -np.log(candidates.true[3].astype(float)), atol=1e-12)
        assert abs(optimism) < 0.05


class TestFallback:
    def test_noise_gives_the_simple_choice(self):
        """Copies of one model that differ by noise in a few rows: nothing is gained, so one member stays."""
        simple = 0
        for seed in range(10):
            draws = np.random.default_rng(seed)
            base = 0.3 + 0.6 * draws.random(300)
            true = np.clip(base + 0.005 * draws.normal(size=(20, 300)), 0.01, 0.99).astype(np.float32)
            candidates = Candidates(trials=np.arange(20), targets=np.zeros(300, dtype=np.int32), true=true)
            simple += checked(candidates, BudgetedGreedy(max_members=4), repeats=1).chosen != "greedy"
        assert simple >= 8

    def test_a_complementary_pair_is_kept(self):
        """Members that err on different rows, among better ones that err alike: the choice is not the simple one."""
        draws = np.random.default_rng(0)
        half = draws.permutation(600) < 300
        alike = np.where(draws.random(600) < 0.85, 0.95, 0.02)
        pair = [np.where(half, 0.99, 0.16), np.where(half, 0.16, 0.99)]
        true = np.stack([np.clip(alike + shift, 0, 1) for shift in (0.0, 1e-3, 2e-3)] + pair).astype(np.float32)
        candidates = Candidates(trials=np.arange(5), targets=np.zeros(600, dtype=np.int32), true=true)
        found = checked(candidates, BudgetedGreedy(max_members=2), repeats=1)
        assert found.chosen == "greedy"
        assert set(found.picks) & {3, 4}
        assert "least loss on rows left out" in found.reason

    def test_few_rows(self):
        """Below 50 rows a fold, or with a class rarer than the folds, the greedy choice is not offered."""
        few = checked(exchangeable(1, rows=100), BudgetedGreedy(), repeats=1)
        assert set(few.checked) == {"single best", "top-k"}
        assert [warning[:26] for warning in few.warnings] == ["only 100 rows to select on"]
        candidates = exchangeable(1, rows=400)
        labels = np.where(np.arange(400) < 3, 4, candidates.targets).astype(np.int32)
        rare = Candidates(trials=candidates.trials, targets=labels, true=candidates.true)
        found = checked(rare, BudgetedGreedy(), repeats=1)
        assert set(found.checked) == {"single best", "top-k"}
        assert "class 4 has 3 rows to select on, fewer than the 5 folds" in found.warnings[1]

    def test_limits_hold_for_all_choices(self):
        candidates = exchangeable(2, members=6, rows=300)
        seconds = np.array([9.0, 1.0, 9.0, 2.0, 9.0, 9.0])
        priced = Candidates(trials=candidates.trials, targets=candidates.targets, true=candidates.true, seconds=seconds)
        found = checked(priced, BudgetedGreedy(budget_seconds=3.0), repeats=1)
        assert set(found.picks) <= {1, 3}


class TestFront:
    def test_pick(self, filled):
        front = filled.library().select(BudgetedGreedy(max_members=3))
        found = front.pick("fallback")
        assert found.cost_seconds is not None
        protection = front.protection
        assert protection.chosen in protection.checked
        expected = protection.checked[protection.chosen].loss
        assert found.score("selection", "cross_entropy") == pytest.approx(expected, abs=1e-9)
        cheap = front.pick("fallback", max_seconds=0.0025)
        assert cheap.cost_seconds <= 0.0025

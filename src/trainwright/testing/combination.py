"""What every combination rule promises, as tests that any rule inherits.

    class TestMine(RuleConformance):
        def make_rule(self):
            return Mine()

Needs no test library of its own: any runner that collects classes and methods named test will do.
"""
# ruff: noqa: S101 -- a test kit is made of asserts, and pickles what it made itself

import pickle
from collections.abc import Sequence
from itertools import permutations
from typing import Any, ClassVar

import numpy as np

from trainwright.ensemble.combine.rule import CombinationRule, PredictionSlots, combine
from trainwright.ensemble.combine.rules import make_rule
from trainwright.ensemble.metrics import Array
from trainwright.randomness import rng

__all__ = ["CombinationConformance"]


class CombinationConformance:
    """Subclass as Test<CombinationRule>, give `make_rule`; a rule made for a number of members is made for four."""

    MEMBERS: ClassVar[int] = 4
    ROWS: ClassVar[int] = 23
    COLUMNS: ClassVar[int] = 3

    def make_rule(self) -> CombinationRule:
        """Return the rule under test."""
        raise NotImplementedError

    def predictions(self, seed: int = 0) -> list[Array]:
        """Return one prediction a member, of the first kind that the rule combines."""
        draws = rng(seed, "rule conformance", 0)
        kind = self.make_rule().outputs[0]
        if kind == "classes":
            odds = np.exp(3.0 * draws.normal(size=(self.MEMBERS, self.ROWS, self.COLUMNS)))
            return list(odds / odds.sum(axis=2, keepdims=True))
        values = 10.0 + draws.normal(size=(self.MEMBERS, self.ROWS, self.COLUMNS))
        if kind == "values":
            return list(values)
        return list(np.stack([values, draws.random(values.shape) + 0.1], axis=-1))

    def weights(self) -> list[float]:
        """Return one weight a member, that do not sum to 1."""
        return [0.1 + float(draw) for draw in rng(1, "rule conformance", 0).random(self.MEMBERS)]

    def test_arrival(self) -> None:
        """The same bits come out whatever order the members come in, and as in one plain fold."""
        rule, predictions, weights = self.make_rule(), self.predictions(), self.weights()
        expected = combine(rule, predictions, weights)
        for order in permutations(range(self.MEMBERS)):
            slots = PredictionSlots(rule=rule, weights=weights)
            for member in order:
                slots.put(member, predictions[member])
            found = slots.combined()
            assert np.array_equal(found.prediction, expected)
            assert (found.members, found.missing, found.rule) == (tuple(range(self.MEMBERS)), (), rule.name)
            assert found.weight == 1.0

    def test_merge(self) -> None:
        """Any tree of partial folds, empty ones too, gives the whole fold to 1e-12 relative; states are not changed."""
        rule, predictions, weights = self.make_rule(), self.predictions(), self.weights()
        expected = combine(rule, predictions, weights)
        states = [self._state(rule, [member]) for member in range(self.MEMBERS)]
        nothing = rule.init(self.ROWS, self.COLUMNS)
        before = pickle.dumps(states)
        for order in permutations(states):
            first, second, third, fourth = order
            merge = rule.merge
            for whole in (
                merge(merge(merge(first, second), third), fourth),
                merge(first, merge(second, merge(merge(third, nothing), fourth))),
                merge(nothing, merge(merge(first, second), merge(third, fourth))),
            ):
                np.testing.assert_allclose(rule.finish(whole), expected, rtol=1e-12, atol=1e-12)
        assert pickle.dumps(states) == before

    def test_permuted_members(self) -> None:
        """Members under other numbers, with their weights, give the same to 1e-12; a fitted rule knows its members."""
        rule, predictions, weights = self.make_rule(), self.predictions(), self.weights()
        if rule.without(frozenset({0})).name != rule.name:
            return
        expected = combine(rule, predictions, weights)
        for order in permutations(range(self.MEMBERS)):
            found = combine(rule, [predictions[one] for one in order], [weights[one] for one in order])
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)

    def test_missing_members(self) -> None:
        """Without some members the answer is that of the rule for the subset, whose weights are scaled up."""
        rule, predictions, weights = self.make_rule(), self.predictions(), self.weights()
        slots = PredictionSlots(rule=rule, weights=weights)
        slots.put(3, predictions[3])
        slots.put(1, predictions[1])
        found = slots.combined()
        subset = rule.without(frozenset({0, 2}))
        expected = combine(subset, [predictions[1], predictions[3]], [7.0 * weights[1], 7.0 * weights[3]])
        np.testing.assert_allclose(found.prediction, expected, rtol=1e-12, atol=1e-12)
        assert (found.members, found.missing, found.rule) == ((1, 3), (0, 2), subset.name)
        assert abs(found.weight - (weights[1] + weights[3]) / sum(weights)) < 1e-12

    def test_valid(self) -> None:
        """What comes out is a prediction of the same kind and shape, in float64; inputs are left as they were."""
        rule, predictions = self.make_rule(), self.predictions()
        before = pickle.dumps(predictions)
        found = combine(rule, predictions, self.weights())
        assert pickle.dumps(predictions) == before
        assert found.shape == predictions[0].shape
        assert found.dtype == np.float64
        assert np.isfinite(found).all()
        if rule.outputs[0] == "classes":
            np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=0, atol=1e-12)
            assert (found >= 0).all()
        if rule.outputs[0] == "moments":
            assert (found[..., 1] > 0).all()

    def test_agreement(self) -> None:
        """Members that agree row by row are combined to the class, or the value, that they agree on."""
        rule, first = self.make_rule(), self.predictions()[0]
        found = combine(rule, [first] * self.MEMBERS, self.weights())
        if rule.outputs[0] == "classes":
            assert np.array_equal(found.argmax(axis=1), first.argmax(axis=1))
        else:
            np.testing.assert_allclose(found, first, rtol=1e-12)

    def test_json(self) -> None:
        """Name and settings make the rule again."""
        rule = self.make_rule()
        assert make_rule(rule.to_json(), rule.outputs[0]) == rule

    def _state(self, rule: CombinationRule, members: Sequence[int]) -> Any:
        predictions, weights = self.predictions(), self.weights()
        state = rule.init(self.ROWS, self.COLUMNS)
        for member in members:
            state = rule.add(state, member, predictions[member], weights[member])
        return state

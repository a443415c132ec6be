"""What every combination rule promises, as tests that any rule inherits.

    class TestMine(CombinationConformance):
        def make_rule(self):
            return Mine()

Needs no test library of its own: any runner that collects classes and methods named test will do.
"""
# ruff: noqa: S101 -- a test kit is made of asserts, and pickles what it made itself

import pickle
from abc import ABC, abstractmethod
from itertools import permutations
from typing import ClassVar

import numpy as np

from trainwright.ensemble.combine.rules import CombinationRule, combine, combine_arrived, make_rule
from trainwright.ensemble.metrics import Array
from trainwright.randomness import rng

__all__ = ["CombinationConformance"]


class CombinationConformance(ABC):
    """Subclass as Test<CombinationRule>, give `make_rule`; a rule made for a number of members is made for four."""

    MEMBERS: ClassVar[int] = 4
    ROWS: ClassVar[int] = 23
    COLUMNS: ClassVar[int] = 3

    @abstractmethod
    def make_rule(self) -> CombinationRule:
        """Return the rule under test."""

    def predictions(self, seed: int = 0) -> list[Array]:
        """Return one prediction a member, of the first kind that the rule combines."""
        draws = rng(seed, "rule conformance", 0)
        kind = self.make_rule().outputs[0]
        if kind == "classes":
            # Sure and unsure members, so that votes and means differ.
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
        """The same bits come out whatever order the members come in."""
        rule, predictions, weights = self.make_rule(), self.predictions(), self.weights()
        expected = combine(rule, predictions, weights)
        for order in permutations(range(self.MEMBERS)):
            found = combine_arrived(rule, {member: predictions[member] for member in order}, weights)
            assert np.array_equal(found, expected)

    def test_permuted_members(self) -> None:
        """Members under other numbers, with their weights, give the same to 1e-12; a fitted rule knows its members."""
        rule, predictions, weights = self.make_rule(), self.predictions(), self.weights()
        # A fitted rule has learnt who its members are: under other numbers they are others.
        if rule.without(frozenset({0})).name != rule.name:
            return
        expected = combine(rule, predictions, weights)
        for order in permutations(range(self.MEMBERS)):
            found = combine(rule, [predictions[one] for one in order], [weights[one] for one in order])
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)

    def test_missing_members(self) -> None:
        """Without some members the answer is that of the rule for the subset, whose weights are scaled up."""
        rule, predictions, weights = self.make_rule(), self.predictions(), self.weights()
        found = combine_arrived(rule, {3: predictions[3], 1: predictions[1]}, weights)
        subset = rule.without(frozenset({0, 2}))
        # Weights count relative to each other, so that a common factor changes nothing.
        expected = combine(subset, [predictions[1], predictions[3]], [7.0 * weights[1], 7.0 * weights[3]])
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)

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

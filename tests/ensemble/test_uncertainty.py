"""Uncertainty and its split: the identity, against independent formulas, and the limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.ensemble.combine.rules import NormalMixture, combine
from trainwright.ensemble.combine.uncertainty import InputDistance, decompose_uncertainty
from trainwright.ensemble.ensemble import find_ood_score
from trainwright.errors import EnsembleError

serialise_weights = st.lists(st.floats(0.01, 10), min_size=1, max_size=5)


class TestClasses:
    @settings(max_examples=60)
    @given(seed=st.integers(0, 10**6), weights=serialise_weights, sharp=st.sampled_from([0.1, 1.0, 8.0]))
    def test_identity(self, seed, weights, sharp):
        """Entropies in plain Python: total is the sum; the epistemic part is the mean divergence from the mean."""
        logits = sharp * np.random.default_rng(seed).normal(size=(len(weights), 6, 3))
        values = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        share = np.array(weights) / sum(weights)
        found = decompose_uncertainty(values, weights, "classes")
        mean = np.average(values, axis=0, weights=weights)
        divergence = (share[:, None, None] * values * np.log(values / mean)).sum(axis=(0, 2))
        np.testing.assert_allclose(found.total, -(mean * np.log(mean)).sum(axis=1), atol=1e-12)
        np.testing.assert_allclose(found.epistemic, divergence, atol=1e-9)
        np.testing.assert_allclose(found.total, found.aleatoric + found.epistemic, atol=1e-6)
        assert (found.epistemic >= 0).all()

    def test_ends(self):
        """Certain and contrary: all epistemic. Agreeing on even odds: all aleatoric. One member: epistemic 0."""
        sure = np.array([[1.0, 0.0]])
        torn = decompose_uncertainty([sure, sure[:, ::-1]], [1, 1], "classes")
        assert (torn.aleatoric[0], torn.epistemic[0]) == (0.0, pytest.approx(np.log(2)))
        even = decompose_uncertainty([np.array([[0.5, 0.5]])] * 2, [1, 3], "classes")
        assert (even.aleatoric[0], even.epistemic[0]) == (pytest.approx(np.log(2)), 0.0)
        assert decompose_uncertainty([np.array([[0.3, 0.7]])], [0.7], "classes").epistemic.tolist() == [0.0]

    def test_refusals(self):
        broken = [np.array([[0.5, 0.5], [0.5, np.nan]]), np.array([[0.5, 0.5], [0.5, 0.5]])]
        with pytest.raises(EnsembleError, match="row 1 has a mutual information of"):
            decompose_uncertainty(broken, [1, 1], "classes")


class TestValues:
    @settings(max_examples=60)
    @given(seed=st.integers(0, 10**6), weights=serialise_weights, far=st.sampled_from([0.0, 1e6]))
    def test_identity(self, seed, weights, far):
        """The total is the mixture's variance, and the parts are the weighted mean variance and variance of means."""
        draws = np.random.default_rng(seed)
        pairs = np.stack([far + draws.normal(size=(len(weights), 5, 2)), draws.random((len(weights), 5, 2)) + 0.01], -1)
        found = decompose_uncertainty(pairs, weights, "moments")
        share = np.array(weights) / sum(weights)
        centre = pairs[..., 0] - far
        between = np.tensordot(share, (centre - np.tensordot(share, centre, axes=1)) ** 2, axes=1)
        np.testing.assert_allclose(found.aleatoric, np.tensordot(share, pairs[..., 1], axes=1), rtol=1e-9)
        np.testing.assert_allclose(found.epistemic, between, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(found.total, found.aleatoric + found.epistemic, atol=1e-6)
        np.testing.assert_allclose(found.total, combine(NormalMixture(), pairs, weights)[..., 1], rtol=1e-9)
        assert found.per_row().total == pytest.approx(found.total.mean(axis=1))

    def test_without_variances(self):
        """Members that give no variance: the aleatoric part is unknown, not 0."""
        found = decompose_uncertainty([np.array([[1.0]]), np.array([[3.0]])], [1, 1], "values")
        assert found.aleatoric is None
        assert found.epistemic.tolist() == found.total.tolist() == [[1.0]]
        assert found.per_row().epistemic.tolist() == [1.0]

    def test_one_member(self):
        assert decompose_uncertainty([np.array([[[2.0, 0.5]]])], [0.3], "moments").epistemic.tolist() == [[0.0]]


class TestInputDistance:
    def draw(self, count, seed=0):
        """Two classes of correlated columns in units of their own."""
        draws = np.random.default_rng(seed)
        labels = draws.integers(0, 2, count)
        common = draws.normal(size=(count, 1))
        return (10.0 * labels[:, None] + common + 0.1 * draws.normal(size=(count, 3))) * [1.0, 1e4, 1e-4], labels

    def test_rows_of_no_class_are_further(self):
        """Between the classes, and off the line on which the columns move together, though each alone looks right."""
        x, labels = self.draw(300)
        found = InputDistance.fit(x, labels)
        usual = np.quantile(found.measure(self.draw(200, 1)[0]), 0.99)
        unit = np.array([1.0, 1e4, 1e-4])
        assert found.measure(np.array([[5.0, 5.0, 5.0], [1.0, -1.0, 1.0]]) * unit).min() > 2 * usual
        np.testing.assert_allclose(found.measure(x[:5]), InputDistance.fit(x[:, ::-1], labels).measure(x[:5, ::-1]))

    def test_is_that_of_its_definition(self):
        """With many rows the shrinkage vanishes, and the plain covariance's distance is left."""
        x = np.random.default_rng(0).normal(size=(20_000, 2)) @ np.array([[2.0, 1.0], [0.0, 0.5]])
        left = x[:5] - x.mean(axis=0)
        expected = np.einsum("ni,ij,nj->n", left, np.linalg.inv(np.cov(x.T)), left)
        np.testing.assert_allclose(InputDistance.fit(x).measure(x[:5]), expected, rtol=0.01)

    def test_fewer_rows_than_columns_and_a_constant_one(self):
        x = np.random.default_rng(0).normal(size=(5, 4, 5))
        x[:, 0, 0] = 3.0
        found = InputDistance.fit(x)
        assert np.isfinite(found.measure(x)).all()
        again = InputDistance.from_json(found.to_json())
        np.testing.assert_allclose(again.measure(x), found.measure(x), rtol=1e-3)

    @pytest.mark.parametrize(
        ("x", "labels"),
        [
            (np.ones((1, 3)), None),
            (np.ones((3, 3)), np.ones(2)),
            (np.ones((3, 2000)), None),
            (np.full((3, 3), np.nan), None),
        ],
    )
    def test_refusals(self, x, labels):
        with pytest.raises(EnsembleError, match=r"with_inputs: got .*allowed: at least 2 rows of at most 1024"):
            InputDistance.fit(x, labels)


def test_names_of_scores():
    distance = InputDistance.fit(np.random.default_rng(0).normal(size=(9, 2)))
    assert (find_ood_score(None, None), find_ood_score(None, distance)) == ("total", "distance")
    assert find_ood_score("epistemic", distance) == "epistemic"
    for wrong in ("distance", "epistemi"):
        with pytest.raises(EnsembleError, match=f"got '{wrong}'; allowed: distance, total, epistemic, distance after"):
            find_ood_score(wrong, None)

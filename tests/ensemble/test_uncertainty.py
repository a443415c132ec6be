"""Uncertainty and its split: the identity, against independent formulas, and the limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.ensemble.combine.rules import NormalMixture, combine
from trainwright.ensemble.combine.uncertainty import decompose_uncertainty
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


class TestOutOfDistribution:
    def test_a_row_that_members_disagree_on_is_further(self):
        """Agreeing members: 0 epistemic. Contrary ones: more, whatever the total."""
        one = np.array([[0.9, 0.1], [0.9, 0.1], [0.5, 0.5]])
        other = np.array([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])
        found = decompose_uncertainty([one, other], [1, 1], "classes")
        assert found.ood_score().argmax() == 1
        assert found.ood_score()[[0, 2]].tolist() == [0.0, 0.0]
        np.testing.assert_array_equal(found.ood_score("total"), found.total)

    def test_of_several_values_one_score_a_row(self):
        found = decompose_uncertainty([np.zeros((4, 3)), np.ones((4, 3))], [1, 1], "values")
        assert found.ood_score().shape == (4,)

    def test_unknown_score(self):
        found = decompose_uncertainty([np.ones((1, 1))], [1], "values")
        with pytest.raises(EnsembleError, match="got 'epistemi'; allowed: epistemic, total.*epistemic"):
            found.ood_score("epistemi")

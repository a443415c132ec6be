"""The Gaussian process against its dense formulas, its gradients against differences, its embedding by hand."""

import numpy as np
import pytest

from trainwright.search.bayes.gaussian_process import (
    Embedding,
    Hyperparameters,
    Posterior,
    fit_hyperparameters,
    negative_log_posterior,
)
from trainwright.search.bayes.improvement import ExpectedImprovement, log_h
from trainwright.space import Choice, Float, Int, Space, equals


@pytest.fixture
def data():
    generator = np.random.default_rng(0)
    owners = np.array([0, 1, 3, 2, 2])  # features need not lie in the order of their columns
    return generator.random((40, 5)), owners, generator.standard_normal(40)


HYPERPARAMETERS = Hyperparameters(lengths=np.array([0.3, 0.7, 1.5, 0.5]), signal=1.7, noise=0.01)


def matern(first, second, owners):
    """Evaluate the textbook formula, point by point."""
    values = np.empty((len(first), len(second)))
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            r = np.sqrt(5.0 * (((a - b) / HYPERPARAMETERS.lengths[owners]) ** 2).sum())
            values[i, j] = HYPERPARAMETERS.signal * (1.0 + r + r**2 / 3.0) * np.exp(-r)
    return values


def test_posterior_is_the_dense_formula(data):
    points, owners, y = data
    asked = np.random.default_rng(1).random((7, 5))
    posterior = Posterior.of(HYPERPARAMETERS, points, owners)
    mean, variance = posterior.predict(posterior.coefficients(y), asked)
    K = matern(points, points, owners) + HYPERPARAMETERS.noise * np.eye(40)
    across = matern(points, asked, owners)
    assert mean == pytest.approx(across.T @ np.linalg.solve(K, y), abs=1e-10)
    expected = HYPERPARAMETERS.signal - np.einsum("ij,ij->j", across, np.linalg.solve(K, across))
    assert variance == pytest.approx(expected, abs=1e-10)


def test_appended_rows_give_what_a_new_factor_gives(data):
    points, owners, _ = data
    whole = Posterior.of(HYPERPARAMETERS, points, owners)
    grown = Posterior.of(HYPERPARAMETERS, points[:11], owners)
    for row in range(11, 30):
        grown = grown.append(points[row : row + 1])
    grown = grown.append(points[30:])
    assert np.abs(grown.factor - whole.factor).max() < 1e-8


def test_gradient_of_the_fit_is_that_of_differences(data):
    points, owners, y = data
    for theta in np.random.default_rng(2).normal(0.0, 0.7, (3, 6)):
        _, gradient = negative_log_posterior(theta, points, owners, y)
        steps = 1e-6 * np.eye(6)
        found = [
            (
                negative_log_posterior(theta + s, points, owners, y)[0]
                - negative_log_posterior(theta - s, points, owners, y)[0]
            )
            / 2e-6
            for s in steps
        ]
        assert gradient == pytest.approx(found, rel=1e-6, abs=1e-6)


def test_the_fit_finds_the_columns_that_matter():
    """A function of the first column alone, with noise: the others get long scales, and the noise is found."""
    generator = np.random.default_rng(3)
    points = generator.random((80, 3))
    y = np.sin(9.0 * points[:, 0]) + 0.1 * generator.standard_normal(80)
    found = fit_hyperparameters(points, np.arange(3), y / y.std(), np.random.default_rng(0))
    assert found.lengths[0] < 1.0
    assert found.lengths[1:].min() > 3.0
    assert found.noise * y.var() == pytest.approx(0.01, rel=0.6)


@pytest.fixture
def space():
    return Space(x=Float(0.0, 1.0), o=Choice("a", "b", "c"), k=Int(1, 4), m=Float(0.0, 1.0, when=equals("o", "a")))


def test_distances_of_the_embedding(space):
    """Another choice is 1 away, an inactive unit lies off the line, and nothing else moves."""
    embedding = Embedding(space, fidelity=True)
    rows = np.array([[0.2, 0.0, 0.125, 0.5], [0.2, 1.0, 0.125, np.nan], [0.7, 0.0, 0.125, 0.9]])
    points = embedding(rows, np.array([1.0, 0.25, 1.0]))
    squares = {}
    for c in range(5):
        part = points[:, embedding.owners == c]
        squares[c] = [((part[0] - part[i]) ** 2).sum() for i in (1, 2)]
    assert squares[0] == pytest.approx([0.0, 0.25])
    assert squares[1] == pytest.approx([1.0, 0.0])
    assert squares[2] == [0.0, 0.0]
    assert squares[3] == pytest.approx([0.25, 0.16])
    assert squares[4] == pytest.approx([0.5625, 0.0])
    assert [points[0, embedding.unit_of[c]] for c in (0, 2, 3)] == [0.2, 0.125, 0.5]


def improvement(space, rows, losses, *, factors=(), objectives=None, bounds=None):
    embedding = Embedding(space, fidelity=False)
    hyperparameters = Hyperparameters(lengths=np.full(space.dimension, 0.4), signal=1.0, noise=1e-4)
    posteriors = [Posterior.of(hyperparameters, embedding(rows), embedding.owners) for _ in losses]
    m = objectives or len(losses)
    bounds = np.full(len(losses), np.inf) if bounds is None else np.array(bounds)
    return ExpectedImprovement(
        space, embedding, posteriors, losses, weights=np.full(m, 1.0 / m), bounds=bounds, factors=factors
    )


@pytest.mark.parametrize(("objectives", "bounds"), [(1, None), (1, [np.inf, 0.5]), (2, None), (3, [np.inf, 0.4, 1.0])])
def test_improvement_is_the_integral_over_the_posterior(objectives, bounds):
    """The mean gain of draws from the posterior, those that break a bound gaining nothing."""
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    generator = np.random.default_rng(4)
    outcomes = len(bounds) if bounds else objectives
    rows, asked, y = generator.random((9, 2)), generator.random((20, 2)), generator.standard_normal((outcomes, 9))
    found = improvement(space, rows, y, objectives=objectives, bounds=bounds)
    means, variances = found._predict(asked)
    draws = means + np.sqrt(variances) * generator.standard_normal((100_000, outcomes, len(asked)))
    ideal, weights = found._ideal[:, None], found._weights[:, None]
    gains = np.maximum(0.0, found._best - (weights * (draws[:, :objectives] - ideal)).max(axis=1))
    # A bound counts apart, also that of an objective: a product of both chances.
    kept = (draws <= np.array(bounds or [np.inf] * outcomes)[:, None]).mean(axis=0).prod(axis=0)
    expected = gains.mean(axis=0) * kept
    likely = expected > 1e-3  # draws say little of what hardly ever happens
    assert likely.sum() >= 2
    assert np.exp(found.predict(asked)[0])[likely] == pytest.approx(expected[likely], rel=0.05)


def test_where_nothing_is_legal_the_chance_to_be_legal_counts_alone():
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    generator = np.random.default_rng(8)
    rows, asked = generator.random((9, 2)), generator.random((50, 2))
    y = np.stack([generator.standard_normal(9), 1.0 + rows[:, 0]])
    found = improvement(space, rows, y, objectives=1, bounds=[np.inf, 0.9])
    means, variances = found._predict(asked)
    chances = (0.9 - means[1]) / np.sqrt(variances[1])
    assert np.argsort(found.predict(asked)[0]).tolist() == np.argsort(chances).tolist()
    assert found.order[0] == np.argmin(means_at_told(found, y)[1])


def means_at_told(found, y):
    return np.stack([p.predict(alpha, p.points)[0] for p, alpha in zip(found._posteriors, found._alphas, strict=True)])


@pytest.mark.parametrize("factors", [[], [lambda rows: 3.0 * rows[:, 2] ** 2, lambda rows: -rows[:, 0]]])
@pytest.mark.parametrize(("objectives", "bounds"), [(1, None), (1, [np.inf, 0.5]), (2, None), (2, [0.2, 0.5, 0.3])])
def test_gradient_of_the_climb_is_that_of_differences(objectives, bounds, factors):
    space = Space(x=Float(0.0, 1.0), o=Choice("a", "b"), y=Float(0.0, 1.0))
    generator = np.random.default_rng(5)
    outcomes = generator.standard_normal((len(bounds) if bounds else objectives, 9))
    found = improvement(
        space, space.sample(generator, 9), outcomes, factors=factors, objectives=objectives, bounds=bounds
    )
    # The nodes of several objectives' integral move with the point, which its gradient leaves out.
    near = 1e-5 if objectives == 1 else 1e-2
    places, columns, rough = np.array([0, 1]), np.array([0, 2]), 1e-4 if factors else 1e-7
    for row in space.sample(generator, 4):
        point = found._embedding(row[None, :])[0]
        _, gradient = found.descent(row[columns], point.copy(), places, row, columns)
        values = [
            [found.descent(row[columns] + sign * step, point.copy(), places, row, columns)[0] for sign in (1, -1)]
            for step in 1e-6 * np.eye(2)
        ]
        differences = [(up - down) / 2e-6 for up, down in values]
        assert gradient == pytest.approx(differences, rel=near, abs=max(rough, near * np.abs(differences).max()))


def test_what_is_believed_is_not_asked_again_and_leaves_the_mean():
    space = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    generator = np.random.default_rng(6)
    found = improvement(space, generator.random((9, 2)), generator.standard_normal((1, 9)))
    asked = generator.random((50, 2))
    best = asked[[np.argmax(found.predict(asked)[0])]]
    means, before = found._predict(asked)[0], found.predict(best)[0]
    found.believe_pending(best)
    assert found._predict(asked)[0] == pytest.approx(means, abs=1e-12)
    assert found.predict(best)[0] < before - 1.0


def test_log_h_keeps_its_digits():
    """Values of mpmath with 60 digits."""
    u = np.array([-1e5, -2000.0, -999.0, -100.0, -30.0, -5.0, -1.0001, -0.9999, 0.0, 5.0])
    expected = [
        -5000000023.94479, -2000016.1207442023, -499015.2324510965, -5010.12957880025, -457.724653760598,
        -16.74430116266099, -2.485311456445883, -2.484930602199176, -0.9189385332046728, 1.6094379231264313,
    ]  # fmt: skip
    assert log_h(u) == pytest.approx(expected, rel=1e-9)

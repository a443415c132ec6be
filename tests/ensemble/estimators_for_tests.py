"""Factories of members that are no networks, which tests import by name."""

import numpy as np


class Logistic:
    """A callable: probabilities of two classes from the rows' weighted sums."""

    def __init__(self, weights):
        self.weights = np.asarray(weights)

    def __call__(self, x):
        share = 1 / (1 + np.exp(-(x @ self.weights)))
        return np.stack([1 - share, share], axis=1)


def load_logistic(params, folder):
    return Logistic(np.load(folder / "weights.npy"))


def load_estimator(params, folder):
    import joblib

    return joblib.load(folder / "model.joblib")


def load_other(params, folder):
    """Return what predicts three classes, where two were left."""
    return lambda x: np.full((len(x), 3), 1 / 3)

"""LARS and LAMB are the published formulas, resume to the bit, and come by name."""

import math

import pytest
import torch

from trainwright.errors import TrialError
from trainwright.train.large_batch import LAMB, LARS, make_optimizer

WEIGHTS = [[1.0, -2.0, 0.5], [0.0, 0.0]]
GRADIENTS = [[[0.1, 0.2, -0.3], [1.0, -1.0]], [[-0.2, 0.1, 0.4], [0.5, 0.25]], [[0.3, 0.3, 0.3], [0.0, 0.0]]]


def norm(values):
    return math.sqrt(sum(value * value for value in values))


def lars(weights, gradients, momentum, *, lr, mass, decay, trust):
    """One step of a layer by algorithm 1 of arXiv 1708.03888."""
    below = norm(gradients) + decay * norm(weights)
    local = trust * norm(weights) / below if norm(weights) and below else 1.0
    momentum = [mass * v + lr * local * (g + decay * w) for v, g, w in zip(momentum, gradients, weights, strict=True)]
    return [w - v for w, v in zip(weights, momentum, strict=True)], momentum


def lamb(weights, gradients, state, step, *, lr, betas, eps, decay):
    """One step of a layer by algorithm 2 of arXiv 1904.00962."""
    first = [betas[0] * m + (1 - betas[0]) * g for m, g in zip(state[0], gradients, strict=True)]
    second = [betas[1] * v + (1 - betas[1]) * g * g for v, g in zip(state[1], gradients, strict=True)]
    update = [
        (m / (1 - betas[0] ** step)) / (math.sqrt(v / (1 - betas[1] ** step)) + eps) + decay * w
        for m, v, w in zip(first, second, weights, strict=True)
    ]
    ratio = norm(weights) / norm(update) if norm(weights) and norm(update) else 1.0
    return [w - lr * ratio * u for w, u in zip(weights, update, strict=True)], (first, second)


def layers():
    return [torch.nn.Parameter(torch.tensor(values, dtype=torch.float64)) for values in WEIGHTS]


def take_steps(optimizer, parameters, steps):
    for gradients in steps:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()


def test_lars_is_the_formula():
    parameters = layers()
    take_steps(LARS(parameters, lr=0.5, momentum=0.9, weight_decay=0.01, trust=0.02), parameters, GRADIENTS)
    for place, weights in enumerate(WEIGHTS):
        momentum = [0.0] * len(weights)
        for step in GRADIENTS:
            weights, momentum = lars(weights, step[place], momentum, lr=0.5, mass=0.9, decay=0.01, trust=0.02)  # noqa: PLW2901
        assert parameters[place].tolist() == pytest.approx(weights, rel=1e-12)


def test_lamb_is_the_formula():
    parameters = layers()
    take_steps(LAMB(parameters, lr=0.1, weight_decay=0.01), parameters, GRADIENTS)
    for place, weights in enumerate(WEIGHTS):
        state = [0.0] * len(weights), [0.0] * len(weights)
        for number, step in enumerate(GRADIENTS, 1):
            weights, state = lamb(  # noqa: PLW2901
                weights, step[place], state, number, lr=0.1, betas=(0.9, 0.999), eps=1e-6, decay=0.01
            )
        assert parameters[place].tolist() == pytest.approx(weights, rel=1e-12)


@pytest.mark.parametrize("name", ["lars", "LAMB", "adamw"])
def test_resumed_to_the_bit(name):
    whole, first = layers(), layers()
    take_steps(make_optimizer(name, whole, lr=0.1, weight_decay=0.1), whole, GRADIENTS)
    before = make_optimizer(name, first, lr=0.1, weight_decay=0.1)
    take_steps(before, first, GRADIENTS[:1])
    after = make_optimizer(name, first, lr=9.0)
    after.load_state_dict(before.state_dict())
    take_steps(after, first, GRADIENTS[1:])
    for one, other in zip(whole, first, strict=True):
        assert torch.equal(one, other)


def test_other_names():
    with pytest.raises(TrialError, match=r"make_optimizer: got 'lamp'; allowed: .*'lamb', 'lars'.*did you mean"):
        make_optimizer("lamp", layers())

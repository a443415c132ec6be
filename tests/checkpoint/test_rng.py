"""Random states: what was captured draws the same again, wherever it is put back."""

import json
import random

import numpy as np
import torch

from trainwright.checkpoint.state.differences import Effect
from trainwright.checkpoint.state.rng import capture_rng_state, restore_rng_state


def draws():
    numbers = [*np.random.rand(2), np.random.randn()]  # noqa: NPY002 -- the global generator is the one in question
    return [random.random(), random.gauss(0, 1), *numbers, *torch.rand(3).tolist()]


def test_every_generator_goes_on_where_it_stood():
    """Half of a pair of normal numbers is kept too: both libraries draw them in pairs."""
    draws()
    states = capture_rng_state()
    first = draws()
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 -- likewise
    torch.manual_seed(0)
    assert draws() != first
    assert restore_rng_state(states) == []
    assert draws() == first


def test_capturing_draws_nothing():
    states = capture_rng_state()
    first = draws()
    restore_rng_state(states)
    capture_rng_state()
    assert draws() == first


def test_states_are_tensors_and_plain_values():
    """Nothing in them needs a pickle: each leaf is a tensor of a common type, or JSON."""

    def check(value):
        if isinstance(value, torch.Tensor):
            assert value.dtype in {torch.int64, torch.uint8}
        elif isinstance(value, dict):
            assert all(isinstance(key, str) for key in value)
            for item in value.values():
                check(item)
        elif isinstance(value, list):
            # One state for each CUDA device.
            for item in value:
                check(item)
        else:
            assert json.loads(json.dumps(value)) == value

    check(capture_rng_state())


def test_what_was_captured_is_a_copy():
    states = capture_rng_state()
    kept = states["torch"].clone()
    draws()
    assert torch.equal(states["torch"], kept)


def test_devices_that_are_not_here_are_told():
    states = capture_rng_state() | {"cuda": [torch.zeros(16, dtype=torch.uint8)] * (torch.cuda.device_count() + 1)}
    if torch.cuda.is_available():
        states["cuda"][:-1] = torch.cuda.get_rng_state_all()
    (difference,) = restore_rng_state(states)
    assert (difference.item, difference.effect) == ("random.cuda", Effect.DRAWS)
    assert difference.saved == difference.now + 1


def test_another_kind_of_generator_is_told():
    """NumPy's global generator can be of another kind; then the rest is restored all the same."""
    states = capture_rng_state()
    first = draws()
    states["numpy"] = {**states["numpy"], "bit_generator": "PCG64"}
    (difference,) = restore_rng_state(states)
    assert (difference.item, difference.saved, difference.now) == ("random.numpy", "PCG64", "MT19937")
    assert draws()[0] == first[0]

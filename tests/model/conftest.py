"""Models of the zoo as a fixture."""

import pytest
from zoo import FAST, SMALL


@pytest.fixture(params=[pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in SMALL])
def name(request):
    """Give the name of a model of the zoo; the larger ones are for the slow suite."""
    return request.param

"""What the tests of studies share."""

import pytest


@pytest.fixture(scope="session")
def torch():
    """Load torch."""
    return pytest.importorskip("torch")

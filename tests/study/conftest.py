"""What the tests of studies share."""

import gc

import pytest


@pytest.fixture(scope="session")
def torch():
    """Load torch, before `frozen` looks."""
    return pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def frozen():
    """Keep what is loaded from the garbage collector: with torch, a collection after each trial takes long."""
    gc.freeze()
    yield
    gc.unfreeze()

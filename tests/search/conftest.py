"""What the tests of searchers share."""

import pytest


@pytest.fixture
def uncompiled_botorch(monkeypatch):
    """Keep BoTorch at its own Python: a first use would have the C++ compiler at work for a minute."""
    monkeypatch.setattr("botorch.acquisition.multi_objective.logei._load_attempted", True)

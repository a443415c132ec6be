"""A cluster for the tests of the oracle."""

import pytest
from oracle_cases import make_cluster


@pytest.fixture
def cluster():
    return make_cluster()

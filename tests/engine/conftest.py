"""A Ray cluster for the tests of a module."""

import pytest


@pytest.fixture(scope="module")
def cluster():
    """Start a cluster on this machine with four logical CPUs; engines find it joined."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()

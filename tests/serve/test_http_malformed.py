"""Malformed requests by the hundred, then by the thousand: only 4xx, nothing left behind, and right answers after."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.serve.malformed import LEFT, attack, held
from http_for_tests import ensemble, inputs

from trainwright.serve import Client, Deployment, DeploymentPlan, Server
from trainwright.serve.service import Limits

LIMITS = Limits(body_bytes=2**18, rows=200)
X = inputs(7)


def attacked(server, expected, count, seed):
    """Attack a server and return the statuses; it answers rightly before and after, and holds what it held."""
    with Client(server.url) as client:
        np.testing.assert_allclose(client.predict(X), expected, atol=1e-6)
        attack(server.port, seed, range(count, count + max(100, count // 10)), shape=(5,))
        before = held()
        found = attack(server.port, seed, range(count), shape=(5,))
        after = held()
        np.testing.assert_allclose(client.predict(X), expected, atol=1e-6)
    assert {status for status in found if not status.startswith("4")} <= {LEFT}, found
    assert after["threads"] <= before["threads"]
    assert after["segments"] <= before["segments"]
    assert after["descriptors"] <= before["descriptors"] + 3  # a connection that was just left may not be closed yet
    return before, after


def test_five_hundred(tmp_path):
    found = ensemble(tmp_path, [{}])
    plan = DeploymentPlan.simple(found, "cpu", in_process=True)
    with Deployment(found, plan) as service, Server(service, port=0, limits=LIMITS) as server:
        attacked(server, found.predict(X), 500, seed=1)


@pytest.mark.slow
def test_ten_thousand(tmp_path):
    """Over a deployment with workers; resident memory grows by less than 5 %."""
    found = ensemble(tmp_path, [{}, {"hidden": 4}])
    with Deployment(found) as service, Server(service, port=0, limits=LIMITS) as server:
        before, after = attacked(server, found.predict(X), 10_000, seed=0)
    assert after["bytes"] < 1.05 * before["bytes"]

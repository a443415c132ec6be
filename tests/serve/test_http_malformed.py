"""Malformed requests by the hundred, then by the thousand: only 4xx, nothing left behind, and right answers after."""

import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.serve.malformed import LEFT, attack, held
from http_for_tests import ensemble, inputs

from trainwright.serve import Client, Deployment, DeploymentPlan, Server
from trainwright.serve.http.limits import Limits

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


@pytest.mark.slow
def test_schema_of_the_openapi(tmp_path):
    """Requests made from the OpenAPI document, fitting and not: never a server error, and replies as it says."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, given, settings
    from hypothesis.errors import Unsatisfiable

    found = ensemble(tmp_path, [{}])
    plan = DeploymentPlan.simple(found, "cpu", in_process=True)
    with Deployment(found, plan) as service, Server(service, port=0, limits=LIMITS) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        operations = [each.ok() for each in schema.get_all_operations()]
        assert len(operations) > 10
        asked = 0
        for operation in operations:
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

                @settings(max_examples=25, suppress_health_check=list(HealthCheck), database=None)
                @given(case=operation.as_strategy(generation_mode=mode))
                def ask(case):
                    reply = case.call(base_url=server.url, timeout=30)
                    assert reply.status_code < 500, (case.as_curl_command(), reply.text)
                    case.validate_response(reply, checks=[schemathesis.checks.not_a_server_error])

                with contextlib.suppress(Unsatisfiable):  # an operation that takes nothing cannot be asked wrongly
                    ask()
                    asked += 1
    assert asked >= len(operations)

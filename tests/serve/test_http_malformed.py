"""Malformed requests by the hundred, then by the thousand: only 4xx, nothing left behind, and right answers after."""

import contextlib
import socket
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


INFER = b"POST /v2/models/ensemble/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
RAW = {
    "a length and chunks": INFER
    + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\n\r\n",
    "two lengths": INFER + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "chunks of no request": INFER + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
    "a length below 0": INFER + b"Content-Length: -1\r\n\r\n",
    "a length of 5,000 digits": INFER + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "a length in other digits": INFER + "Content-Length: \u0663\r\n\r\nabc".encode(),
    "200,000 headers": INFER + b"".join(b"X-%d: a\r\n" % number for number in range(200_000)) + b"\r\n",
    "a header of 50 MB": INFER + b"X: " + b"a" * (50 << 20) + b"\r\n\r\n",
    "a path of 20 MB": b"GET /" + b"a" * (20 << 20) + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a NUL byte in the path": b"GET /v2\x00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "lines that end in LF alone": b"GET /v2 HTTP/1.1\nHost: 127.0.0.1\n\n",
    "a folded header": b"GET /v2 HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\r\n b\r\n\r\n",
    "a blank before the colon": INFER + b"Content-Length : 3\r\n\r\nabc",
}


def test_requests_that_proxies_and_servers_read_apart(tmp_path):
    """Each is refused at once, nothing behind it is taken for a request, and the next client is served."""
    found = ensemble(tmp_path, [{}])
    plan = DeploymentPlan.simple(found, "cpu", in_process=True)
    with Deployment(found, plan) as service, Server(service, port=0, limits=LIMITS) as server:
        for name, request in RAW.items():
            answer = answer_of(server.port, request)
            # A connection that is closed in the middle of a flood may have lost its answer.
            assert answer.startswith(b"HTTP/1.1 400") or (not answer and len(request) > LIMITS.body_bytes), name
            assert answer.count(b"HTTP/1.1 ") <= 1, name
        with Client(server.url) as client:
            np.testing.assert_allclose(client.predict(X), found.predict(X), atol=1e-6)


def answer_of(port, request):
    """Send bytes as they are and return all that comes back."""
    answer = b""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        answer = connection.recv(65536)
        # A connection that stays open says no more: what looks like a second request in the first would be answered.
        connection.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while part := connection.recv(65536):
                answer += part
    return answer


@pytest.mark.slow
def test_ten_thousand(tmp_path):
    """Over a deployment with workers; resident memory grows by less than 5 %."""
    found = ensemble(tmp_path, [{}, {"hidden": 4}])
    plan = DeploymentPlan.simple(found, "cpu")
    with Deployment(found, plan) as service, Server(service, port=0, limits=LIMITS) as server:
        before, after = attacked(server, found.predict(X), 10_000, seed=0)
    assert after["bytes"] < 1.05 * before["bytes"]

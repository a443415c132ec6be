"""Answered requests leave nothing that only the garbage collector would find: its passes stop all others."""

import gc
import http.client

import numpy as np
import numpy_members as members
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")

from http_for_tests import INFER, Scripted, ensemble, inputs

from trainwright.serve import Options, Server
from trainwright.serve.http.client import encode

_REQUESTS = 50


def count_garbage(work):
    """Return how many unreachable objects are left for each request."""
    work()  # what is made at first use
    gc.collect()
    gc.disable()
    try:
        for _ in range(_REQUESTS):
            work()
        return gc.collect() / _REQUESTS
    finally:
        gc.enable()


def test_over_http(tmp_path):
    found = ensemble(tmp_path, [{}, {"hidden": 4}])
    content, headers = encode(inputs(3), Options(uncertainty=True), binary=False)
    with Scripted(found) as service, Server(service, port=0) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))

        def ask():
            connection.request("POST", INFER, content, headers)
            assert connection.getresponse().read().startswith(b'{"model_name"')

        assert count_garbage(ask) <= 1
        connection.close()


def test_in_workers(tmp_path):
    found = members.ensemble(tmp_path, 2)
    with members.Numpy(found, members.plan(found)) as service:
        x = members.inputs(200)
        np.testing.assert_allclose(service.predict(x), members.expected(found, x), atol=1e-12)
        assert count_garbage(lambda: service.predict(x)) <= 1

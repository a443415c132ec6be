"""The load generator: reproducible arrivals, latencies from the time meant, and runs that say when they are no good."""

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))

from benchmarks.serve._load import LoadTest, arrivals
from http_for_tests import Scripted, ensemble

from trainwright.errors import Overloaded, ServeConfigError, ServeError
from trainwright.serve import Server


class TestArrivals:
    def test_poisson(self):
        """The gaps of a Poisson process have mean and deviation 1 / rate; equal seeds give equal times."""
        found = arrivals("poisson", 50.0, 200.0, seed=3)
        np.testing.assert_array_equal(found, arrivals("poisson", 50.0, 200.0, seed=3))
        assert not np.array_equal(found[:100], arrivals("poisson", 50.0, 200.0, seed=4)[:100])
        assert (np.diff(found) > 0).all()
        assert 0 < found[0] < found[-1] < 200
        assert len(found) == pytest.approx(10_000, abs=400)  # 4 standard deviations
        assert np.diff(found).std() == pytest.approx(0.02, rel=0.1)

    def test_constant(self):
        np.testing.assert_allclose(arrivals("constant", 10.0, 0.55, seed=0), [0, 0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    found = ensemble(tmp_path_factory.mktemp("served"), [{}])
    with Scripted(found) as service, Server(service, port=0) as server:
        yield service, server


def test_answers_are_checked(served):
    """With a reference every answer is compared; one that differs is counted wrong."""
    service, server = served
    load = LoadTest(rate=40, rows=(1, 9), seconds=0.8, warm_up_seconds=0.1, seed=5)
    found = load.run(server.url, reference=service.ensemble.predict)
    assert found.statuses == {"200": found.requests}
    assert (found.wrong, found.checked) == (0, found.requests)
    assert found.latency_ms["p50"] <= found.latency_ms["p99"] <= found.latency_ms["max"]
    assert load.run(server.url, reference=lambda x: service.ensemble.predict(x) + 1e-3).wrong == found.requests


@pytest.mark.parametrize("binary", [True, False])
def test_closed_loop(served, binary):
    found = LoadTest(kind="closed", clients=3, seconds=0.5, warm_up_seconds=0.1, binary=binary).run(served[1].url)
    assert set(found.statuses) == {"200"}
    assert found.asked_rate is None
    assert found.achieved_rate > 0
    assert found.to_json()["p99_ms"] == found.latency_ms["p99"]


def test_stalls_are_seen(served, monkeypatch):
    """While the server stalls for 300 ms, what should have been sent waits: an open loop's p90 shows it.

    A closed loop's does not, for it sends one request meanwhile.
    """
    stalled = threading.Event()

    def stall(x, options):
        if not stalled.is_set():
            stalled.set()
            time.sleep(0.3)

    found = {}
    for kind in ("constant", "closed"):
        stalled.clear()
        monkeypatch.setattr(served[0], "script", stall)
        load = LoadTest(rate=100, kind=kind, clients=1 if kind == "closed" else 64, seconds=1.0, warm_up_seconds=0.0)
        found[kind] = load.run(served[1].url).latency_ms
    assert found["constant"]["p90"] > 100
    assert found["constant"]["p90"] > 2 * found["closed"]["p90"]


def test_refusals_make_a_run_invalid(served, monkeypatch):
    monkeypatch.setattr(served[0], "script", lambda x, options: Overloaded("queue: full", 1.0))
    found = LoadTest(rate=40, kind="constant", seconds=0.5, warm_up_seconds=0.0).run(served[1].url)
    assert found.statuses == {"429": 20}
    assert not found.valid
    assert "0.0 answers a second of 40.0" in found.why
    assert found.latency_ms["p50"] is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rate": 0}, "LoadTest.rate: got 0; allowed: a number > 0"),
        ({"seconds": float("inf")}, "LoadTest.seconds"),
        ({"kind": "uniform"}, "LoadTest.kind: got 'uniform'; allowed: 'poisson', 'constant', 'closed'"),
        ({"rows": (4, 2)}, "LoadTest.rows"),
        ({"warm_up_seconds": -1}, "LoadTest.warm_up_seconds"),
    ],
)
def test_refusals(settings, sentence):
    with pytest.raises(ServeConfigError, match=sentence):
        LoadTest(**settings)


def test_nobody_there(served):
    server = Server(served[0], port=0).start()
    server.stop()
    with pytest.raises(ServeError, match="cannot be asked"):
        LoadTest(seconds=0.1).run(server.url)

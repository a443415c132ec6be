"""The client: answers as those of the ensemble, the server's sentences as errors, and patience with limits."""

import time
from concurrent.futures import Future

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")

from http_for_tests import Scripted, ensemble, inputs

from trainwright.errors import DeadlinePassed, NotReady, Overloaded, RequestError, ServeError
from trainwright.serve import Client, Options, Response, Server

TOKEN = "a-token-of-twenty-letters"  # noqa: S105 -- of these tests
X = inputs(40, seed=3)


@pytest.fixture(scope="module", params=["classes", "moments", "values"])
def served(request, tmp_path_factory):
    found = ensemble(tmp_path_factory.mktemp("served"), [{}, {"hidden": 4}], kind=request.param, weights=[0.4, 0.6])
    with Scripted(found) as service, Server(service, port=0) as server:
        yield service, server


@pytest.fixture(params=[True, False], ids=["binary", "json"])
def client(request, served):
    with Client(served[1].url, binary=request.param, give_up_seconds=1.5) as client:
        yield client


def test_answers(client, served):
    """Predictions, members and uncertainty are the ensemble's own, to 1e-6, whichever way they travel."""
    whole = served[0].ensemble
    np.testing.assert_allclose(client.predict(X), whole.predict(X), atol=1e-6)
    np.testing.assert_allclose(client.predict(X.astype(np.float64)), whole.predict(X), atol=1e-6)
    np.testing.assert_allclose(client.predict(X[::2]), whole.predict(X[::2]), atol=1e-6)
    answer = client.ask(X, Options(members=True, uncertainty=True))
    expected = whole.uncertainty(X)
    assert answer.uncertainty.measure == expected.measure
    np.testing.assert_allclose(answer.uncertainty.total, expected.total, atol=1e-6)
    np.testing.assert_allclose(answer.uncertainty.epistemic, expected.epistemic, atol=1e-6)
    assert (answer.uncertainty.aleatoric is None) == (expected.aleatoric is None)
    assert (answer.used, answer.missing, answer.weight, set(answer.members)) == ((10, 11), {}, 1.0, {10, 11})


@pytest.mark.parametrize("served", ["classes"], indirect=True)
class TestRefusals:
    def test_facts(self, client):
        assert client.ready()
        assert client.metadata()["inputs"][0]["shape"] == [-1, 5]
        assert client.ensemble()["output"] == "classes"

    def test_sentences(self, client, served):
        with pytest.raises(RequestError, match=r"inputs\[0\].shape: got \[40, 4\]; allowed: \['N', 5\]"):
            client.predict(X[:, :4])
        with pytest.raises(RequestError, match="datatype: got complex128; allowed: bool, uint8"):
            client.predict(X.astype(complex))
        with Client(served[1].url, name="other") as other, pytest.raises(RequestError, match="allowed: ensemble"):
            other.predict(X)
        with pytest.raises(DeadlinePassed, match="deadline_ms"):
            client.predict(X, deadline_ms=1e-6)

    def test_asks_again(self, client, served, monkeypatch):
        """A full queue is asked again after the time it names, until it answers or the client's time is up."""
        calls = []

        def full_twice(x, options):
            calls.append(time.monotonic())
            return Overloaded("queue: full", 0.3) if len(calls) == 1 else None

        monkeypatch.setattr(served[0], "script", full_twice)
        assert len(client.predict(X)) == 40
        assert len(calls) == 2
        assert calls[1] - calls[0] >= 0.99  # the header counts in whole seconds
        for error in (Overloaded("queue: full", 0.3), NotReady("starts", 0.3)):
            monkeypatch.setattr(served[0], "script", lambda x, options, error=error: error)
            with pytest.raises(type(error), match=str(error)):
                client.predict(X)

    def test_nobody_there(self, served):
        server = Server(served[0], port=0).start()
        url = server.url
        server.stop()
        with Client(url) as client:
            assert not client.ready()
            with pytest.raises(ServeError, match="cannot be asked"):
                client.predict(X)
        with pytest.raises(RequestError, match="allowed: http://host:port"):
            Client("127.0.0.1:8000")

    def test_late(self, served, monkeypatch):
        monkeypatch.setattr(served[0], "script", lambda x, options: Future())
        with (
            Client(served[1].url, timeout_seconds=0.2) as client,
            pytest.raises(DeadlinePassed, match="timeout_seconds"),
        ):
            client.predict(X)

    def test_degraded(self, client, served, monkeypatch):
        answer = Future()
        answer.set_result(Response(prediction=np.ones((2, 3)) / 3, used=(10,), missing={11: "was lost"}, weight=0.4))
        monkeypatch.setattr(served[0], "script", lambda x, options: answer)
        found = client.ask(X[:2])
        assert (found.degraded, found.missing, found.weight) == (True, {11: "was lost"}, 0.4)

    def test_token(self, served):
        with Server(served[0], port=0, token=TOKEN) as server:
            with Client(server.url) as client, pytest.raises(RequestError, match="a token is needed"):
                client.predict(X)
            with Client(server.url, token=TOKEN) as client:
                assert len(client.predict(X)) == 40

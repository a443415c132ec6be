"""The endpoints over real sockets: what they answer, in JSON and binary, and which status each refusal has."""

import contextlib
import json
import socket
import time
from concurrent.futures import Future
from dataclasses import replace

import httpx
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")

from http_for_tests import HTTP, INFER, Scripted, ask, body, ensemble, inputs, values

from trainwright.errors import (
    DeadlinePassed,
    InputError,
    ListenError,
    NotReady,
    Overloaded,
    RequestError,
    ServeConfigError,
    ServeError,
)
from trainwright.serve import Response
from trainwright.serve.http import connection
from trainwright.serve.http.infer_request import Signature
from trainwright.serve.http.server import Server
from trainwright.serve.service import Limits

TOKEN = "a-token-of-twenty-letters"  # noqa: S105 -- of these tests
X = inputs(3)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return an ensemble of two, and a server in front of a service that can be scripted."""
    found = ensemble(tmp_path_factory.mktemp("served"), [{}, {"hidden": 4}], weights=[0.7, 0.3])
    service = Scripted(found)
    limits = Limits(body_bytes=20_000, rows=40, body_seconds=1.0)
    with service, Server(service, port=0, limits=limits) as server:
        yield service, server


@pytest.fixture
def url(served):
    return served[1].url


@pytest.fixture
def script(served, monkeypatch):
    """Return a function that sets what the service does."""
    return lambda told: monkeypatch.setattr(served[0], "script", lambda x, options: told)


def refused(reply, status, *words):
    assert reply.status_code == status, reply.text
    told = reply.json()["error"]
    assert all(word in told for word in words), told
    return reply


class TestProtocol:
    def test_server(self, url):
        assert HTTP.get(f"{url}/v2").json()["extensions"][0] == "binary_tensor_data"
        assert HTTP.get(f"{url}/v2/health/live").json() == {"live": True}
        assert HTTP.get(f"{url}/v2/health/ready").json() == {"ready": True}
        assert HTTP.get(f"{url}/v2/models/ensemble/ready").json() == {"ready": True}

    def test_metadata(self, url):
        told = HTTP.get(f"{url}/v2/models/ensemble/versions/1").json()
        assert told == HTTP.get(f"{url}/v2/models/ensemble").json()
        assert told["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 5]}]
        assert {one["name"] for one in told["outputs"]} >= {"prediction", "uncertainty_epistemic", "member_10"}

    def test_ensemble(self, url, served):
        told = HTTP.get(f"{url}/v2/ensembles/ensemble").json()
        assert [(one["trial"], one["weight"]) for one in told["members"]] == [(10, 0.7), (11, 0.3)]
        assert told["rule"] == {"name": "weighted"}
        assert [one["alive"] for one in told["state"]["members"]] == [True, True]

    @pytest.mark.parametrize("binary", [True, False])
    def test_prediction(self, url, served, binary):
        reply = ask(url, X, binary=binary)
        assert reply.status_code == 200
        told = json.loads(
            reply.content[: int(reply.headers.get("Inference-Header-Content-Length", len(reply.content)))]
        )
        assert told["parameters"] == {
            "degraded": False,
            "members_used": [10, 11],
            "members_missing": {},
            "weight_used": 1.0,
            "ensemble": "ensemble",
        }
        assert ("Inference-Header-Content-Length" in reply.headers) == binary
        expected = served[0].ensemble.predict(X)
        if binary:
            np.testing.assert_allclose(np.frombuffer(reply.content[-72:]).reshape(3, 3), expected, atol=1e-6)
        else:
            np.testing.assert_allclose(values(reply), expected, atol=1e-6)

    def test_nested_data_and_names(self, url, served):
        reply = HTTP.post(url + INFER, json=body(X, data=X.tolist(), id="seven"))
        assert reply.json()["id"] == "seven"
        np.testing.assert_allclose(values(reply), served[0].ensemble.predict(X), atol=1e-6)

    def test_options(self, url, served):
        options = {"return_members": True, "return_uncertainty": True}
        told = HTTP.post(url + INFER, json=body(X, parameters=options))
        parameters = told.json()["parameters"]
        assert (parameters["members_used"], parameters["degraded"]) == ([10, 11], False)
        assert parameters["uncertainty_measure"] == "entropy"
        np.testing.assert_allclose(values(told, "member_10").sum(axis=1), 1.0, rtol=1e-12)
        assert (values(told, "uncertainty_epistemic") > 0.0).all()

    def test_named_outputs(self, url, served):
        """Only what is named comes, in binary where that is asked for, and naming it is asking for it."""
        outputs = [{"name": "member_11", "parameters": {"binary_data": True}}, {"name": "uncertainty_total"}]
        reply = HTTP.post(url + INFER, json=body(X, outputs=outputs))
        length = int(reply.headers["Inference-Header-Content-Length"])
        told = json.loads(reply.content[:length])
        assert [one["name"] for one in told["outputs"]] == ["uncertainty_total", "member_11"]
        assert len(reply.content) == length + 72

    def test_degraded(self, url, script):
        answer = Future()
        answer.set_result(Response(prediction=np.ones((3, 3)) / 3, used=(10,), missing={11: "was lost"}, weight=0.7))
        script(answer)
        reply = HTTP.post(url + INFER, json=body(X))
        assert reply.headers["X-Trainwright-Degraded"] == "11"
        told = reply.json()["parameters"]
        assert (told["degraded"], told["members_missing"], told["weight_used"]) == (True, {"11": "was lost"}, 0.7)

    def test_metrics(self, url):
        ask(url, X)
        text = HTTP.get(f"{url}/metrics").text
        assert 'trainwright_requests_total{endpoint="infer",status="200"}' in text
        assert 'trainwright_phase_seconds_count{phase="answer",model="ensemble",version="1"}' in text


CHANGES = [
    ({"name": "x"}, "inputs[0].name: got 'x'; allowed: 'input'"),
    ({"datatype": "FP31"}, "inputs[0].datatype: got 'FP31'; allowed: "),
    ({"datatype": "BYTES"}, "inputs[0].datatype: got 'BYTES'"),
    ({"datatype": "INT64", "data": [1] * 15}, "got INT64; allowed: FP32, for the networks take float32"),
    ({"shape": [3, 4]}, "inputs[0].shape: got [3, 4]; allowed: ['N', 5]"),
    ({"shape": [0, 5]}, "inputs[0].shape[0]: got 0; allowed: greater than or equal to 1"),
    ({"shape": "3"}, "inputs[0].shape: got '3'"),
    ({"shape": [True, 5]}, "inputs[0].shape"),
    ({"data": [1.0] * 14}, "of 14 values; allowed: a list of 15"),
    ({"data": [[1.0] * 5, [1.0] * 5, [1.0] * 4]}, "nested as shape [3, 5]"),
    ({"data": ["1"] * 15}, "got '1'; allowed: numbers"),
    ({"data": [None] * 15}, "got None; allowed: numbers"),
    ({"data": [10**30] * 15}, "beyond 64 bits"),
    ({"data": [1e39] * 15}, "value 0 is not finite or not within FP32"),
    ({"data": None}, "got neither; allowed: either data or binary_data_size"),
    ({"parameters_": 1}, "inputs[0].parameters_: is unknown"),
]


def test_a_threshold_adds_an_output(tmp_path):
    found = ensemble(tmp_path, [{}])
    assert "out_of_range" not in Signature.of(found).outputs
    assert Signature.of(replace(found, threshold=0.5)).outputs["out_of_range"] == [-1]


class TestBadInput:
    @pytest.mark.parametrize(("change", "sentence"), CHANGES)
    def test_tensors(self, url, change, sentence):
        refused(HTTP.post(url + INFER, json=body(X, **change)), 400, sentence)

    @pytest.mark.parametrize(
        ("outer", "sentence"),
        [
            ({"parameters": {"deadline_ms": 0}}, "parameters.deadline_ms: got 0; allowed: greater than 0"),
            ({"parameters": {"return_members": 1}}, "parameters.return_members: got 1; allowed: a valid boolean"),
            ({"parameters": []}, "parameters: got []; allowed: an object"),
            ({"outputs": [{"name": "predictions"}]}, "did you mean 'prediction'?"),
            ({"outputs": []}, "outputs: got []; allowed: "),
            ({"id": 7}, "id: got 7; allowed: a valid string"),
        ],
    )
    def test_rest_of_the_request(self, url, outer, sentence):
        refused(HTTP.post(url + INFER, json=body(X, **outer)), 400, sentence)

    def test_inputs(self, url):
        refused(HTTP.post(url + INFER, json={"inputs": []}), 400, "inputs: got []; allowed: ")
        twice = body(X)["inputs"] * 2
        refused(HTTP.post(url + INFER, json={"inputs": twice}), 400, "inputs: got [")
        refused(HTTP.post(url + INFER, json=[1]), 400, "request: got [1]")
        typed = {"Content-Type": "application/json"}
        refused(HTTP.post(url + INFER, content=b'{"a"', headers=typed), 400, "is no valid JSON")
        nan = json.dumps(body(X, data=[float("nan")] * 15)).encode()
        refused(HTTP.post(url + INFER, content=nan, headers=typed), 400, "value 0 is not finite")
        refused(HTTP.post(url + INFER, content=b"[" * 5000, headers=typed), 400, "recursion limit exceeded")

    def test_binary(self, url):
        content, headers = json.dumps(body(X)).encode(), {"Content-Type": "application/octet-stream"}
        refused(HTTP.post(url + INFER, content=content, headers=headers), 400, "Inference-Header-Content-Length: is")
        for length in ("-1", "x", "9" * 30, "1e3", str(len(content) + 1)):
            reply = HTTP.post(
                url + INFER, content=content, headers={**headers, "Inference-Header-Content-Length": length}
            )
            refused(reply, 400, "Inference-Header-Content-Length: got")

    @pytest.mark.parametrize(
        ("size", "behind", "sentence"),
        [
            (56, X.tobytes(), "binary_data_size: got 56; allowed: 60"),
            (60, X.tobytes()[:-1], "allowed: at most the 59 bytes"),
            (60, X.tobytes() + b"x", "got 1 bytes behind the last tensor"),
            ("60", X.tobytes(), "binary_data_size: got '60'; allowed: a valid integer"),
            (60, np.full_like(X, np.inf).tobytes(), "value 0 is not finite"),
        ],
    )
    def test_binary_sizes(self, url, size, behind, sentence):
        tensor = {"name": "input", "datatype": "FP32", "shape": [3, 5], "parameters": {"binary_data_size": size}}
        head = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
        refused(HTTP.post(url + INFER, content=head + behind, headers=headers), 400, sentence)

    def test_names_methods_types_sizes(self, url):
        refused(HTTP.post(f"{url}/v2/models/other/infer", json=body(X)), 404, "got 'other'; allowed: ensemble")
        refused(HTTP.post(f"{url}/v2/models/ensemble/versions/2/infer", json=body(X)), 404, "version: got '2'")
        refused(HTTP.get(f"{url}/v2/ensembles/other"), 404, "allowed: ensemble")
        refused(HTTP.get(f"{url}/v3"), 404, "path: unknown")
        assert refused(HTTP.get(url + INFER), 405, "method").headers["Allow"] == "POST"
        text = {"Content-Type": "text/plain"}
        refused(HTTP.post(url + INFER, content=b"{}", headers=text), 415, "Content-Type: got 'text/plain'; allowed: ")
        brotli = {"Content-Type": "application/json", "Content-Encoding": "br"}
        refused(HTTP.post(url + INFER, content=b"{}", headers=brotli), 415, "Content-Encoding: got 'br'")
        refused(HTTP.post(url + INFER, json=body(inputs(41))), 413, "got 41 rows; allowed: 40")
        refused(HTTP.post(url + INFER, json={"id": "x" * 20_000}), 413, "20000 bytes")
        chunks = (b"x" * 9_000 for _ in range(3))
        typed = {"Content-Type": "application/json"}
        refused(HTTP.post(url + INFER, content=chunks, headers=typed), 413, "20000 bytes")

    def test_unknown_input(self, tmp_path):
        """Where no sample was left, the deployment is given one, and refuses other rows."""
        found = ensemble(tmp_path, [{}], sample=False)
        with Scripted(found, sample=X[:1]) as service, Server(service, port=0) as server:
            told = HTTP.get(f"{server.url}/v2/models/ensemble").json()
            assert told["inputs"][0]["shape"] == [-1]
            wrong = np.zeros((2, 4), np.float32)
            refused(HTTP.post(server.url + INFER, json=body(wrong)), 400, "got shape (2, 4)", "[N, 5]")
            assert ask(server.url, X).status_code == 200


class TestService:
    @pytest.mark.parametrize(
        ("error", "status", "after"),
        [
            (Overloaded("queue: full", 2.2), 429, "2"),
            (NotReady("service: starts", 0.1), 503, "1"),
            (RequestError("rows: no"), 400, None),
            (DeadlinePassed("too late"), 504, None),
            (ServeError("lost all workers"), 500, None),
        ],
    )
    def test_refusals(self, url, script, error, status, after):
        """What the service refuses at once, and what its future raises later, have the same status."""
        script(error)
        assert refused(ask(url, X), status, str(error)).headers.get("Retry-After") == after
        later = Future()
        later.set_exception(error)
        script(later)
        assert refused(ask(url, X), status, str(error)).headers.get("Retry-After") == after

    def test_defects_tell_nothing(self, url, script):
        script(ZeroDivisionError("secret"))
        assert "secret" not in refused(ask(url, X), 500, "the server has a defect").text

    def test_deadline(self, url):
        assert ask(url, X, deadline_ms=1e-6).status_code == 504
        assert ask(url, X, deadline_ms=60_000).status_code == 200

    def test_not_ready(self, url, served, monkeypatch):
        monkeypatch.setattr(served[0], "ready", lambda: False)
        for path in ("/v2/health/ready", "/v2/models/ensemble/ready"):
            assert refused(HTTP.get(url + path), 503, "ask again").headers["Retry-After"] == "1"
        assert HTTP.get(f"{url}/v2/health/live").status_code == 200

    def test_whoever_leaves_is_cancelled(self, url, script, served):
        """A client that goes away while it waits has its request cancelled, so that nobody computes it."""
        waiting = Future()
        script(waiting)
        with pytest.raises(httpx.ReadTimeout):
            HTTP.post(url + INFER, json=body(X), timeout=0.2)
        until = time.monotonic() + 10
        while not waiting.cancelled() and time.monotonic() < until:
            time.sleep(0.01)
        assert waiting.cancelled()

    def test_slow_and_broken_bodies(self, url, served):
        """A body that does not come in time is answered 408; one that ends half-way takes nothing with it."""
        place = ("127.0.0.1", served[1].port)
        head = (
            f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
        )
        with socket.create_connection(place) as half:
            half.sendall(head.encode() + b"{")
        with socket.create_connection(place) as slow:
            slow.sendall(head.encode() + b"{")
            slow.settimeout(20)
            assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
        with socket.create_connection(place) as huge:
            huge.sendall(
                head.encode().replace(b"Content-Length: 50", b"Transfer-Encoding: chunked") + b"f" * 16 + b"\r\n"
            )
            huge.settimeout(20)
            assert huge.recv(100)[:12] in {b"HTTP/1.1 400", b"HTTP/1.1 408", b"HTTP/1.1 413"}
        assert ask(url, X).status_code == 200


class TestAddress:
    def test_token(self, served):
        """Beyond loopback every request needs the token, but for those that ask whether the server lives."""
        with Server(served[0], host="0.0.0.0", port=0, token=TOKEN) as server:  # noqa: S104 -- it is what is tested
            url = f"http://127.0.0.1:{server.port}"
            for path in ("/v2", "/metrics", "/", "/v2/ensembles/ensemble"):
                refused(HTTP.get(url + path), 401, "token")
            assert refused(ask(url, X, token="a" * 25), 401).headers["WWW-Authenticate"] == "Bearer"
            assert ask(url, X, token=TOKEN).status_code == 200
            assert HTTP.get(f"{url}/v2/health/ready").status_code == 200

    def test_token_is_made(self, served):
        assert len(Server(served[0], host="0.0.0.0", port=0).token) > 30  # noqa: S104 -- likewise
        assert Server(served[0], port=0).token is None

    def test_names_of_others(self, url):
        """A page whose name was made to point here, or that is of another origin, is refused."""
        refused(HTTP.get(f"{url}/v2", headers={"Host": "evil.example"}), 400, "host name")
        refused(HTTP.get(f"{url}/v2", headers={"Origin": "http://evil.example"}), 403, "origin")

    def test_refusals(self, served):
        service, server = served
        with pytest.raises(ListenError, match=f"{server.port}: address already in use; give another --port"):
            Server(service, port=server.port).start()
        with pytest.raises(InputError, match="--port: got 70000"):
            Server(service, port=70_000).start()
        with pytest.raises(ServeConfigError, match="name: got 'a/b'; allowed: a word"):
            Server(service, name="a/b")
        with pytest.raises(ServeConfigError, match=r"Limits\.rows: got 0; allowed: a whole number >= 1"):
            Limits(rows=0)

    def test_connections(self, served):
        """One connection too many takes the place of one that asks nothing; where all ask, it is told so and closed."""
        head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n".encode()
        with Server(served[0], port=0, limits=Limits(connections=2)) as server:
            place = ("127.0.0.1", server.port)
            silent = socket.create_connection(place)
            silent.settimeout(20)
            busy = [socket.create_connection(place)]
            busy[0].sendall(head)
            time.sleep(0.2)  # the server reads the head
            busy.append(socket.create_connection(place))
            busy[1].sendall(head)
            with contextlib.suppress(ConnectionResetError):
                assert silent.recv(100) == b""
            time.sleep(0.2)
            with socket.create_connection(place) as third:
                third.settimeout(20)
                assert third.recv(200).startswith(b"HTTP/1.1 503 ")
            for each in (silent, *busy):
                each.close()
            until = time.monotonic() + 10  # the server hears of it a little later
            while (status := ask(server.url, X).status_code) == 503 and time.monotonic() < until:
                time.sleep(0.02)
            assert status == 200

    def test_a_large_body_may_take_longer_if_it_comes_fast_enough(self, served):
        """Two mebibytes in pieces over two seconds, under a limit of one."""
        with Server(served[0], port=0, limits=Limits(body_seconds=1.0, rows=10)) as server:
            length = 2 * 2**20
            head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.settimeout(20)
                client.sendall(head.encode())
                for _ in range(8):
                    client.sendall(b" " * (length // 8))
                    time.sleep(0.25)
                assert client.recv(100).startswith(b"HTTP/1.1 400 ")

    def test_nobody_waits_longer_than_ten_seconds(self):
        """For a head, a body or a chunk of 2**64 bytes of which nothing comes."""
        assert Limits().body_seconds <= 10
        assert connection._HEAD_SECONDS <= 10

    def test_endless_head(self, served):
        with socket.create_connection(("127.0.0.1", served[1].port)) as endless:
            endless.settimeout(20)
            endless.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000)
            assert endless.recv(100).startswith(b"HTTP/1.1 400 ")

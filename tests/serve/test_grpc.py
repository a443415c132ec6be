"""The protocol over gRPC: its own client gets what the ensemble itself says, and the sentences of HTTP."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")
pytest.importorskip("tritonclient.grpc")

import tritonclient.grpc as triton
from http_for_tests import Scripted, ensemble, inputs
from tritonclient.utils import InferenceServerException

from trainwright.ensemble import Ensemble
from trainwright.errors import Overloaded
from trainwright.serve import Deployment, ModelFolders
from trainwright.serve.http.server import Server

X = inputs(40)
TOKEN = "a-token-of-this-test"  # noqa: S105 - of a server on loopback


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return ensemble(tmp_path_factory.mktemp("served"), [{}, {"hidden": 4}], weights=[0.7, 0.3])


@pytest.fixture(scope="module")
def service(found):
    with Scripted(found) as running:
        yield running


@pytest.fixture(scope="module")
def client(service):
    with (
        Server(service, port=0, grpc_port=0) as server,
        triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as found,
    ):
        yield found


def tensor(x, datatype="FP32"):
    made = triton.InferInput("input", list(x.shape), datatype)
    made.set_data_from_numpy(x)
    return made


def test_state_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("ensemble")
    assert client.get_server_metadata().name == "trainwright"
    metadata = client.get_model_metadata("ensemble", "1")
    assert [(one.name, one.datatype, list(one.shape)) for one in metadata.inputs] == [("input", "FP32", [-1, 5])]
    assert {"prediction", "uncertainty_total", "member_10"} <= {one.name for one in metadata.outputs}
    assert list(metadata.versions) == ["1"]


@pytest.mark.parametrize("names", [None, ["prediction"], ["uncertainty_total", "member_11", "prediction"]])
@pytest.mark.parametrize("parameters", [{}, {"return_uncertainty": True, "tenant": "a", "share": 0.5}])
def test_inference(client, found, names, parameters):
    wanted = names and [triton.InferRequestedOutput(name) for name in names]
    result = client.infer(
        "ensemble", [tensor(X)], outputs=wanted, request_id="7", priority=1, timeout=10_000_000, parameters=parameters
    )
    np.testing.assert_allclose(result.as_numpy("prediction"), found.predict(X), atol=1e-6)
    told = {one.name for one in result.get_response().outputs}
    if names is None:
        assert ("uncertainty_total" in told) == ("return_uncertainty" in parameters)
    else:
        assert told == set(names)
    reply = result.get_response()
    assert (reply.id, reply.model_name, reply.parameters["degraded"].bool_param) == ("7", "ensemble", False)


def test_values_that_are_no_bytes(client, found):
    """`InferTensorContents` in place of raw bytes."""
    made = tensor(X)
    made._raw_content = None
    made._input.contents.fp32_contents.extend(X.reshape(-1).tolist())
    np.testing.assert_allclose(client.infer("ensemble", [made]).as_numpy("prediction"), found.predict(X), atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "code", "sentence"),
    [
        ({"model_name": "other"}, "NOT_FOUND", "model: got 'other'; allowed: ensemble"),
        ({"model_version": "9"}, "NOT_FOUND", "version: got '9'; allowed: 1"),
        ({"inputs": [tensor(X[:, :3].copy())]}, "INVALID_ARGUMENT", r"inputs\[0\].shape: got \[40, 3\]"),
        ({"inputs": [tensor(X.astype(int), "INT64")]}, "INVALID_ARGUMENT", r"datatype: got INT64; allowed: FP32"),
        ({"inputs": [tensor(X), tensor(X)]}, "INVALID_ARGUMENT", "at most 1 item"),
        ({"outputs": [triton.InferRequestedOutput("x")]}, "INVALID_ARGUMENT", r"outputs\[0\].name: got 'x'"),
        ({"parameters": {"deadline_ms": 1e-300}}, "DEADLINE_EXCEEDED", "deadline_ms"),
        ({"parameters": {"deadline_ms": "soon"}}, "INVALID_ARGUMENT", "deadline_ms: got 'soon'"),
    ],
)
def test_errors(client, asked, code, sentence):
    with pytest.raises(InferenceServerException, match=sentence) as refused:
        client.infer(**{"model_name": "ensemble", "inputs": [tensor(X)], **asked})
    assert refused.value.status() == f"StatusCode.{code}"


def test_overload_and_a_defect(client, service, monkeypatch):
    for error, code, sentence in (
        (Overloaded("full; ask again", 1.0), "RESOURCE_EXHAUSTED", "full"),
        (ValueError("secret"), "INTERNAL", "the server has a defect"),
    ):
        monkeypatch.setattr(service, "script", lambda _x, _options, error=error: error)
        with pytest.raises(InferenceServerException, match=sentence) as refused:
            client.infer("ensemble", [tensor(X)])
        assert refused.value.status() == f"StatusCode.{code}"


def test_a_token(service):
    with (
        Server(service, port=0, grpc_port=0, token=TOKEN) as server,
        triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
    ):
        assert client.is_server_live()
        with pytest.raises(InferenceServerException, match="a token is needed") as refused:
            client.infer("ensemble", [tensor(X)])
        assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        told = client.infer("ensemble", [tensor(X)], headers={"authorization": f"Bearer {TOKEN}"})
        assert len(told.as_numpy("prediction")) == len(X)


def test_the_repository(tmp_path):
    """Index, unload and load, and the sentences of what cannot be."""
    made = {name: ensemble(tmp_path / f"members-{name}", [{}]) for name in ("a", "b")}
    for name, one in made.items():
        one.save(tmp_path / "models" / name)

    def start(folder):
        return Deployment(Ensemble.load(folder)).start()

    def index(client):
        return [(one.name, one.version, one.state, one.reason) for one in client.get_model_repository_index().models]

    with (
        Server(ModelFolders(tmp_path / "models", start), port=0, grpc_port=0) as server,
        triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
    ):
        assert index(client) == [("a", "1", "READY", ""), ("b", "1", "READY", "")]
        client.unload_model("b")
        assert index(client)[-1] == ("b", "", "UNAVAILABLE", "unloaded")
        client.load_model("b")
        found = client.infer("b", [tensor(X)]).as_numpy("prediction")
        np.testing.assert_allclose(found, made["b"].predict(X), atol=1e-6)
        for act, code, sentence in (
            (client.load_model, "INVALID_ARGUMENT", "model: 'c' cannot be loaded; allowed: a, b"),
            (client.unload_model, "NOT_FOUND", "model: got 'c'; allowed: a, b"),
        ):
            with pytest.raises(InferenceServerException, match=sentence) as refused:
                act("c")
            assert refused.value.status() == f"StatusCode.{code}"
        (tmp_path / "models" / "a" / "manifest.json").write_text("{")
        with pytest.raises(InferenceServerException, match="what was loaded before still answers"):
            client.load_model("a")
        assert len(client.infer("a", [tensor(X)]).as_numpy("prediction")) == len(X)

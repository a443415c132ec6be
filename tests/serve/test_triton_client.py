"""The protocol's own client against the real server: whatever it may send is answered, and answered rightly."""

import gzip
import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")
pytest.importorskip("tritonclient.http")

import tritonclient.http as triton
from http_for_tests import HTTP, INFER, Scripted, body, ensemble, inputs

from trainwright.serve.http.server import Server
from trainwright.serve.service import Limits

X = inputs(40)
OUTPUTS = {
    "all, in binary": None,
    "named, in binary": [("prediction", True)],
    "named, in JSON": [("prediction", False)],
    "some of each": [("prediction", True), ("uncertainty_total", False), ("member_11", True)],
}
PARAMETERS = {
    "none": {},
    "the protocol's": {"priority": 1, "timeout": 1_000_000, "sequence_id": 3, "sequence_start": True},
    "one's own": {"parameters": {"tenant": "a", "weight": 0.5, "return_uncertainty": True}},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    found = ensemble(tmp_path_factory.mktemp("served"), [{}, {"hidden": 4}], weights=[0.7, 0.3])
    with Scripted(found) as service, Server(service, port=0, limits=Limits(body_bytes=20_000)) as server:
        yield found, server


@pytest.fixture(scope="module")
def client(served):
    with triton.InferenceServerClient(served[1].url.removeprefix("http://")) as found:
        yield found


@pytest.fixture(scope="module")
def expected(served):
    return served[0].predict(X)


def tensor(x, *, binary):
    found = triton.InferInput("input", list(x.shape), "FP32")
    found.set_data_from_numpy(x, binary_data=binary)
    return found


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_inference(client, expected, outputs, parameters, binary):
    """A model's name with its version, and without."""
    asked = OUTPUTS[outputs] and [
        triton.InferRequestedOutput(name, binary_data=as_is) for name, as_is in OUTPUTS[outputs]
    ]
    for version in ("", "1"):
        found = client.infer(
            "ensemble",
            [tensor(X, binary=binary)],
            model_version=version,
            request_id="seven",
            outputs=asked,
            **PARAMETERS[parameters],
        )
        np.testing.assert_allclose(found.as_numpy("prediction"), expected, atol=1e-6)
        reply = found.get_response()
        assert (reply["id"], reply["model_name"]) == ("seven", "ensemble")
        names = {one["name"] for one in reply["outputs"]}
        if asked:
            assert names == {name for name, _ in OUTPUTS[outputs]}
            for one in reply["outputs"]:
                assert ("data" in one) != dict(OUTPUTS[outputs])[one["name"]]
        else:
            assert ("uncertainty_total" in names) == ("parameters" in PARAMETERS[parameters])
        ignored = reply["parameters"].get("parameters_ignored", [])
        assert (
            set(ignored)
            == {
                "none": set(),
                "the protocol's": {"priority", "timeout", "sequence_id", "sequence_start", "sequence_end"},
                "one's own": {"tenant", "weight"},
            }[parameters]
        )


@pytest.mark.parametrize("request_by", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_by", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_compression(client, expected, request_by, response_by, binary):
    """Of what is sent and what comes back, each by itself."""
    found = client.infer(
        "ensemble",
        [tensor(X, binary=binary)],
        outputs=[triton.InferRequestedOutput("prediction", binary_data=binary)],
        request_compression_algorithm=request_by,
        response_compression_algorithm=response_by,
    )
    np.testing.assert_allclose(found.as_numpy("prediction"), expected, atol=1e-6)


def test_configuration_statistics_index(client):
    before = client.get_inference_statistics("ensemble")["model_stats"][0]
    client.infer("ensemble", [tensor(X, binary=True)])
    (after,) = client.get_inference_statistics()["model_stats"]
    assert (after["name"], after["version"]) == ("ensemble", "1")
    assert after["inference_count"] == before["inference_count"] + len(X)
    success = [one["inference_stats"]["success"] for one in (before, after)]
    assert success[1]["count"] == success[0]["count"] + 1
    assert success[1]["ns"] > success[0]["ns"]
    config = client.get_model_config("ensemble", "1")
    assert config["input"] == [{"name": "input", "data_type": "TYPE_FP32", "dims": [5]}]
    assert config["output"][0] == {"name": "prediction", "data_type": "TYPE_FP64", "dims": [-1]}
    index = client.get_model_repository_index()
    assert index == [{"name": "ensemble", "version": "1", "state": "READY", "reason": ""}]


def test_inference_beside_each_other(client, expected):
    waiting = [client.async_infer("ensemble", [tensor(X, binary=True)]) for _ in range(4)]
    for each in waiting:
        np.testing.assert_allclose(each.get_result().as_numpy("prediction"), expected, atol=1e-6)


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("ensemble")
    assert client.is_model_ready("ensemble", "1")
    assert not client.is_model_ready("other")


def test_metadata(client):
    assert set(client.get_server_metadata()["extensions"]) == {
        "binary_tensor_data", "model_configuration", "model_repository", "statistics",
    }  # fmt: skip
    metadata = client.get_model_metadata("ensemble", "1")
    assert metadata["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 5]}]
    assert metadata["outputs"][:2] == [
        {"name": "prediction", "datatype": "FP64", "shape": [-1, -1]},
        {"name": "uncertainty_total", "datatype": "FP64", "shape": [-1]},
    ]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda client: client.infer("other", [tensor(X, binary=True)]), "got 'other'; allowed: ensemble"),
        (lambda client: client.get_model_metadata("other"), "got 'other'; allowed: ensemble"),
        (lambda client: client.load_model("ensemble"), "allowed: models of the folder that is served"),
        (
            lambda client: client.infer(
                "ensemble",
                [tensor(X, binary=True)],
                outputs=[triton.InferRequestedOutput("prediction", class_count=2)],
            ),
            "got 'classification'; allowed: values of the tensor itself",
        ),
        (
            lambda client: client.infer(
                "ensemble", [triton.InferInput("input", [1, 5], "FP32").set_shared_memory("region", 20)]
            ),
            "got 'shared_memory_region'; allowed: values of the tensor itself",
        ),
    ],
)
def test_what_is_not_there_is_said(client, call, sentence):
    with pytest.raises(triton.InferenceServerException) as caught:
        call(client)
    assert sentence in str(caught.value)


class TestWithoutTheClient:
    def test_no_content_type(self, served, expected):
        """As JSON, or binary where the length of the JSON part is told."""
        told, url = json.dumps(body(X[:3])).encode(), served[1].url + INFER
        assert "content-type" not in HTTP.build_request("POST", url, content=told).headers
        found = HTTP.post(url, content=told)
        np.testing.assert_allclose(np.reshape(found.json()["outputs"][0]["data"], (3, 3)), expected[:3], atol=1e-6)
        binary, length = triton.InferenceServerClient.generate_request_body([tensor(X[:3], binary=True)])
        found = HTTP.post(url, content=binary, headers={"Inference-Header-Content-Length": str(length)})
        assert found.status_code == 200
        np.testing.assert_allclose(np.frombuffer(found.content[-72:]).reshape(3, 3), expected[:3], atol=1e-6)

    @pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}])
    def test_a_page_of_another_site_is_refused(self, served, headers):
        """It cannot leave out where it comes from."""
        stranger = {"Origin": "http://evil.example", **headers}
        assert HTTP.post(served[1].url + INFER, content=b"{}", headers=stranger).status_code == 403
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        assert HTTP.post(served[1].url + INFER, content=b"{}", headers=kind).status_code == 415

    def test_other_encodings_are_not_known(self, served):
        for encoding in ("br", "x" * 500):
            found = HTTP.post(served[1].url + INFER, content=b"{}", headers={"Content-Encoding": encoding})
            assert found.status_code == 415
            assert "allowed: gzip, deflate, identity, or none" in found.json()["error"]

    @pytest.mark.parametrize(
        ("content", "status", "sentence"),
        [
            (b"{}", 400, "is no valid gzip"),
            (gzip.compress(b"{}", mtime=0)[:-3], 400, "its gzip is cut"),
            (gzip.compress(b"{}", mtime=0) + b"x", 400, "something follows it"),
            (gzip.compress(b"x" * 20_001, mtime=0), 413, "too large once inflated; allowed: up to 20000 bytes"),
        ],
    )
    def test_compressed_bodies_that_are_none(self, served, content, status, sentence):
        found = HTTP.post(served[1].url + INFER, content=content, headers={"Content-Encoding": "gzip"})
        assert (found.status_code, sentence in found.json()["error"]) == (status, True)

    @pytest.mark.parametrize(
        "path", ["/v2/health/live", "/v2/health/ready", "/v2/models/ensemble/ready", "/v2", "/metrics"]
    )
    def test_head_is_get_without_a_body(self, served, path):
        one, other = HTTP.head(served[1].url + path), HTTP.get(served[1].url + path)
        assert (one.status_code, one.content) == (200, b"")
        assert one.headers["Content-Type"] == other.headers["Content-Type"]

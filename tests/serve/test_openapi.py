"""The server keeps to its own OpenAPI document: schemathesis asks what the document allows and what it forbids."""

import re
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")

from http_for_tests import HTTP, INFER, Scripted, ensemble

from trainwright.serve.http.infer_request import InferBody
from trainwright.serve.http.server import Server

TOKEN = "a-token-of-this-test"  # noqa: S105 - of a server on loopback


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return ensemble(tmp_path_factory.mktemp("served"), [{}, {"hidden": 4}], weights=[0.7, 0.3])


@pytest.fixture(scope="module")
def server(found):
    with Scripted(found) as service, Server(service, port=0) as running:
        yield running


def document(server, **headers):
    return HTTP.get(server.url + "/openapi.json", headers=headers).json()


def test_every_path_of_the_document_answers(server):
    names = {"model": "ensemble", "version": "1"}
    for path, operations in document(server)["paths"].items():
        for method in operations.keys() - {"post"}:
            reply = HTTP.request(method, server.url + path.format(**names))
            assert str(reply.status_code) in operations[method]["responses"]
            assert reply.status_code == 200
            assert HTTP.post(server.url + path.format(**names)).status_code == 405


def test_the_example_of_an_inference_is_answered(found, server):
    body = document(server)["components"]["requestBodies"]["Infer"]["content"]["application/json"]
    example = body["examples"]["ensemble"]["value"]
    reply = HTTP.post(server.url + INFER, json=example).json()
    assert example["inputs"][0]["shape"] == [1, *found.members[0].input_shape]
    zeros = np.zeros(example["inputs"][0]["shape"], "f4")
    np.testing.assert_allclose(np.array(reply["outputs"][0]["data"])[None], found.predict(zeros), atol=1e-6)


def test_a_token_is_in_the_document(found):
    with Scripted(found) as service, Server(service, port=0, token=TOKEN) as running:
        told = document(running, authorization=f"Bearer {TOKEN}")
        open_to_all = {
            path for path, operations in told["paths"].items() if operations.get("get", {}).get("security") == []
        }
        assert HTTP.get(running.url + "/openapi.json").status_code == 401
        assert told["security"] == [{"token": []}]
        assert open_to_all == {"/v2/health/live", "/v2/health/ready"}


def test_the_schema_of_a_request_is_what_reads_it(server):
    parts = document(server)["components"]["schemas"]
    made = InferBody.model_json_schema(ref_template="#/components/schemas/{model}")
    for name, schema in {**made.pop("$defs"), "InferBody": made}.items():
        assert parts[name] == schema, name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_schemathesis_finds_nothing(server, tmp_path):
    """What it generates fits the document, or breaks it in one place; each answer is as the document says.

    No schema can say that the values are as many as the shape wants, so it may be refused what fits the document. The
    right answer to a deadline of 1e-300 ms is 504.
    """
    pytest.importorskip("schemathesis")
    allowed = '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]\n'
    (tmp_path / "schemathesis.toml").write_text(allowed)
    command = [sys.executable, "-m", "schemathesis.cli", "run", server.url + "/openapi.json"]
    command += ["--exclude-checks", "positive_data_acceptance", "--exclude-path-regex", "/unload$"]
    command += ["--max-examples", "20", "--max-time", "40", "--seed", "1", "--no-color"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout
    assert int(re.search(r"(\d+) generated", said.stdout)[1]) > 500

"""A served ensemble's load: what its metrics have counted; a server that is away is told."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from trainwright.errors import InputError
from trainwright.ui.server_load import ServerLoad

TEXT = """# HELP trainwright_requests_total Requests.
trainwright_requests_total{endpoint="infer",status="200"} %d
trainwright_requests_total{endpoint="infer",status="429"} 3.0
trainwright_requests_total{endpoint="metadata",status="200"} 50.0
trainwright_rows_total %d
trainwright_phase_seconds_sum{phase="answer"} %f
trainwright_phase_seconds_count{phase="answer"} %d
trainwright_waiting_rows 7.0
odd line
trainwright_broken x
"""


@pytest.fixture
def served():
    """Serve counts that grow by a hundred requests each time they are asked for."""

    class Handler(BaseHTTPRequestHandler):
        asked = 0
        tokens: list = []  # noqa: RUF012 -- of this one server

        def do_GET(self):
            Handler.tokens.append(self.headers.get("authorization"))
            if self.path == "/metrics":
                Handler.asked += 1
                count = 100 * Handler.asked
                body = (TEXT % (count, 10 * count, 0.002 * count, count)).encode()
            elif self.path == "/v2/ensembles/digits":
                body = json.dumps({"name": "digits", "ready": True, "members": [{}], "state": {"alive": 2}}).encode()
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Handler
    server.shutdown()
    server.server_close()
    thread.join()


def test_counts_are_read_with_their_labels(served):
    url, handler = served
    load = ServerLoad(url, ensemble="digits", token="t" * 20)
    told = [load.content() for _ in range(3)][-1]
    assert told["error"] is None
    assert told["requests"] == {"200": 300.0, "429": 3.0}
    assert (told["rows"], told["waiting"], told["answers"]) == (3000.0, 7.0, 300.0)
    assert told["answer_seconds"] == pytest.approx(0.6)
    assert (told["name"], told["ready"], told["state"]) == ("digits", True, {"alive": 2})
    assert set(handler.tokens) == {f"Bearer {'t' * 20}"}


def test_an_ensemble_of_another_name_leaves_the_counts(served):
    told = ServerLoad(served[0], ensemble="other").content()
    assert (told["name"], told["rows"]) == (None, 1000.0)


def test_a_server_that_is_away_is_told():
    assert "does not answer" in ServerLoad("http://127.0.0.1:1").content()["error"]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host", "localhost:80", "http://", "http://h/?a=b"])
def test_only_servers_are_asked(url):
    with pytest.raises(InputError, match="allowed: the address of a server"):
        ServerLoad(url)

"""How a server ends: the first signal finishes what was admitted, the second does not."""

import contextlib
import os
import signal
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("httptools")

from http_for_tests import HTTP, INFER, Scripted, ask, ensemble, inputs, open_file_count

from trainwright.serve import Options, Response, Server
from trainwright.serve.http.client import encode

X = inputs(2)
HELD = Response(prediction=np.ones((2, 3)) / 3, used=(10,))


@pytest.fixture
def service(tmp_path):
    with Scripted(ensemble(tmp_path, [{}])) as service:
        yield service


class Waiting:
    """A service whose one admitted request waits for the test, and that drains until it has been answered."""

    def __init__(self, service):
        self.future, self.admitted, self.drained = Future(), threading.Event(), []
        self._drain = service.drain
        service.script = self.submit
        service.drain = self.drain

    def submit(self, x, options):
        self.admitted.set()
        return self.future

    def drain(self, seconds):
        self.drained.append(seconds)
        until = time.monotonic() + seconds
        while not self.future.done() and time.monotonic() < until:
            time.sleep(0.01)
        self._drain(0.0)


def served(service, script, drain_seconds=60.0):
    """Run a server in this, the main, thread with `script(server)` beside it; return its summary and the seconds."""
    beside = []

    def ready(server):
        beside.append(threading.Thread(target=script, args=(server,), daemon=True))
        beside[0].start()

    started = time.monotonic()
    told = Server(service, port=0).run(drain_seconds=drain_seconds, on_ready=ready)
    beside[0].join(30)
    return told, time.monotonic() - started


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_admitted_requests_are_finished(service, kind):
    """After the signal: not ready, new requests 503, the admitted one answered, then the end and a summary."""
    waiting, seen = Waiting(service), {}

    def script(server):
        asking = threading.Thread(target=lambda: seen.update(admitted=ask(server.url, X).status_code), daemon=True)
        asking.start()
        waiting.admitted.wait(30)
        os.kill(os.getpid(), kind)
        while HTTP.get(f"{server.url}/v2/health/ready").status_code == 200:
            time.sleep(0.01)
        refused = ask(server.url, X)
        seen.update(
            new=refused.status_code,
            after=refused.headers["Retry-After"],
            live=HTTP.get(f"{server.url}/v2/health/live").status_code,
        )
        waiting.future.set_result(HELD)
        asking.join(30)

    before = signal.getsignal(kind)
    told, _ = served(service, script)
    assert seen == {"admitted": 200, "new": 503, "after": "5", "live": 200}
    assert told["requests"] == {"200": 1, "503": 1}
    assert told["rows"] == 2
    assert waiting.drained[0] == 60.0
    assert signal.getsignal(kind) is before


def test_a_signal_interrupts_the_start():
    """Of models that are still being loaded and placed."""

    class Source:
        def names(self):
            os.kill(os.getpid(), signal.SIGINT)
            return []

    with pytest.raises(KeyboardInterrupt):
        Server(Source(), port=0).run()


def test_second_signal_ends_it_at_once(service):
    waiting = Waiting(service)

    def script(server):
        content, headers = encode(X, Options(), binary=False)
        fields = {"Host": "localhost", "Content-Length": len(content), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        with socket.create_connection(("127.0.0.1", server.port)) as asking:
            asking.sendall(f"POST {INFER} HTTP/1.1\r\n{head}\r\n".encode() + content)
            waiting.admitted.wait(30)
            os.kill(os.getpid(), signal.SIGTERM)
            while not waiting.drained:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

    told, seconds = served(service, script, drain_seconds=1000.0)
    assert seconds < 500
    assert "200" not in told["requests"]
    waiting.future.cancel()


def test_nothing_is_left(service):
    """Servers that come and go leave neither descriptors nor threads."""
    with Server(service, port=0) as server:
        assert ask(server.url, X).status_code == 200
    files, threads = open_file_count(), threading.active_count()
    for _ in range(5):
        with Server(service, port=0) as server:
            assert ask(server.url, X).status_code == 200
    assert (open_file_count(), threading.active_count()) == (files, threads)


def test_replies_under_way_go_out_after_the_address_is_closed(service):
    waiting = Waiting(service)
    with Server(service, port=0) as server, ThreadPoolExecutor(2) as pool:
        reply = pool.submit(ask, server.url, X)
        assert waiting.admitted.wait(30)
        stopping = pool.submit(server.stop)
        address = ("127.0.0.1", int(server.url.rpartition(":")[2].strip("/")))
        with contextlib.suppress(ConnectionRefusedError):
            while True:
                socket.create_connection(address).close()
        waiting.future.set_result(HELD)
        assert reply.result(30).status_code == 200
        stopping.result(30)

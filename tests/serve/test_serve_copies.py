"""`kill -9` while rows are copied into shared memory or predictions out of it: of the worker, the front, the client."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import numpy_members as members
from numpy_members import order, pids, running, until

from trainwright.errors import RequestError
from trainwright.serve import DeploymentSettings
from trainwright.serve.runtime import segments

FAST = DeploymentSettings(backoff_seconds=0.0, failures=50)
MARK = 0.125  # in all of the first row: what is to happen, happens while this request is copied


class Copies:
    """Stands for numpy where rows are copied in: over half of a marked request's rows it does `action`, once."""

    def __init__(self, action):
        self._action = action

    def __getattr__(self, name):
        return getattr(np, name)

    def copyto(self, to, rows, **how):
        half = len(rows) // 2
        np.copyto(to[:half], rows[:half], **how)
        action = self._action if (rows[0] == MARK).all() else None
        if action is not None:
            self._action = None
            action()
        np.copyto(to[half:], rows[half:], **how)


def marked(rows):
    x = members.inputs(rows, seed=7)
    x[0] = MARK
    return x


def right(found, asked):
    """Compare answers with the reference; none lacks a member."""
    for x, answer in asked:
        done = answer.result(60)
        assert not done.degraded
        np.testing.assert_allclose(done.prediction, members.expected(found, x), atol=1e-12)


def at_rest(service):
    """Wait until nothing is held; then no slot, no request and no row is."""
    until(lambda: service.state()["slots_used"] == service.state()["open"] == service.state()["waiting_rows"] == 0)
    assert service.state()["duplicates"] == 0


def test_rows_beyond_the_networks_dtype(served):
    """They become infinite on their way, which ends only their own request."""
    found, service, _ = served
    large = members.inputs(3).astype(np.float64)
    large[1] = 1e300
    answer = service.submit(large)
    right(found, [(x, service.submit(x)) for x in (members.inputs(5), members.inputs(30))])
    with pytest.raises(RequestError, match="is not finite"):
        answer.result(60)
    at_rest(service)


class TestWorker:
    def test_killed_while_its_result_is_copied_out(self, tmp_path):
        """Half a prediction in shared memory is never read: it is computed again, and others are answered beside it."""
        orders = tmp_path / "orders"
        orders.mkdir()
        found = members.ensemble(tmp_path, 2, ordered=[str(orders), None])
        with members.Numpy(found, members.plan(found), settings=FAST) as service:
            order(orders, "tear", "in batch")
            right(found, [(x, service.submit(x)) for x in (members.inputs(rows, seed=rows) for rows in (90, 7, 200))])
            assert service.state()["restarts"] == 1
            at_rest(service)

    def test_killed_while_rows_are_copied_in(self, tmp_path, monkeypatch):
        """Rows that come into a slot while a worker ends are computed by the next one."""
        found = members.ensemble(tmp_path, 2)
        with members.Numpy(found, members.plan(found), settings=FAST) as service:
            victims = pids(service)

            def end():
                for pid in victims:
                    os.kill(pid, signal.SIGKILL)
                until(lambda: not any(map(running, victims)))

            monkeypatch.setattr(segments, "np", Copies(end))
            right(found, [(x, service.submit(x)) for x in (members.inputs(5), marked(300), members.inputs(9, seed=1))])
            assert service.state()["restarts"] == 2
            at_rest(service)


FRONT = """
import os, signal, sys
from pathlib import Path
import numpy_members as m
import test_serve_copies as t
found = m.ensemble(Path(sys.argv[1]), 2)
with m.Numpy(found, m.plan(found)) as service:
    service.predict(m.inputs(20))
    print(*m.pids(service), flush=True)
    t.segments.np = t.Copies(lambda: os.kill(os.getpid(), signal.SIGKILL))
    service.predict(t.marked(100))
"""


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="shared memory with names is looked for in /dev/shm")
def test_front_killed_while_rows_are_copied_in(tmp_path):
    """Its workers leave, and the memory is gone with them: it has no name that could stay."""
    before = set(Path("/dev/shm").iterdir())
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", FRONT, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 2
    until(lambda: not any(map(running, workers)), seconds=5.0)
    assert not {one for one in set(Path("/dev/shm").iterdir()) - before if "trainwright-serve" in one.name}


class Client:
    """A process that sends bytes to a server and then waits; to be killed."""

    CODE = "import socket, sys\ns = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    CODE += "s.sendall(sys.stdin.buffer.read())\nprint('sent', flush=True)\ns.recv(1)\n"

    def __init__(self, port, content):
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.CODE, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._process.stdin.write(content)
        self._process.stdin.close()

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def sent(self):
        return self._process.stdout.readline()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    pytest.importorskip("httptools")
    from trainwright.serve import Server

    found = members.ensemble(tmp_path_factory.mktemp("served"), 2)
    with members.Numpy(found, members.plan(found), settings=FAST) as service, Server(service, port=0) as server:
        yield found, service, server


class TestClient:
    def request(self, x):
        """Return a request as a client sends it."""
        from trainwright.serve import Options
        from trainwright.serve.http.client import encode

        content, headers = encode(x, Options(), binary=True)
        told = {"Host": "127.0.0.1", "Content-Length": str(len(content)), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        return f"POST /v2/models/ensemble/infer HTTP/1.1\r\n{head}\r\n".encode() + content

    def test_killed_within_its_body(self, served):
        """A body that ends in its middle is nobody's request; others come and go meanwhile."""
        found, service, server = served
        content = self.request(members.inputs(100))
        clients = [Client(server.port, content[: len(content) // 2]) for _ in range(3)]
        for client in clients:
            client.sent()
        right(found, [(x, service.submit(x)) for x in (members.inputs(5), members.inputs(30))])
        for client in clients:
            client.kill()
        until(lambda: server.summary()["disconnected"] == 3)
        right(found, [(x, service.submit(x)) for x in (members.inputs(5), members.inputs(30))])
        at_rest(service)

    def test_killed_while_its_rows_are_copied_in(self, served, monkeypatch):
        """What nobody will read is computed or dropped, and holds nothing afterwards; other rows are right."""
        found, service, server = served
        client = Client(server.port, self.request(marked(60)))
        monkeypatch.setattr(segments, "np", Copies(client.kill))
        asked = [(x, service.submit(x)) for x in (members.inputs(5, seed=rows) for rows in range(20))]
        right(found, asked)
        until(lambda: not running(client._process.pid))
        right(found, [(x, service.submit(x)) for x in (members.inputs(5), members.inputs(30))])
        at_rest(service)

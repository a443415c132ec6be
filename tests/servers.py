"""Redis servers for tests: started on a free port, killed, started again with or without their data."""

import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress

import pytest

__all__ = ["CuttingProxy", "Server", "needs_redis"]


def needs_redis():
    """Skip the module unless client and server are installed."""
    pytest.importorskip("redis", reason="redis-py is not installed; install the extra redis")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server", allow_module_level=True)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """A Redis server with its data in `folder`; what it acknowledges is on the disk unless `durable` is False."""

    def __init__(self, folder, *, durable=True):
        self.folder, self.durable, self.port = folder, durable, free_port()
        self.start()

    def url(self, study):
        return f"redis://127.0.0.1:{self.port}/0?study={study}"

    def start(self):
        self.folder.mkdir(exist_ok=True)
        kept = ["--appendonly", "yes", "--appendfsync", "always"] if self.durable else ["--appendonly", "no"]
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        self.process = subprocess.Popen([shutil.which("redis-server"), *where, *kept], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not self.answers():
            assert time.monotonic() < deadline, "redis-server does not start"
            assert self.process.poll() is None, "redis-server ended"
            time.sleep(0.01)

    def answers(self):
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as one:
            one.sendall(b"PING\r\n")
            return one.recv(100).startswith(b"+PONG")
        return False

    def client(self):
        import redis

        return redis.Redis(port=self.port)

    def follow(self, master):
        """Become the replica of another, and wait until it has what that one has."""
        master.client().config_set("repl-diskless-sync-delay", 0)
        client = self.client()
        client.replicaof("127.0.0.1", master.port)
        deadline = time.monotonic() + 30
        while client.info("replication").get("master_link_status") != "up":
            assert time.monotonic() < deadline, "the replica gets no data"
            time.sleep(0.01)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def forget(self):
        """Kill it and lose its data."""
        self.kill()
        shutil.rmtree(self.folder)


class CuttingProxy:
    """Passes requests on to a server, and while `cut` is positive drops that many answers with their connections."""

    def __init__(self, server):
        self.server, self.cut = server, 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.open = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def url(self, study):
        return f"redis://127.0.0.1:{self.port}/0?study={study}"

    def close(self):
        self.socket.close()
        for one in self.open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _serve(self):
        while True:
            try:
                near, _ = self.socket.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.server.port))
            except OSError:  # nobody is there: as the address of a server that died
                near.close()
                continue
            self.open += [near, far]
            threading.Thread(target=self._pass, args=(near, far), daemon=True).start()

    def _pass(self, near, far):
        with suppress(OSError):
            while request := near.recv(2**20):
                far.sendall(request)
                answer = far.recv(2**20)
                if not answer:
                    break
                if self.cut and b"EVALSHA" in request:
                    self.cut -= 1
                    break
                near.sendall(answer)
        near.close()
        far.close()

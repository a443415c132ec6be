"""A member of a gang: the process on one node that starts, guards and ends worker processes for the gang's driver.

A launcher starts one on each node. They find the driver by a file in the study's directory, and end with it. It runs no
training itself, and signals of the launcher mean nothing to it: the driver alone decides what they mean.
"""

import contextlib
import hashlib
import json
import os
import socket
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainwright.cluster.visible_devices import cores, visible_gpus
from trainwright.engine.process.listener import keep_alive
from trainwright.engine.process.worker_process import ChildProcess, find_free_address, worker_environment
from trainwright.engine.protocol import Died
from trainwright.errors import EngineError
from trainwright.publishing import write_file
from trainwright.signals import ignore_launcher

__all__ = ["COMMAND", "Arrived", "Order", "main", "place_token", "publish_meeting", "serve", "serve_driver"]

COMMAND = (sys.executable, "-c", "import sys; from trainwright.engine.nodes.member import main; main(*sys.argv[1:])")
"""Starts a member; not as a module, whose classes no other process would know. The words of `main` follow."""

_LOOK_SECONDS = 0.05
"""How often messages and processes are looked for; reports of trials have lines of their own."""
_AGAIN_SECONDS = 0.5
_KNOCK_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrived:
    """What a member says first: its host, its slots and their GPUs."""

    host: str
    slots: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """A worker process to start on a slot; `token` is what it shows at the driver's listener."""

    slot: int
    serial: int
    token: bytes = field(repr=False)
    memory_bytes: int | None
    grace_seconds: float


def place_token(secret: str, place: int) -> bytes:
    """Return what the member of a place shows to be let in."""
    return hashlib.sha256(f"{secret} {place}".encode()).digest()


def publish_meeting(path: Path, hosts: list[str], port: int, secret: str) -> None:
    """Write where the driver is met, for those alone who may read the study's secrets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps({"hosts": hosts, "port": port, "secret": secret}), mode=0o600)


def serve(meeting: Path, place: int, *, slots: int | None, start_seconds: float, home: str) -> bool:
    """Serve the driver of a gang until that ends; return whether it has said so, or has gone away.

    Raises `EngineError` if no driver is met within `start_seconds`.
    """
    ignore_launcher()
    gpus, end = visible_gpus(), time.monotonic() + start_seconds
    slots = slots or max(1, len(gpus))
    threads = max(1, cores() // slots)
    # A file of an earlier job leads nowhere, until the driver has written it anew.
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = json.loads(meeting.read_text(encoding="utf-8"))
            for host in found["hosts"]:
                driver, token = (host, found["port"]), place_token(found["secret"], place)
                with contextlib.suppress(OSError):
                    return serve_driver(driver, token, slots=slots, gpus=gpus, threads=threads, home=home)
        if time.monotonic() > end:
            raise EngineError(
                f"gang: no driver was met by {meeting} within {start_seconds:g} s; its first task has not started, or "
                "cannot be reached from this node"
            )
        time.sleep(_AGAIN_SECONDS)


def serve_driver(
    driver: tuple[str, int], token: bytes, *, slots: int, gpus: tuple[str, ...], threads: int, home: str
) -> bool:
    """Start, guard and end worker processes as a driver says; return whether it said "bye", or is gone.

    Raises `OSError` if the driver cannot be reached.
    """
    with contextlib.suppress(OSError):
        # The driver's folder may not exist on this node.
        os.chdir(home)
    line = _connect_to_driver(driver, token)
    # Its address on the network where the driver was reached.
    host = str(line.getsockname()[0])
    return _Member(Connection(line.detach()), driver, host, gpus=gpus, threads=threads).serve(slots)


def _connect_to_driver(driver: tuple[str, int], token: bytes) -> socket.socket:
    line = socket.create_connection(driver, timeout=_KNOCK_SECONDS)
    # The worker uses the descriptor directly, without Python's timeouts.
    line.settimeout(None)
    keep_alive(line)
    line.sendall(token)
    return line


class _Member:
    def __init__(
        self,
        line: "Connection[Any, Any]",
        driver: tuple[str, int],
        host: str,
        *,
        gpus: tuple[str, ...],
        threads: int,
    ) -> None:
        self._line, self._driver, self._host, self._gpus, self._threads = line, driver, host, gpus, threads
        self._running: dict[int, tuple[Order, ChildProcess]] = {}

    def serve(self, slots: int) -> bool:
        self._line.send(Arrived(host=socket.gethostname(), slots=slots, gpus=self._gpus))
        try:
            while True:
                while self._line.poll(_LOOK_SECONDS):
                    message = self._line.recv()
                    if message == ("bye",):
                        return True
                    self._follow_order(*message)
                self._reap_processes()
        except (EOFError, OSError):
            return False
        finally:
            for _, process in self._running.values():
                process.close(kill=True)

    def _follow_order(self, what: str, order: Any = None, *words: Any) -> None:
        """Do what the driver says: start a process, ask it to end, kill it, or name an address for ranks to meet."""
        if what == "address":
            self._line.send(find_free_address(self._host))
        elif what == "start":
            self._start_process(order)
        elif order in self._running:
            _, process = self._running[order]
            if what == "terminate":
                process.terminate(*words)
            else:
                process.close(kill=True)

    def _start_process(self, order: Order) -> None:
        try:
            line = _connect_to_driver(self._driver, order.token)
        except OSError as error:
            said = Died(why=f"its node could not reach the driver: {error}", blame=False)
            self._line.send((order.serial, said))
            return
        gpu = self._gpus[order.slot % len(self._gpus)] if self._gpus else ""
        self._running[order.serial] = order, ChildProcess(worker_environment(self._threads, gpu), line)

    def _reap_processes(self) -> None:
        """Tell of processes that have ended, and end those that are over a limit."""
        for serial, (order, process) in list(self._running.items()):
            if process.ended:
                del self._running[serial]
                self._line.send((serial, process.outcome()))
            else:
                process.guard(order.memory_bytes, order.grace_seconds)


def main(file: str, place: str, slots: str, start_seconds: str) -> None:
    """Serve as the member of a place; 0 slots: one a GPU."""
    serve(Path(file), int(place), slots=int(slots) or None, start_seconds=float(start_seconds), home=str(Path.cwd()))

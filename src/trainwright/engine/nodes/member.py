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
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainwright.engine.devices import cores, visible_gpus
from trainwright.engine.process.gang import free_address
from trainwright.engine.process.listener import keep_alive
from trainwright.engine.process.worker_process import ChildProcess, thread_variables
from trainwright.engine.protocol import Died, Outcome
from trainwright.errors import EngineError
from trainwright.publishing import write_file
from trainwright.signals import ignore_launcher

__all__ = ["COMMAND", "Arrived", "Order", "main", "place_token", "publish_meeting", "serve"]

COMMAND = (sys.executable, "-c", "import sys; from trainwright.engine.nodes.member import main; main(*sys.argv[1:])")
"""Starts a member; not as a module, whose classes no other process would know. The words of `main` follow."""

_LOOK_SECONDS = 0.05
"""How often messages and processes are looked for; reports of trials have lines of their own."""
_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrived:
    """What a member says first: its place in the gang, its host, its slots and their GPUs."""

    place: int
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
    with contextlib.suppress(OSError):
        # The driver's folder may not exist on this node.
        os.chdir(home)
    line, driver, own = _meet(meeting, place, start_seconds)
    return _Member(line, driver, own, place=place, gpus=visible_gpus(), slots=slots).serve()


def _meet(meeting: Path, place: int, start_seconds: float) -> "tuple[Connection[Any, Any], tuple[str, int], str]":
    """Return the line to the driver, the driver's address as it was reached, and this node's on the same network."""
    end = time.monotonic() + start_seconds
    # A file of an earlier job leads nowhere, until the driver has written it anew.
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = json.loads(meeting.read_text(encoding="utf-8"))
            for host in found["hosts"]:
                with contextlib.suppress(OSError):
                    line = socket.create_connection((host, found["port"]), timeout=5.0)
                    line.settimeout(None)
                    keep_alive(line)
                    line.sendall(place_token(found["secret"], place))
                    own = str(line.getsockname()[0])
                    return Connection(line.detach()), (host, found["port"]), own
        if time.monotonic() > end:
            raise EngineError(
                f"gang: no driver was met by {meeting} within {start_seconds:g} s; its first task has not started, or "
                "cannot be reached from this node"
            )
        time.sleep(_AGAIN_SECONDS)


class _Member:
    def __init__(
        self,
        line: "Connection[Any, Any]",
        driver: tuple[str, int],
        own: str,
        *,
        place: int,
        gpus: tuple[str, ...],
        slots: int | None,
    ) -> None:
        self._line, self._driver, self._own, self._place, self._gpus = line, driver, own, place, gpus
        self._slots = slots or max(1, len(gpus))
        self._running: dict[int, tuple[Order, ChildProcess]] = {}

    def serve(self) -> bool:
        arrived = Arrived(place=self._place, host=socket.gethostname(), slots=self._slots, gpus=self._gpus)
        self._line.send(arrived)
        try:
            while True:
                while self._line.poll(_LOOK_SECONDS):
                    message = self._line.recv()
                    if message == "bye":
                        return True
                    self._obey(*message)
                self._look()
        except (EOFError, OSError):
            return False
        finally:
            for _, process in self._running.values():
                process.close(kill=True)

    def _obey(self, what: str, order: Any, *words: Any) -> None:
        """Do what the driver says: start a process, ask it to end, kill it, or name an address for ranks to meet."""
        if what == "address":
            self._line.send(("address", order, free_address(self._own)))
        elif what == "start":
            self._start(order)
        elif order in self._running:
            _, process = self._running[order]
            if what == "terminate":
                process.terminate(*words)
            else:
                process.close(kill=True)

    def _start(self, order: Order) -> None:
        try:
            line = socket.create_connection(self._driver, timeout=30.0)
            line.settimeout(None)
            keep_alive(line)
            line.sendall(order.token)
        except OSError as error:
            self._tell(order.serial, Died(why=f"its node could not reach the driver: {error}", blame=False))
            return
        self._running[order.serial] = order, ChildProcess(self._environment(order.slot), line)

    def _environment(self, slot: int) -> Mapping[str, str]:
        gpu = self._gpus[slot % len(self._gpus)] if self._gpus else ""
        threads = thread_variables(max(1, cores() // self._slots))
        return {**threads, "CUDA_VISIBLE_DEVICES": gpu}

    def _look(self) -> None:
        """Tell of processes that have ended, and end those that are over a limit."""
        for serial, (order, process) in list(self._running.items()):
            if process.ended:
                del self._running[serial]
                self._tell(serial, process.outcome())
                continue
            if order.memory_bytes is not None and not process.terminating:
                resident = process.resident_bytes()
                if resident > order.memory_bytes:
                    message = f"it held {resident:,} bytes of memory, above memory_bytes={order.memory_bytes:,}"
                    process.terminate("out_of_memory", message, order.grace_seconds)
            process.enforce()

    def _tell(self, serial: int, outcome: Outcome) -> None:
        self._line.send(("ended", serial, outcome))


def main(file: str, place: str, slots: str, start_seconds: str) -> None:
    """Serve as the member of a place; 0 slots: one a GPU."""
    serve(Path(file), int(place), slots=int(slots) or None, start_seconds=float(start_seconds), home=str(Path.cwd()))

"""The actor of one device: it starts the worker process, guards it, and says how it ended. It runs no training itself.

A process beside the actor can be killed with all that it started, its end has an exit status, and what a user's code
does to threads, signals or memory leaves Ray alone. The process speaks with the driver through a socket of its own,
so that no report costs a remote call.
"""

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainwright.engine.process.gang import free_address
from trainwright.engine.process.listener import keep_alive
from trainwright.engine.process.worker_process import ChildProcess
from trainwright.engine.protocol import Died, Outcome
from trainwright.engine.ray.cluster import load_ray

__all__ = ["DeviceHost", "WorkerOrder"]

_LOOK_SECONDS = 0.1
"""How often the process is looked at. The driver learns of its end from the socket, and then waits for the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOrder:
    """What an actor needs to start a worker process, and to bring it together with its driver."""

    driver: tuple[str, int]
    token: bytes = field(repr=False)
    """By which the driver knows the process again; new for each."""
    home: str
    environment: Mapping[str, str]
    gpu: bool
    memory_bytes: int | None
    grace_seconds: float
    connect_seconds: float


class DeviceHost:
    """Keeps one worker process at a time. `work` runs as long as the process does, the other methods beside it."""

    def __init__(self) -> None:
        ray = load_ray()
        self._gpus = [str(gpu) for gpu in ray.get_gpu_ids()]
        self._address = str(ray.util.get_node_ip_address())
        self._process: ChildProcess | None = None

    async def work(self, order: WorkerOrder) -> Outcome:
        """Start a worker process, and return how it ended."""
        import asyncio

        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if order.gpu else ""
        # A worker that sees other GPUs than its own would take a neighbour's memory.
        if order.gpu and (len(self._gpus) != 1 or visible != self._gpus[0]):
            return Died(why=f"Ray gave it the GPUs {self._gpus} and shows it {visible!r}, where one was asked for")
        with contextlib.suppress(OSError):
            # The driver's folder may not exist on this node.
            os.chdir(order.home)
        try:
            line = socket.create_connection(order.driver, timeout=order.connect_seconds)
            # The worker uses the descriptor directly, without Python's timeouts.
            line.settimeout(None)
            keep_alive(line)
            line.sendall(order.token)
        except OSError as error:
            return Died(why=f"its node could not reach the driver at {order.driver[0]}:{order.driver[1]}: {error}")
        self._process = process = ChildProcess({**order.environment, "CUDA_VISIBLE_DEVICES": visible}, line)
        # Looked at by the actor, as the driver cannot see the memory of another node.
        while not process.ended:
            if order.memory_bytes is not None and not process.terminating:
                resident = process.resident_bytes()
                if resident > order.memory_bytes:
                    message = f"it held {resident:,} bytes of memory, above memory_bytes={order.memory_bytes:,}"
                    process.terminate("out_of_memory", message, order.grace_seconds)
            process.enforce()
            await asyncio.sleep(_LOOK_SECONDS)
        return process.outcome()

    async def terminate(self, failure: str, message: str, grace_seconds: float) -> None:
        """Ask the process to end, and kill it and its children after `grace_seconds`."""
        if self._process is not None:
            self._process.terminate(failure, message, grace_seconds)

    async def stop(self) -> None:
        """Kill the process and its children."""
        if self._process is not None:
            self._process.close(kill=True)

    async def free_address(self) -> str:
        """Return an address of this node where nobody listens."""
        return free_address(self._address)

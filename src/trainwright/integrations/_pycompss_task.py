"""The task of the PyCOMPSs engine: the member of one slot. Imported only where PyCOMPSs is, by driver and workers."""

import os
import threading
from contextlib import suppress

from pycompss.api.constraint import constraint
from pycompss.api.task import task

from trainwright.cluster.visible_devices import visible_gpus
from trainwright.engine.nodes.member import serve_driver

__all__ = ["SEQUENTIAL", "here", "serve_slot"]

SEQUENTIAL = "sequential"
"""What a task returns that PyCOMPSs, without its runtime, has run in its caller's thread."""


def here() -> tuple[int, int]:
    """Return the process and the thread."""
    return os.getpid(), threading.get_ident()


@constraint(  # type: ignore[untyped-decorator]  # PyCOMPSs has no types
    processors=[
        {"processorType": "CPU", "computingUnits": "$TRAINWRIGHT_CPUS"},
        {"processorType": "GPU", "computingUnits": "$TRAINWRIGHT_GPUS"},
    ]
)
@task(returns=1)  # type: ignore[untyped-decorator]  # likewise
def serve_slot(caller: tuple[int, int], hosts: list[str], port: int, token: bytes, home: str) -> str:
    """Start, guard and end the worker processes of a slot until the driver ends; `hosts` are names of its node."""
    if caller == here():
        return SEQUENTIAL
    gpus = (",".join(visible_gpus()),) if int(os.environ.get("TRAINWRIGHT_GPUS") or 0) else ()
    threads = int(os.environ.get("TRAINWRIGHT_CPUS") or 1)
    for host in hosts:
        with suppress(OSError):
            serve_driver((host, port), token, slots=1, gpus=gpus, threads=threads, home=home)
            return "served"
    return f"the driver was met at none of {', '.join(hosts)}, port {port}"

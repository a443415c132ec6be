"""The Ray cluster: found or started, its nodes, and which devices of theirs are slots."""

import contextlib
import importlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainwright.cluster.visible_devices import cores
from trainwright.errors import EngineError, MissingExtra, first_line

__all__ = ["Node", "SlotMap", "check_cluster", "connect", "living_nodes", "load_ray"]

_OLDEST, _BELOW = (2, 55), (3, 0)
"""The versions of Ray with which this was tested are in this range."""
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A living node and what it has in all."""

    id: str
    name: str
    cpus: int
    gpus: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotMap:
    """Which nodes serve, with equally many devices each; slots are numbered node by node."""

    nodes: tuple[Node, ...]
    slots_per_node: int
    gpu: bool

    @property
    def slots(self) -> int:
        """The devices of all nodes."""
        return len(self.nodes) * self.slots_per_node

    def node(self, slot: int) -> Node:
        """Return the node of a slot."""
        return self.nodes[slot // self.slots_per_node]

    def device(self, slot: int) -> str:
        """Return the name of a slot's device: Ray chooses which of its node's GPUs it is."""
        return f"{self.node(slot).name}/{'cuda' if self.gpu else 'cpu'}:{slot % self.slots_per_node}"

    @classmethod
    def of(
        cls, nodes: Sequence[Node], *, workers: int | None, gpus_per_node: int | None, cpus_per_device: int
    ) -> "SlotMap":
        """Choose the number of devices a node with which most are used: `workers` in all, if that is given.

        Devices are GPUs if a node has any and `gpus_per_node` is not 0, else so many CPUs each.
        """
        gpu = gpus_per_node != 0 and any(node.gpus for node in nodes)
        room = {node.id: node.cpus // cpus_per_device for node in nodes}
        if gpu:
            room = {node.id: min(node.gpus, room[node.id], gpus_per_node or node.gpus) for node in nodes}
        gpus, cpus = _join_counts(node.gpus for node in nodes), _join_counts(node.cpus for node in nodes)
        have = f"the cluster's nodes have {gpus} GPUs and {cpus} CPUs"
        if gpus_per_node and (not gpu or max(room.values(), default=0) < gpus_per_node):
            raise EngineError(
                f"Ray.gpus_per_node: got {gpus_per_node}, with cpus_per_device={cpus_per_device}; {have}; leave "
                "gpus_per_node out to use all"
            )
        # Every node gives equally many devices; each number of them leaves other nodes out.
        sizes = range(max(room.values(), default=0), 0, -1)
        serving = {size: [node for node in nodes if room[node.id] >= size] for size in sizes}
        if gpus_per_node:
            serving = {gpus_per_node: serving[gpus_per_node]}
        if workers is None:
            size = max(serving, key=lambda size: size * len(serving[size]), default=0)
            count = len(serving.get(size, ()))
        else:
            # The largest share of a node first, since ranks talk faster inside one.
            fits = (s for s, found in serving.items() if workers % s == 0 and len(found) >= workers // s)
            size = next(fits, 0)
            count = workers // size if size else 0
        if not count:
            raise EngineError(
                f"Ray.workers: got {workers}, with cpus_per_device={cpus_per_device}; {have}; allowed: at most what "
                "equally large shares of the nodes give"
            )
        return cls(nodes=tuple(serving[size][:count]), slots_per_node=size, gpu=gpu)


def _join_counts(counts: Iterable[int]) -> str:
    return "+".join(map(str, counts)) or "no"


def load_ray() -> Any:
    """Return the module `ray`, loaded when it is first needed. Raises `MissingExtra`, or if its version will not do."""
    with MissingExtra.instead_of_import_error("tw.Ray", "ray", "ray"):
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
        importlib.import_module("ray.exceptions")
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if not _OLDEST <= version < _BELOW:
        raise EngineError(f"ray {ray.__version__} is installed; tw.Ray needs 2.55 or later, below 3")
    return ray


def connect(ray: Any, address: str | None, cpus: int) -> bool:
    """Join the cluster at `address` or RAY_ADDRESS, else start one here with at least so many CPUs, logical ones.

    Return whether the connection is ours to end. One that this process has already is used as it is.
    """
    if ray.is_initialized():
        return False
    # Ray itself would join any cluster that it finds on this machine.
    chosen = address or os.environ.get("RAY_ADDRESS") or "local"
    if chosen.startswith("ray://"):
        raise EngineError(
            f"Ray.address: got {chosen!r}; allowed: HOST:PORT of a cluster in which this process runs, or 'auto'; "
            "start the study on one of its nodes"
        )
    local = {"num_cpus": max(cores(), cpus), "include_dashboard": False} if chosen == "local" else {}
    try:
        _check_answers(chosen)
        with _own_signals():
            ray.init(address=chosen, log_to_driver=False, logging_level="ERROR", **local)
    except (ConnectionError, OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise EngineError(
            f"Ray.address: no cluster can be joined at {chosen!r} ({first_line(error)}); start one with ray start "
            "--head, or leave address out for one on this machine"
        ) from error
    return True


def living_nodes(ray: Any) -> list[Node]:
    """Return the living nodes, in an order that is the same whenever they are the same."""
    found = sorted(
        (node["NodeManagerHostname"], node["NodeID"], node["Resources"]) for node in ray.nodes() if node["Alive"]
    )
    # Two nodes of one host name, as in tests, are told apart by their ids.
    names = [name for name, _, _ in found]
    return [
        Node(
            id=id_,
            name=name if names.count(name) == 1 else f"{name}-{id_[:6]}",
            cpus=int(resources.get("CPU", 0)),
            gpus=int(resources.get("GPU", 0)),
        )
        for name, id_, resources in found
    ]


def check_cluster(address: str) -> None:
    """Raise `EngineError` if the cluster's head does not answer any more: Ray would end this process for that."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            _check_answers(address)
        except OSError as error:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"tw.Ray: the cluster is gone, its head {address} does not answer; start one and run the study "
                    "again: it resumes"
                ) from error
            # A head with persistent storage may be restarting.
            time.sleep(0.5)
        else:
            return


def _check_answers(address: str) -> None:
    """Knock at HOST:PORT; where nobody listens Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the signal handler of SIGTERM that this process has: Ray would put its own in place."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before not in {signal.SIG_DFL, None} and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)

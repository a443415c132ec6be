"""The Ray engine: trials on the devices of a Ray cluster, each node with an actor that is the member of an engine.

The actor starts and guards worker processes and runs no training itself. A process beside the actor can be killed with
all that it started, its end has an exit status, and what a user's code does to threads, signals or memory leaves Ray
alone. Processes speak with the driver through sockets of their own, so that no report costs a remote call.
"""

import time
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from trainwright.engine.function_reference import FunctionReference
from trainwright.engine.nodes.member import serve_driver
from trainwright.engine.nodes.member_engine import Member, MemberEngine
from trainwright.engine.process.listener import WorkerListener
from trainwright.engine.protocol import Died, Handler, TrainFunction
from trainwright.engine.ray.cluster import SlotMap, check_cluster, connect, living_nodes, load_ray
from trainwright.errors import EngineError
from trainwright.validators import integer, optional, text

__all__ = ["Ray"]

_ALL_WORKERS = optional(integer(minimum=1), words="None for all that the cluster has")
_ALL_GPUS = optional(integer(minimum=0), words="None for all that a node has")
_NODE_SECONDS = 1.0
"""How often it is looked whether actors have ended."""
_FAREWELL_SECONDS = 10.0


class ActorMember(Member):
    """The member of a node that is an actor; `ending` is what its end will tell."""

    ray: Any
    actor: Any
    ending: Any
    _said: Died | None = None

    def describe_loss(self) -> Died:
        """Return why the actor is gone; what ran there is to blame unless its node has died."""
        if self._said is None:
            reason = "it does not answer"
            try:
                self.ray.get(self.ending, timeout=_FAREWELL_SECONDS)
            except self.ray.exceptions.GetTimeoutError:
                # Its node may have died only now.
                pass
            except self.ray.exceptions.OutOfMemoryError:
                reason = "Ray has killed it because its node ran out of memory"
            except self.ray.exceptions.RayError as error:
                reason = _find_reason(error)
            why = f"the actor of {self.name} is gone: {reason}"
            self._said = Died(why=why, blame="node has died" not in reason)
        return self._said


@dataclass(eq=False)
class Ray(MemberEngine):
    """Run trials on the devices of a Ray cluster.

    It is the cluster that this process has joined, or that `address` or else RAY_ADDRESS names ("auto": the one of this
    machine), or one started here for as long as the engine is open.

    Devices are GPUs where the cluster has any, else `cpus_per_device` CPUs each, which are logical: `workers` may be
    more than there are processors on a cluster started here. `workers` limits them, `gpus_per_node` takes so many of
    each node, 0 none. All are held from `open` to `close`. A trial of several devices is as many processes, one a
    device, the ranks of a group of torch.distributed. A run longer than `timeout_seconds`, or a process with more
    resident memory than `memory_bytes`, is asked to end and killed `grace_seconds` later. A node on which nothing
    starts within `start_seconds` is lost. `speeds={"old-*": 0.5}` says which devices, by patterns of NODE/cuda:N, are
    slower than others. When this process dies, Ray ends its actors.
    """

    workers: Annotated[int | None, _ALL_WORKERS, "devices at most"] = None
    _: KW_ONLY
    gpus_per_node: Annotated[int | None, _ALL_GPUS, "GPUs of each node"] = None
    cpus_per_device: Annotated[int, integer(minimum=1), "logical CPUs of a device"] = 1
    address: Annotated[str | None, optional(text("'HOST:PORT', 'auto', 'local'")), "cluster to join"] = None

    def check_together(self) -> None:
        """Begin without a cluster: it is joined when its slots are asked for."""
        self._ray: Any = None
        self._slot_map: SlotMap | None = None
        self._head = ""
        self._cluster_lost = False
        self._ours = False  # whether we joined or started the cluster
        self._looked_at_nodes = 0.0
        self._clear()

    @property
    def slots(self) -> int:
        """The number of devices. Joins or starts the cluster."""
        return self._join_cluster().slots

    @property
    def slots_per_node(self) -> int:
        """How many of them are in one node."""
        return self._join_cluster().slots_per_node

    def _name_device(self, slot: int) -> str:
        return self._join_cluster().device(slot)

    def _join_cluster(self) -> SlotMap:
        if self._slot_map is None:
            ray = self._ray = load_ray()
            # Joined late, so that an engine can be made where no cluster is yet.
            self._ours = connect(ray, self.address, (self.workers or 1) * self.cpus_per_device)
            self._head, self._cluster_lost = str(ray.get_runtime_context().gcs_address), False
            self._slot_map = SlotMap.of(
                living_nodes(ray),
                workers=self.workers,
                gpus_per_node=self.gpus_per_node,
                cpus_per_device=self.cpus_per_device,
            )
            self._number_slots([self._slot_map.slots_per_node] * len(self._slot_map.nodes))
            self._gpu = self._slot_map.gpu
        return self._slot_map

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Find out how workers will find `train`, and take the devices. Raises `EngineError` if others keep them."""
        FunctionReference.of(train)
        slot_map = self._join_cluster()
        self._listener = WorkerListener(str(self._ray.util.get_node_ip_address()))
        self._members = [self._start_member(place) for place in range(len(slot_map.nodes))]
        self._gather_members()
        if missing := [member for member in self._members if member.lost]:
            self.close()
            raise EngineError(
                f"tw.Ray: {slot_map.slots_per_node} devices of {missing[0].name} were not free within "
                f"start_seconds={self.start_seconds:g}; end what else runs on the cluster, or ask for fewer (workers=)"
            )
        super().open(train, directory)

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Hand what has happened to `handler`, waiting for at most `timeout_seconds` if nothing has."""
        if time.monotonic() - self._looked_at_nodes > _NODE_SECONDS:
            self._check_actors()
        super().poll(handler, timeout_seconds)

    def close(self) -> None:
        """End whatever runs, and the actors; leave a cluster that was started here."""
        members = [member for member in self._members if isinstance(member, ActorMember)]
        super().close()
        endings = [member.ending for member in members if member.arrived is not None]
        if not self._cluster_lost:
            # Each ends its processes first.
            if endings:
                self._ray.wait(endings, num_returns=len(endings), timeout=_FAREWELL_SECONDS, fetch_local=False)
            for member in members:
                self._ray.kill(member.actor)
        if self._ours:
            self._ray.shutdown()
            self._slot_map, self._ours = None, False

    # Actors.

    def _start_member(self, place: int) -> ActorMember:
        """Start the actor of a node, which holds its devices."""
        slot_map, listener = self._join_cluster(), self._require_listener()
        node, size = slot_map.nodes[place], slot_map.slots_per_node
        member = ActorMember(place, listener, name=node.name)
        # Pinned to its node, and never restarted by Ray: the driver decides what runs again.
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        host = self._ray.remote(ActorHost).options(
            num_cpus=size * self.cpus_per_device,
            num_gpus=size if slot_map.gpu else 0,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=strategy,
        )
        member.ray, member.actor = self._ray, host.remote()
        settings = {"slots": size, "threads": self.cpus_per_device, "home": str(Path.cwd())}
        member.ending = member.actor.serve.remote(listener.address, member.token, settings, gpu=slot_map.gpu)
        return member

    def _check_actors(self) -> None:
        """Start an actor again that has ended on a node that lives; raise `EngineError` if the cluster is gone."""
        self._looked_at_nodes = time.monotonic()
        by_ending = {m.ending: m for m in self._members if isinstance(m, ActorMember) and not m.lost}
        if by_ending:
            done, _ = self._ray.wait(list(by_ending), num_returns=len(by_ending), timeout=0, fetch_local=False)
            for ending in done:
                self._lose_member(by_ending[ending])

    def _lose_member(self, member: Member) -> None:
        super()._lose_member(member)
        try:
            check_cluster(self._head)
        except EngineError:
            # Nothing in it can be asked or ended any more.
            self._cluster_lost = True
            raise
        node = self._join_cluster().nodes[member.place]
        # One whose process never came is of no use; a node without an answer has died.
        if member.arrived is not None and node.id in {living.id for living in living_nodes(self._ray)}:
            self._members[member.place] = self._start_member(member.place)


class ActorHost:
    """The actor of a node."""

    def serve(self, driver: tuple[str, int], token: bytes, settings: dict[str, Any], *, gpu: bool) -> bool:
        """Start, guard and end worker processes until the driver ends."""
        gpus = tuple(str(number) for number in load_ray().get_gpu_ids()) if gpu else ()
        return serve_driver(driver, token, gpus=gpus, **settings)


def _find_reason(error: Exception) -> str:
    """Return the sentence of an error of Ray's that says most: the first is about tasks, the reason comes later."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    chosen = next((line for line in lines if "is dead because" in line), lines[0] if lines else type(error).__name__)
    return chosen.partition(". ")[0]

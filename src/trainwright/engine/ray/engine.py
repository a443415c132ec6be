"""The Ray engine: trials on the devices of a Ray cluster, each device with an actor that guards a worker process."""

import sys
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from trainwright.engine.function_reference import FunctionReference
from trainwright.engine.process.gang import Gang
from trainwright.engine.process.listener import WorkerListener
from trainwright.engine.process.worker_process import log_path, thread_variables
from trainwright.engine.protocol import Block, Died, Handler, Outcome, TrainFunction
from trainwright.engine.ray.cluster import PlacementGroups, SlotMap, check_cluster, connect, living_nodes, load_ray
from trainwright.engine.ray.host import DeviceHost, WorkerOrder
from trainwright.engine.ray.remote_worker import RemoteWorker
from trainwright.errors import EngineError
from trainwright.settings import Settings
from trainwright.train.assignment import Assignment
from trainwright.validators import integer, number, optional, text

__all__ = ["Grant", "Ray"]

_Part = TypeVar("_Part")
_ALL_WORKERS = optional(integer(minimum=1), words="None for all that the cluster has")
_ALL_GPUS = optional(integer(minimum=0), words="None for all that a node has")
_LIMIT = optional(number(above=0), words="None for no limit")
_LOOK_SECONDS = 0.25
"""How often actors that have ended and times that are over are looked for; reports wait for none of this."""
_AGAIN_SECONDS = 1.0
"""How long to wait before an actor is started in place of one that was lost before its process came."""
_NODE_SECONDS = 1.0
"""How often nodes are looked at after an actor was lost, and while one starts."""
_FAREWELL_SECONDS = 10.0


@dataclass(kw_only=True, slots=True)
class Grant:
    """The slots that a trial has, until its end has been told."""

    trial: int
    block: Block
    since: float = field(default_factory=time.monotonic)
    assignment: Assignment
    workers: dict[range, RemoteWorker]
    trouble: str = ""
    """Why a process of it did not start."""
    gang: Gang[RemoteWorker] | None = None
    """Its ranks, once all their processes are there."""


@dataclass(eq=False)
class Ray(Settings, error=EngineError):
    """Run trials on the devices of a Ray cluster.

    It is the cluster that this process has joined, or that `address` or else RAY_ADDRESS names ("auto": the one of this
    machine), or one started here for as long as the engine is open.

    Devices are GPUs where the cluster has any, else `cpus_per_device` CPUs each, which are logical: `workers` may be
    more than there are processors on a cluster started here. `workers` limits them, `gpus_per_node` takes so many of
    each node, 0 none. All are held from `open` to `close`. A trial of several devices is as many processes, one a
    device, the ranks of a group of torch.distributed. A run longer than `timeout_seconds`, or a rank with more
    resident memory than `memory_bytes`, is asked to end and killed `grace_seconds` later. What does not start within
    `start_seconds` is lost. When this process dies, Ray ends its actors and placement groups.
    """

    workers: Annotated[int | None, _ALL_WORKERS, "devices at most"] = None
    _: KW_ONLY
    gpus_per_node: Annotated[int | None, _ALL_GPUS, "GPUs of each node"] = None
    cpus_per_device: Annotated[int, integer(minimum=1), "logical CPUs of a device"] = 1
    address: Annotated[str | None, optional(text("'HOST:PORT', 'auto', 'local'")), "cluster to join"] = None
    timeout_seconds: Annotated[float | None, _LIMIT, "seconds of a run at most"] = None
    memory_bytes: Annotated[int | None, _LIMIT, "resident memory of a rank at most"] = None
    grace_seconds: Annotated[float, number(minimum=0), "seconds to end by itself"] = 5.0
    start_seconds: Annotated[float, number(above=0), "seconds for a process to start"] = 120.0

    def check_together(self) -> None:
        """Begin without a cluster: it is joined when its slots are asked for."""
        self._ray: Any = None
        self._slot_map: SlotMap | None = None
        self._head = ""
        self._cluster_lost = False
        self._ours = False  # whether we joined or started the cluster
        self._placement_groups: PlacementGroups | None = None
        self._listener: WorkerListener | None = None
        self._host: Any = None
        self._reference: FunctionReference | None = None
        self._directory: Path | None = None
        self._actors: dict[int, Any] = {}  # handles by slot
        self._idle: dict[int, RemoteWorker] = {}  # by slot
        self._grants: dict[int, Grant] = {}  # by trial
        self._seats: dict[RemoteWorker, tuple[Grant, int]] = {}  # whom a worker serves, and as which rank
        self._over: list[tuple[int, Outcome]] = []  # ends of launches that came to nothing
        self._looked = self._looked_at_nodes = 0.0
        self._nodes_doubtful = False

    # What it has.

    @property
    def slots(self) -> int:
        """The number of devices. Joins or starts the cluster."""
        return self._join_cluster().slots

    @property
    def slots_per_node(self) -> int:
        """How many of them are in one node."""
        return self._join_cluster().slots_per_node

    @property
    def gone(self) -> frozenset[int]:
        """The slots whose nodes have died since `open`, or where no process started within `start_seconds`."""
        return self._placement_groups.gone if self._placement_groups is not None else frozenset()

    @property
    def grants(self) -> Mapping[int, Grant]:
        """What runs or starts, by trial. Blocks are disjoint, and none is of a slot that is gone when it is granted."""
        return self._grants

    def devices(self, block: Block) -> tuple[str, ...]:
        """Return the names of a block's devices, with the nodes that they are in."""
        slot_map = self._join_cluster()
        return tuple(slot_map.device(slot) for slot in block)

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
        return self._slot_map

    # Opening, launching, polling, closing.

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Find out how workers will find `train`, and take the devices. Raises `EngineError` if others keep them."""
        self._reference = FunctionReference.of(train)
        slot_map = self._join_cluster()
        self._directory = None if directory is None else directory.resolve()
        self._listener = WorkerListener(str(self._ray.util.get_node_ip_address()))
        self._host = self._ray.remote(DeviceHost)
        self._placement_groups = PlacementGroups(self._ray, slot_map, cpus_per_device=self.cpus_per_device)
        try:
            self._placement_groups.wait(self.start_seconds)
        except EngineError:
            self.close()
            raise

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Hand the assignment to the worker of each slot, starting those that are not there."""
        taken = {slot: grant.trial for grant in self._grants.values() for slot in grant.block}
        # A device must never be given twice, whatever a policy asks for.
        wrong = [slot for slot in block if slot in taken or not 0 <= slot < self.slots]
        if wrong:
            holder = f"trial {taken[wrong[0]]} has it" if wrong[0] in taken else f"it has {self.slots} slots"
            raise EngineError(f"tw.Ray: slot {wrong[0]} cannot be given to trial {assignment.trial}: {holder}")
        # The driver planned before it knew: told at once, it plans again.
        if self.gone.intersection(block):
            self._over.append((assignment.trial, Died(why="its node is gone", blame=False)))
            return
        workers = {range(slot, slot + 1): self._take_worker(slot) for slot in block}
        grant = Grant(trial=assignment.trial, block=block, assignment=assignment, workers=workers)
        self._grants[assignment.trial] = grant
        self._seats.update({worker: (grant, rank) for rank, worker in enumerate(workers.values())})
        self._begin_trial(grant)

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Serve the workers that have something to say, and look for those that have gone."""
        deadline = time.monotonic() + timeout_seconds
        for grant in self._grants.values() if handler.leaves() else ():
            if grant.gang is not None:
                grant.gang.leave()
        while True:
            over, self._over = self._over, []
            for trial, outcome in over:
                handler.exited(trial, outcome)
            left = deadline - time.monotonic()
            if over or not self._grants:
                return
            ready = _require_open(self._listener).wait(min(left, _LOOK_SECONDS))
            notified = False
            for worker in sorted(ready, key=lambda worker: worker.slot):
                notified |= self._serve_worker(worker, handler)
            if time.monotonic() - self._looked >= _LOOK_SECONDS:
                self._look_around(handler)
            for grant in [grant for grant in self._grants.values() if grant.gang is None]:
                self._begin_trial(grant)
            if (notified or left <= 0) and not self._over:
                return

    def close(self) -> None:
        """End whatever runs, remove actors and groups, leave a cluster that was started here."""
        # All lines are closed first, so that the processes end at the same time.
        workers = [*self._seats, *self._idle.values()]
        for worker in workers:
            worker.close(kill=False)
        try:
            if not self._cluster_lost:
                self._end_actors([worker.ending for worker in workers])
                if self._placement_groups is not None:
                    self._placement_groups.release()
        finally:
            if self._listener is not None:
                self._listener.close()
            for table in (self._actors, self._idle, self._grants, self._seats):
                table.clear()
            self._over.clear()
            self._placement_groups = self._listener = None
            if self._ours:
                self._ray.shutdown()
                self._slot_map, self._ours = None, False

    def _end_actors(self, endings: list[Any]) -> None:
        stops = [actor.stop.remote() for actor in self._actors.values()]
        if stops:
            self._ray.wait(stops, num_returns=len(stops), timeout=_FAREWELL_SECONDS)
        for actor in self._actors.values():
            self._ray.kill(actor)
        if endings:
            self._ray.wait(endings, num_returns=len(endings), timeout=_FAREWELL_SECONDS)

    # Workers and their trials.

    def _take_worker(self, slot: int) -> RemoteWorker:
        """Return the slot's idle worker process, or start one, with an actor if that is not there."""
        worker = self._idle.pop(slot, None)
        if worker is not None and not worker.ended and not worker.connection.poll():
            return worker
        if worker is not None:
            # It went away while it waited: not this trial's doing.
            # Finds out whether its actor still lives.
            worker.outcome()
            self._end_worker(worker)
        placement_groups, listener = _require_open(self._placement_groups), _require_open(self._listener)
        if slot not in self._actors:
            if self._nodes_doubtful:
                self._check_cluster()
            self._actors[slot] = placement_groups.actor(self._host, slot)
        actor = self._actors[slot]
        worker = RemoteWorker(self._ray, actor, slot, listener)
        listener.expect(worker)
        worker.ending = actor.work.remote(
            WorkerOrder(
                driver=listener.address,
                token=worker.token,
                home=str(Path.cwd()),
                environment=thread_variables(self.cpus_per_device),
                gpu=self._join_cluster().gpu,
                memory_bytes=self.memory_bytes,
                grace_seconds=self.grace_seconds,
                connect_seconds=self.start_seconds,
            )
        )
        return worker

    def _begin_trial(self, grant: Grant) -> None:
        """Let a trial begin if the processes of all its ranks are there: all or none."""
        ranks = list(grant.workers.values())
        # A group of processes starts with all its ranks or not at all.
        if not all(worker.connected for worker in ranks):
            return
        assignment = grant.assignment
        if len(ranks) > 1:
            try:
                address = self._ray.get(ranks[0].actor.free_address.remote(), timeout=_FAREWELL_SECONDS)
            except (self._ray.exceptions.RayError, TimeoutError):
                # The next look tells why.
                ranks[0].ended = True
                return
            assignment = replace(assignment, address=address)
        grant.gang = Gang(assignment, grant.workers, self._make_message)

    def _make_message(self, assignment: Assignment) -> tuple[Any, ...]:
        log = log_path(self._directory, assignment)
        return sys.path, sys.argv, self._reference, assignment, log, self._join_cluster().gpu

    def _serve_worker(self, worker: RemoteWorker, handler: Handler) -> bool:
        """Deal with what a worker has to say; return whether the handler was told something."""
        grant, rank = self._seats.get(worker, (None, 0))
        if grant is None or grant.gang is None:
            # An idle process has nothing to say: its connection was closed.
            worker.ended = True
            _require_open(self._listener).forget(worker)
            return False
        grant.gang.serve(rank, handler)
        self._settle_trial(grant, handler)
        return True

    def _settle_trial(self, grant: Grant, handler: Handler) -> None:
        """Tell of a trial's end, if it has come, and keep its workers for the next."""
        if grant.gang is None or grant.gang.outcome is None:
            return
        self._dissolve_grant(grant, reuse=grant.gang.reusable)
        handler.exited(grant.trial, grant.gang.outcome)

    def _fail_launch(self, grant: Grant, outcome: Outcome) -> None:
        """End a launch that came to nothing; the processes that did come have run nothing, and are free."""
        self._dissolve_grant(grant, reuse=True)
        self._over.append((grant.trial, outcome))

    def _dissolve_grant(self, grant: Grant, *, reuse: bool) -> None:
        del self._grants[grant.trial]
        for worker in grant.workers.values():
            del self._seats[worker]
            if reuse and worker.connected and not worker.ended:
                self._idle[worker.slot] = worker
            else:
                self._end_worker(worker)

    def _end_worker(self, worker: RemoteWorker) -> None:
        """End a worker process, and its actor if that is lost or has never shown a process."""
        worker.close(kill=True)
        # An actor without a process tells nothing: its node may be gone.
        if worker.actor_lost or not worker.connected:
            self._nodes_doubtful = True
            actor = self._actors.pop(worker.slot, None)
            if actor is not None:
                self._ray.kill(actor)

    # Looking after all of them.

    def _look_around(self, handler: Handler) -> None:
        """Look for workers that have ended, times that are over, and nodes that are gone."""
        now = self._looked = time.monotonic()
        # One wait over all actors' endings, which asks Ray once.
        by_ending = {worker.ending: worker for worker in (*self._seats, *self._idle.values())}
        done, _ = self._ray.wait(list(by_ending), num_returns=len(by_ending), timeout=0, fetch_local=False)
        for ending in done:
            by_ending[ending].ended = True
        for slot in [slot for slot, worker in self._idle.items() if worker.ended]:
            worker = self._idle.pop(slot)
            # Finds out whether its actor still lives.
            worker.outcome()
            self._end_worker(worker)
        for grant in list(self._grants.values()):
            if grant.gang is not None:
                grant.gang.watch(
                    handler, timeout_seconds=self.timeout_seconds, memory_bytes=None, grace=self.grace_seconds
                )
                self._settle_trial(grant, handler)
            else:
                self._watch_start(grant, now)
        starting = any(grant.gang is None for grant in self._grants.values())
        if (starting or self._nodes_doubtful) and now - self._looked_at_nodes >= _NODE_SECONDS:
            self._look_at_nodes()

    def _watch_start(self, grant: Grant, now: float) -> None:
        """Try again what did not start, and give up a slot where nothing has started in time. No trial is to blame."""
        # Processes that have come wait for the others.
        missing = {part: worker for part, worker in grant.workers.items() if worker.ended or not worker.connected}
        for part, worker in missing.items():
            if worker.ended and worker.seconds > _AGAIN_SECONDS:
                outcome = worker.outcome()
                grant.trouble = outcome.why if isinstance(outcome, Died) else ""
                del self._seats[worker]
                self._end_worker(worker)
                grant.workers[part] = another = self._take_worker(worker.slot)
                self._seats[another] = grant, list(grant.workers).index(part)
        if missing and now - grant.since > self.start_seconds:
            _require_open(self._placement_groups).gone |= {worker.slot for worker in missing.values()}
            late = ", ".join(self._join_cluster().device(worker.slot) for worker in missing.values())
            why = f"no worker process came from {late} within start_seconds={self.start_seconds:g}"
            self._fail_launch(grant, Died(why=f"{why} ({grant.trouble})" if grant.trouble else why, blame=False))

    def _check_cluster(self) -> None:
        try:
            check_cluster(self._head)
        except EngineError:
            # Nothing in it can be asked or ended any more.
            self._cluster_lost = True
            raise

    def _look_at_nodes(self) -> None:
        """Take note of nodes that are gone."""
        placement_groups = _require_open(self._placement_groups)
        self._check_cluster()
        self._looked_at_nodes, self._nodes_doubtful = time.monotonic(), False
        before = placement_groups.gone
        placement_groups.look()
        # Idle workers of a lost node have nobody who would miss them.
        for slot in placement_groups.gone - before:
            worker = self._idle.pop(slot, None)
            if worker is not None:
                worker.actor_lost = True
                self._end_worker(worker)
        for grant in list(self._grants.values()):
            if grant.gang is None and placement_groups.gone.intersection(grant.block):
                self._fail_launch(grant, Died(why="its node is gone", blame=False))


def _require_open(part: _Part | None) -> _Part:
    if part is None:
        raise EngineError("tw.Ray: it is not open; open it before launching or polling")
    return part

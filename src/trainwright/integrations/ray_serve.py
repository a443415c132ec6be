"""Ray Serve: the same ensemble by the same plan over several machines, a deployment per unit and kind of instance.

Arrays travel through Ray's object store. On one machine it is slower than `Deployment`, by design.
"""

import itertools
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Self

import numpy as np

from trainwright.ensemble import Ensemble, Member
from trainwright.ensemble.library.networks import build_network, predict_member
from trainwright.ensemble.metrics import Array
from trainwright.errors import EnsembleError, MissingExtra, NotReady, Overloaded, RequestError
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.runtime.batching import Request, request_of
from trainwright.serve.runtime.responses import answer_of, incomplete_refusal
from trainwright.serve.service import DeploymentSettings, Options, Response, check_options

__all__ = ["RayService"]

_QUEUE_ROWS = 8192
_THREADS = 64  # requests that are waited for at a time


class RayService:
    """A `Service` whose units are Ray Serve deployments: `with RayService(ensemble, plan) as service: ...`.

    An instance of the plan is a replica. A group of cores asks Ray for its threads, an accelerator for its share of
    one: Ray chooses which. Members' folders must be readable on every node. It joins the
    cluster that RAY_ADDRESS names, or starts Ray here. Of `settings` deadline, queue, quorum and strict count.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        plan: DeploymentPlan | None = None,
        *,
        settings: DeploymentSettings | None = None,
        name: str = "trainwright",
    ) -> None:
        with MissingExtra.instead_of_import_error("--engine ray", "ray[serve]", "ray"):
            import ray
            from ray import serve
        # Ray's annotations are narrower than what it accepts.
        self._ray: Any = ray
        self._serve: Any = serve
        self.ensemble = ensemble
        self._settings = DeploymentSettings() if settings is None else settings
        self._plan = DeploymentPlan.simple(ensemble, "cpu") if plan is None else plan
        self._plan.check(ensemble, self._plan.devices)
        self._owns_ray = not self._ray.is_initialized()
        if self._owns_ray:
            self._ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        self._applications: list[str] = []
        self._lock = threading.Lock()
        self._open: dict[Future[Response], int] = {}  # rows that are waited for
        self._ended = False
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="trainwright-ray")
        try:
            # Requests arrive at our own server.
            self._serve.start(proxy_location="Disabled")
            # By the unit's members: its replicas, asked in turn.
            self._units = {unit.members: itertools.cycle([*self._deploy(name, unit)]) for unit in self._plan.units}
        except BaseException:
            self.drain(0.0)
            raise

    def submit(self, x: Array, options: Options) -> "Future[Response]":
        """Admit the rows x [N, ...], or raise Overloaded or NotReady at once; the future may raise DeadlinePassed."""
        check_options(options, self.ensemble)
        request = request_of(x, options, self._settings.deadline_ms)
        most = self._settings.queue_rows or _QUEUE_ROWS
        with self._lock:
            if self._ended:
                raise NotReady("the service is ending; ask another, or again later", 5.0)
            if (rows := sum(self._open.values())) + len(x) > most:
                raise Overloaded(f"queue: holds {rows} rows, the request has {len(x)}; allowed: {most}", 1.0)
            future = self._pool.submit(self._respond, request)
            self._open[future] = len(x)
        future.add_done_callback(lambda done: self._open.pop(done, None))
        return future

    def ready(self) -> bool:
        """Say whether requests are admitted now."""
        return not self._ended

    def state(self) -> Mapping[str, Any]:
        """Return the rows that are waited for, and each application with its state in Ray's words."""
        known = {} if self._ended else self._serve.status().applications
        names = [name for name in self._applications if name in known]
        applications = [{"name": name, "state": str(known[name].status.value)} for name in names]
        counts = {"waiting_rows": sum(list(self._open.values())), "requests": len(self._open)}
        return {"engine": "ray", **counts, "applications": applications, "plan": self._plan.to_json()}

    def drain(self, seconds: float) -> None:
        """Refuse new requests, finish the admitted ones for at most so long, and take the deployments down."""
        with self._lock:
            first, self._ended = not self._ended, True
        if not first:
            return
        wait(list(self._open), timeout=seconds)
        self._pool.shutdown(wait=False, cancel_futures=True)
        for name in self._applications:
            self._serve.delete(name, _blocking=False)
        if self._owns_ray:
            self._serve.shutdown()
            self._ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.drain(0.0)

    def _deploy(self, name: str, unit: Any) -> Iterator[Any]:
        """Yield the handle of each replica of a unit; equal instances are replicas of one deployment."""
        sharing = Counter(instance.device.name for instance in self._plan.instances)
        alike: dict[tuple[str, int, int, int], int] = Counter(
            (one.device.kind, one.batch, one.threads, sharing[one.device.name])
            for one in self._plan.instances
            if one.unit == unit
        )
        for (kind, batch, threads, sharers), replicas in alike.items():
            # An instance reserves its part of a device that several have in common.
            part = 1 / sharers
            share = {"num_cpus": 0, "num_gpus": part} if kind == "cuda" else {"num_cpus": threads * part}
            application = f"{name}-{unit.name}-{kind}-{batch}-{threads}-{sharers}"
            deployment = self._serve.deployment(_Replica, name=application).options(
                num_replicas=replicas, max_ongoing_requests=_THREADS, ray_actor_options=share
            )
            self._applications.append(application)
            members = tuple(self.ensemble.members[place] for place in unit.members)
            bound = deployment.bind(members, kind, threads, batch, tuple(sys.path))
            yield from [self._serve.run(bound, name=application, route_prefix=None)] * replicas

    def _respond(self, request: Request) -> Response:
        rows = self._ray.put(np.ascontiguousarray(request.x))
        # A cycle is no thread's own.
        with self._lock:
            units = {members: next(replicas) for members, replicas in self._units.items()}
        replies = {members: replica.predict.remote(rows) for members, replica in units.items()}
        outputs: dict[int, Array] = {}
        missing: dict[int, str] = {}
        for members, reply in replies.items():
            left = request.deadline - time.monotonic()
            try:
                found = reply.result(timeout_s=None if left == float("inf") else max(0.0, left))
            except RequestError as error:  # Ray's own, with the trace of the replica in its text
                raise RequestError(str(getattr(error, "cause", error))) from None
            except (TimeoutError, self._ray.exceptions.RayError) as error:
                missing |= dict.fromkeys(members, type(error).__name__)
            else:
                outputs |= zip(members, found, strict=True)
        late = time.monotonic() > request.deadline
        if missing and (refusal := incomplete_refusal(self.ensemble, request, missing, self._settings, late=late)):
            raise refusal
        return answer_of(self.ensemble, request, outputs, missing)


class _Replica:
    """The members of a unit in a process of Ray's."""

    def __init__(self, members: tuple[Member, ...], kind: str, threads: int, batch: int, path: tuple[str, ...]) -> None:
        import torch

        # Factories are found where they were there.
        sys.path += [place for place in path if place not in sys.path]
        torch.set_num_threads(threads)
        self._members = [(member, build_network(member)) for member in members]
        # Of several accelerators Ray shows a replica only its own.
        self._device, self._batch = kind, batch

    def predict(self, x: Array) -> list[Array]:
        """Return each member's predictions; RequestError for rows that a network cannot take."""
        # Torch warns of arrays that it may not write to, as the object store's are.
        rows, found = np.array(x), []
        for member, network in self._members:
            try:
                found.append(predict_member(network, rows, member, batch_rows=self._batch, device=self._device))
            except EnsembleError as error:
                raise RequestError(str(error).replace("Ensemble.predict", "input")) from error
            except (IndexError, RuntimeError, TypeError, ValueError) as error:  # rows that the network cannot take
                why = str(error).strip().split("\n")[0]
                shape = f"got shape {list(x.shape)} of {x.dtype}"
                raise RequestError(f"input: {shape}, which trial {member.trial} cannot take: {why}") from error
        return found

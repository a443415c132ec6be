"""The same ensemble by the same plan on Ray Serve: a deployment per unit and kind of device, over several machines.

Arrays travel through Ray's object store, and the answer is put together where the request came in, as on one machine.
There it is slower than `Deployment`, by design; it is for what does not fit on one.
"""

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Self

import numpy as np

from trainwright.ensemble import Ensemble, Member
from trainwright.ensemble.library.networks import outputs_of
from trainwright.ensemble.metrics import Array
from trainwright.errors import (
    DeadlinePassed,
    EnsembleError,
    MissingExtra,
    NotReady,
    Overloaded,
    RequestError,
    ServeError,
)
from trainwright.serve.answers import answer_of
from trainwright.serve.batching import Request, request_of
from trainwright.serve.matrix import Instance, Plan
from trainwright.serve.service import Answer, Options
from trainwright.serve.settings import Settings

__all__ = ["RayService"]

_QUEUE_ROWS = 8192
_THREADS = 64  # requests that are waited for at a time


class RayService:
    """A `Service` whose units are Ray Serve deployments: `with RayService(ensemble, plan) as service: ...`.

    An instance of the plan is a replica. A group of cores asks Ray for its threads, an accelerator for its share of
    one: Ray chooses which. Members' folders must be readable on every node. `address` is that of a Ray cluster; None
    joins the one that RAY_ADDRESS names, or starts Ray here. Of `settings` deadline, queue, quorum and strict count.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        plan: Plan | None = None,
        *,
        settings: Settings | None = None,
        address: str | None = None,
        name: str = "trainwright",
    ) -> None:
        ray, serve = _loaded()
        self._ensemble, self._ray, self._serve = ensemble, ray, serve
        self._settings = Settings() if settings is None else settings
        self._plan = Plan.simple(ensemble, "cpu") if plan is None else plan
        self._plan.check(ensemble, self._plan.devices)
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        self._applications: list[str] = []
        self._lock = threading.Lock()
        self._rows = 0
        self._open: set[Future[Answer]] = set()
        self._ended = False
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="trainwright-ray")
        try:
            serve.start(proxy_location="Disabled")  # requests come in by our own server
            self._units = self._deployed(name)
        except BaseException:
            self.drain(0.0)
            raise

    @property
    def ensemble(self) -> Ensemble:
        """The ensemble that is served."""
        return self._ensemble

    def submit(self, x: Array, options: Options) -> "Future[Answer]":
        """Admit the rows x [N, ...], or raise Overloaded or NotReady at once; the future may raise DeadlinePassed."""
        request = request_of(x, options, dict(enumerate(self._ensemble.weights)), self._settings.deadline_ms)
        most = _QUEUE_ROWS if self._settings.queue_rows is None else self._settings.queue_rows
        with self._lock:
            if self._ended:
                raise NotReady("the service is ending; ask another, or again later", 5.0)
            if self._rows + len(x) > most:
                raise Overloaded(f"queue: holds {self._rows} rows, the request has {len(x)}; allowed: {most}", 1.0)
            self._rows += len(x)
            future = self._pool.submit(self._answer, request)
            self._open.add(future)

        def left(done: "Future[Answer]") -> None:
            with self._lock:
                self._rows -= len(x)
                self._open.discard(done)

        future.add_done_callback(left)
        return future

    def ready(self) -> bool:
        """Say whether requests are admitted now."""
        return not self._ended

    def state(self) -> Mapping[str, Any]:
        """Return the rows that are waited for, and each application with its state as Ray tells it."""
        told: dict[str, Any] = {"engine": "ray", "waiting_rows": self._rows, "requests": len(self._open)}
        if not self._ended:
            applications = self._serve.status().applications
            told["applications"] = [
                {"name": name, "state": str(applications[name].status.value)}
                for name in self._applications
                if name in applications
            ]
        return {**told, "plan": self._plan.to_json()}

    def drain(self, seconds: float) -> None:
        """Refuse new requests, finish the admitted ones for at most so long, and take the deployments down."""
        with self._lock:
            first, self._ended = not self._ended, True
            waiting = set(self._open)
        if not first:
            return
        wait(waiting, timeout=seconds)
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

    def _deployed(self, name: str) -> "list[_Deployed]":
        sharing = Counter(instance.device.name for instance in self._plan.instances)
        found = []
        for unit in self._plan.units:
            handles = []
            mine = [instance for instance in self._plan.instances if instance.unit == unit]
            for (kind, batch, threads), same in itertools.groupby(sorted(mine, key=_kind), key=_kind):
                replicas = list(same)
                application = f"{name}-{unit.name}-{kind}-{batch}"
                deployment = self._serve.deployment(_Replica, name=application).options(
                    num_replicas=len(replicas),
                    max_ongoing_requests=_THREADS,
                    ray_actor_options=_share(replicas[0], sharing[replicas[0].device.name]),
                )
                members = tuple(self._ensemble.members[place] for place in unit.members)
                bound = deployment.bind(members, kind, threads, batch, tuple(sys.path))
                self._applications.append(application)
                handle = self._serve.run(bound, name=application, route_prefix=None)
                handles += [handle] * len(replicas)
            found.append(_Deployed(unit.members, handles))
        return found

    def _answer(self, request: Request) -> Answer:
        begun = time.monotonic()
        if begun > request.deadline:
            raise DeadlinePassed("deadline_ms: passed while the request waited; allow more, or ask again")
        asked = set(request.members)
        units = [unit for unit in self._units if asked & set(unit.members)]
        rows = self._ray.put(np.ascontiguousarray(request.x))
        replies = [unit.next().predict.remote(rows) for unit in units]
        outputs: dict[int, Array] = {}
        missing: dict[int, str] = {}
        for unit, reply in zip(units, replies, strict=True):
            left = request.deadline - time.monotonic()
            try:
                found = reply.result(timeout_s=None if left == float("inf") else max(0.0, left))
            except RequestError as error:  # Ray's own, with the trace of the replica in its text
                raise RequestError(str(getattr(error, "cause", error))) from None
            except TimeoutError:
                missing |= dict.fromkeys(asked & set(unit.members), "the deadline passed")
            except self._ray.exceptions.RayError as error:
                missing |= dict.fromkeys(asked & set(unit.members), type(error).__name__)
            else:
                outputs |= {place: one for place, one in zip(unit.members, found, strict=True) if place in asked}
        self._check(request, outputs, missing)
        trace = {"queue_ms": 1e3 * (begun - request.admitted), "ray_ms": 1e3 * (time.monotonic() - begun)}
        return answer_of(self._ensemble, request, outputs, missing, trace if request.options.trace else {})

    def _check(self, request: Request, outputs: Mapping[int, Array], missing: Mapping[int, str]) -> None:
        weight = sum(request.weights[place] for place in outputs) / sum(request.weights.values())
        if not missing or (weight >= self._settings.quorum and not self._settings.strict):
            return
        why = ", ".join(f"trial {self._ensemble.members[place].trial}: {text}" for place, text in missing.items())
        if time.monotonic() > request.deadline:
            raise DeadlinePassed(f"deadline_ms: passed with {weight:.0%} of the weights in ({why}); allow more")
        raise NotReady(f"members: {weight:.0%} of the weights answered ({why}); ask again", 1.0)


class _Deployed:
    """A unit's members (places in the ensemble) and the handles to its replicas, asked in turn."""

    def __init__(self, members: tuple[int, ...], handles: list[Any]) -> None:
        self.members = members
        self._turn = itertools.cycle(handles)
        self._lock = threading.Lock()

    def next(self) -> Any:
        with self._lock:
            return next(self._turn)


class _Replica:
    """The members of a unit in a process of Ray's."""

    def __init__(self, members: tuple[Member, ...], kind: str, threads: int, batch: int, path: tuple[str, ...]) -> None:
        import torch

        from trainwright.ensemble.library.weights import built

        sys.path += [place for place in path if place not in sys.path]  # factories are found where they were there

        torch.set_num_threads(threads)
        self._members = [(member, built(member)) for member in members]
        self._device, self._batch = kind, batch  # of several accelerators Ray shows a replica only its own

    def predict(self, x: Array) -> list[Array]:
        """Return each member's predictions."""
        rows = np.array(x)  # torch warns of arrays that it may not write to, as the object store's are
        return [
            _predict(network, member, rows, batch_rows=self._batch, device=self._device)
            for member, network in self._members
        ]


def _predict(network: Any, member: Member, x: Array, *, batch_rows: int, device: str) -> Array:
    """Return a member's predictions of rows x; RequestError for rows that its network cannot take."""
    try:
        return outputs_of(network, x, member, batch_rows=batch_rows, device=device)
    except EnsembleError as error:
        raise RequestError(str(error).replace("Ensemble.predict", "input")) from error
    except (IndexError, RuntimeError, TypeError, ValueError) as error:  # what networks say to rows they cannot take
        sentence = str(error).strip().split("\n")[0]
        raise RequestError(
            f"input: got shape {list(x.shape)} of {x.dtype}, which trial {member.trial} cannot take: {sentence}"
        ) from error


def _kind(instance: Instance) -> tuple[str, int, int]:
    return instance.device.kind, instance.batch, instance.threads


def _share(instance: Instance, sharing: int) -> dict[str, float]:
    """Return what an instance reserves of Ray: its part of a device that `sharing` instances have in common."""
    if instance.device.kind == "cuda":
        return {"num_cpus": 0, "num_gpus": 1 / sharing}
    return {"num_cpus": instance.device.threads / sharing}


def _loaded() -> tuple[Any, Any]:
    try:
        import ray
        from ray import serve
    except ModuleNotFoundError as error:
        raise MissingExtra.of("--engine ray", "ray[serve]", "ray") from error
    except ImportError as error:
        raise ServeError(f'Ray Serve cannot be loaded ({error}): pip install "ray[serve]"') from error
    return ray, serve

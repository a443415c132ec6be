"""A deployment: an ensemble that answers from worker processes on this machine, placed by a plan."""

import math
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from trainwright.ensemble import Ensemble
from trainwright.ensemble.metrics import Array
from trainwright.errors import NotReady, RequestError, ServeConfigError, ServeError
from trainwright.serve.arena import Arena, Layout
from trainwright.serve.batching import Request, request_of
from trainwright.serve.cascade import Cascade
from trainwright.serve.climb import Climb
from trainwright.serve.combiner import Combiner
from trainwright.serve.dispatch import Dispatcher
from trainwright.serve.gears import Gears, places_of
from trainwright.serve.matrix import Plan
from trainwright.serve.pool import Pool, credits_of
from trainwright.serve.posts import State
from trainwright.serve.service import Answer, Options
from trainwright.serve.settings import Settings

if TYPE_CHECKING:
    import torch

__all__ = ["Deployment"]


class Deployment:
    """A running ensemble: `with Deployment(ensemble, plan) as service: service.predict(x)`.

    `plan` says which members run where; None puts them on this machine's processor. `sample`, a batch of one row or
    more, tells shape and dtype of inputs where the members do not remember those of the batch they were measured with.
    With a `cascade` rows go on to dearer members only where cheaper ones do not agree; with `gears` the members that
    answer change with what is asked. Both concern requests that do not say `max_members`.
    The workers are started by `start`, or by entering; they read weights from the members' folders.
    """

    _runner = "trainwright.serve.fused:runner_of"

    def __init__(
        self,
        ensemble: Ensemble,
        plan: Plan | None = None,
        *,
        sample: "Array | torch.Tensor | None" = None,
        settings: Settings | None = None,
        cascade: Cascade | None = None,
        gears: Gears | None = None,
    ) -> None:
        self._ensemble = ensemble
        self.settings = Settings() if settings is None else settings
        self._planned = Plan.simple(ensemble, "cpu") if plan is None else plan
        self._planned.check(ensemble)
        self.input_shape, self.input_dtype = _inputs(ensemble, sample)
        self._weights = dict(enumerate(ensemble.weights))
        if cascade is not None and gears is not None:
            raise ServeConfigError("Deployment: got a cascade and gears; allowed: one of them")
        self._gears, self._cascade = gears, cascade
        self._tiers = tuple(places_of(ensemble, tier, "Cascade") for tier in (cascade.tiers if cascade else ()))
        self._geared = [
            dict(sorted(zip(places_of(ensemble, gear.members, "Gears"), gear.weights, strict=True)))
            for gear in (gears.gears if gears else ())
        ]
        self._shift = threading.Lock()  # of the gears
        self._draining = False
        self._dispatcher: Dispatcher | None = None

    @property
    def ensemble(self) -> Ensemble:
        """The ensemble that is served."""
        return self._ensemble

    @property
    def plan(self) -> Plan:
        """Who runs where: as given, but for units that were lost and placed anew."""
        return self._planned if self._dispatcher is None else self._pool.plan

    def start(self) -> Self:
        """Start the workers and wait until every member can answer; raises ServeError naming the one that cannot."""
        if self._dispatcher is not None:
            raise ServeError("Deployment.start: was started before; allowed: once; make another one")
        lines: dict[tuple[int, ...], int] = {}
        for instance in self.plan.instances:
            held = lines.get(instance.unit.members, 0)
            lines[instance.unit.members] = held + credits_of(instance, self.settings.segment_rows)
        layout = Layout(
            slots=max(lines.values()) + 2,
            rows=self.settings.segment_rows,
            members=len(self._ensemble.members),
            input_shape=self.input_shape,
            input_dtype=self.input_dtype.name,
            output_shape=(),
        )
        self._pool = Pool(
            ensemble=self._ensemble, plan=self.plan, settings=self.settings, layout=layout, runner=self._runner
        )
        self._arena = Arena.create()
        self._combiner = Combiner(self._ensemble)
        self._dispatcher = Dispatcher(
            pool=self._pool, arena=self._arena, combiner=self._combiner, settings=self.settings, layout=layout
        )
        self._combiner.start()
        self._dispatcher.start()
        try:
            self._dispatcher.started.wait()
        except BaseException:
            self.drain(0.0)
            raise
        if self._dispatcher.refusal is not None:
            self.drain(0.0)
            raise self._dispatcher.refusal
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drain(0.0 if kind is not None else math.inf)

    def predict(self, x: "Array | torch.Tensor", **options: Any) -> Array:
        """Return the combined prediction of rows x [N, ...], as `Ensemble.predict` does; options as in `Options`."""
        return self.submit(x, Options(**options)).result().prediction

    def submit(self, x: "Array | torch.Tensor", options: Options | None = None) -> "Future[Answer]":
        """Admit the rows x [N, ...], which are not to be changed until the answer has come.

        Raises RequestError for rows or options that do not fit, Overloaded if too many rows wait, NotReady if members
        are missing or the deployment ends. The future raises DeadlinePassed, or RequestError for rows to which a member
        has no valid answer; cancelling it lets rows that wait go.
        """
        options = Options() if options is None else options
        rows = self._rows(x)
        dispatcher = self._dispatcher
        if dispatcher is None or self._draining or not self.ready():
            raise NotReady(f"service: {self._unready()}; try again", 1.0)
        request = request_of(rows, options, self._asked(options, len(rows)), self.settings.deadline_ms)
        if self._cascade is None or options.max_members is not None:
            dispatcher.admit(request, self.queue_rows)
            return request.future
        return Climb(
            ensemble=self._ensemble,
            tiers=self._tiers,
            agreement=self._cascade.agreement,
            request=request,
            ask=partial(self._admitted, dispatcher),
        ).start()

    def _admitted(self, dispatcher: Dispatcher, part: Request) -> "Future[Answer]":
        """Admit a tier's rows; from the second tier on whatever waits, for the request was admitted."""
        dispatcher.admit(part, self.queue_rows if part.members == self._tiers[0] else sys.maxsize)
        return part.future

    def run(self, host: str = "127.0.0.1", port: int = 8000, **settings: Any) -> Mapping[str, Any]:
        """Answer over HTTP until SIGTERM or SIGINT, then drain; settings as of `Server`. For the main thread."""
        from trainwright.serve.http import Server

        return Server(self, host=host, port=port, **settings).run()

    def ready(self) -> bool:
        """Say whether requests are admitted now: members that answer hold at least the quorum of the weights."""
        dispatcher = self._dispatcher
        if dispatcher is None or self._draining or dispatcher.over or not dispatcher.started.is_set():
            return False
        weight = sum(self._weights[m] for line in self._pool.lines if line.ready for m in line.unit.members)
        return weight >= self.settings.quorum * sum(self._weights.values())

    @property
    def queue_rows(self) -> int:
        """Rows that may wait: as set, or 4 x what the slowest unit can answer within the deadline, or 1 s without."""
        if self.settings.queue_rows is not None:
            return self.settings.queue_rows
        seconds = (self.settings.deadline_ms or 1e3) / 1e3
        rate = 0.0 if self._dispatcher is None else self._dispatcher.rate
        return max(4 * self.settings.segment_rows, int(4 * rate * seconds))

    def state(self) -> Mapping[str, Any]:
        """Return what goes on now, as JSON."""
        plan = {name: one for name, one in self.plan.to_json().items() if name not in {"tables", "memory"}}
        told: dict[str, Any] = {"ready": self.ready(), "draining": self._draining, "plan": plan}
        if self._dispatcher is None:
            return told
        pool = self._pool
        alive = {m for line in pool.lines if line.ready for m in line.unit.members}
        lost = pool.lost()
        return {
            **told,
            **self._dispatcher.state(),
            "queue_rows": self.queue_rows,
            "gear": None if self._gears is None else {"now": self._gears.now, "rows_per_second": self._gears.rate},
            "waiting_rows": self._dispatcher.rows,
            "members": [
                {"trial": trial, "weight": self._weights[place], "alive": place in alive, "why": lost.get(place, "")}
                for place, trial in enumerate(pool.trials)
            ],
            "instances": [
                {
                    "unit": post.instance.unit.name,
                    "device": post.instance.device.name,
                    "state": post.state.value,
                    "pid": None if post.process is None else post.process.pid,
                    "batch": post.adaptive.batch,
                    "batches": post.batches,
                    "batch_ms": 1e3 * post.health.median_seconds,
                    "restarts": post.restarts,
                    "why": post.why,
                }
                for post in list(pool.posts)
            ],
        }

    def drain(self, seconds: float) -> None:
        """Refuse new requests, finish the admitted ones for at most so long, and end; safe to call twice."""
        self._draining = True
        dispatcher = self._dispatcher
        if dispatcher is None:
            return
        until = time.monotonic() + seconds
        while dispatcher.is_alive() and dispatcher.open and time.monotonic() < until:
            time.sleep(0.005)
        dispatcher.stop()
        self._combiner.stop()
        self._arena.close()

    def _rows(self, x: "Array | torch.Tensor") -> Array:
        rows = np.asarray(x)
        if rows.ndim == 0 or len(rows) == 0 or rows.shape[1:] != self.input_shape:
            wanted = ", ".join(["N", *map(str, self.input_shape)])
            raise RequestError(f"x: got shape {rows.shape}; allowed: [{wanted}] with N >= 1")
        if not np.can_cast(rows.dtype, self.input_dtype, casting="same_kind"):
            raise RequestError(f"x: got dtype {rows.dtype}; allowed: {self.input_dtype}, or what rounds to it")
        return rows

    def _asked(self, options: Options, rows: int) -> dict[int, float]:
        """Return the members, by position, that may answer, with their weights: all, or those of the gear."""
        if self._gears is None or options.max_members is not None:
            return self._weights
        with self._shift:
            self._gears = self._gears.arrived(rows, time.monotonic())
            return self._geared[self._gears.now]

    def _unready(self) -> str:
        if self._draining:
            return "is draining"
        if self._dispatcher is None or not self._dispatcher.started.is_set():
            return "has not started"
        starting = sum(post.state is not State.READY for post in self._pool.posts)
        return f"{starting} of {len(self._pool.posts)} workers cannot answer now, so members are below the quorum"


def _inputs(ensemble: Ensemble, sample: "Array | torch.Tensor | None") -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of one row."""
    if sample is not None:
        rows = np.asarray(sample)
        if rows.ndim == 0:
            raise ServeConfigError("Deployment, sample: got a single number; allowed: a batch of one row or more")
        return rows.shape[1:], rows.dtype
    known = {(member.input_shape, member.input_dtype) for member in ensemble.members}
    shape, dtype = next(iter(known))
    if len(known) > 1 or shape is None or dtype is None:
        why = "remember different inputs" if len(known) > 1 else "do not remember the shape of their input"
        raise ServeConfigError(
            f"Deployment: the members {why}; give sample=, a batch of rows as it will be asked, or leave members with "
            "sample="
        )
    try:
        return shape, np.dtype(dtype)
    except TypeError:
        raise ServeConfigError(
            f"Deployment: the members take {dtype}, which numpy lacks; give sample=, rows in another dtype"
        ) from None

"""A deployment: an ensemble that answers on this machine, in worker processes or in this one, as its plan says."""

import math
import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from trainwright.ensemble import Ensemble
from trainwright.ensemble.metrics import Array
from trainwright.errors import NotReady, RequestError, ServeConfigError, ServeError
from trainwright.serve.placement.deployment_plan import DeploymentPlan
from trainwright.serve.runtime.admission import Runtime
from trainwright.serve.runtime.batching import request_of
from trainwright.serve.runtime.in_process import InProcessRuntime
from trainwright.serve.runtime.worker_runtime import WorkerRuntime
from trainwright.serve.service import DeploymentSettings, Options, Response, check_options

if TYPE_CHECKING:
    import torch

__all__ = ["Deployment"]

_DEFAULT = Options()
_LOOK_SECONDS = 1.0
_LEAST_QUEUE_ROWS = 512


class Deployment:
    """A running ensemble: `with Deployment(ensemble, plan) as service: service.predict(x)`.

    `plan` says which members run where; None computes in this process. `sample`, a batch of one row or more, tells
    shape and dtype of inputs where the members do not remember those of the batch they were measured with. Plans
    without `in_process` compute in worker processes, which read weights from the members' folders. Both are started by
    `start`, or by entering.
    """

    _runner = "trainwright.serve.runtime.member_runners:runner_of"

    def __init__(
        self,
        ensemble: Ensemble,
        plan: DeploymentPlan | None = None,
        *,
        sample: "Array | torch.Tensor | None" = None,
        settings: DeploymentSettings | None = None,
    ) -> None:
        self._ensemble = ensemble
        self.settings = DeploymentSettings() if settings is None else settings
        self._planned = DeploymentPlan.simple(ensemble, "cpu", in_process=True) if plan is None else plan
        self._planned.check(ensemble)
        self.input_shape, self.input_dtype = _read_inputs(ensemble, sample)
        self._weights = dict(enumerate(ensemble.weights))
        self._draining = False
        self._started = False
        self._runtime: Runtime | None = None
        # When the rows were counted last, how many there were, and the rate until then.
        self._looked = (time.monotonic(), 0, 0.0)

    @property
    def ensemble(self) -> Ensemble:
        """The ensemble that is served."""
        return self._ensemble

    @property
    def plan(self) -> DeploymentPlan:
        """The placement: the given plan, except for units that moved after all their workers had failed."""
        return self._planned if self._runtime is None else self._runtime.plan

    def start(self) -> Self:
        """Start what computes and wait until every member can answer; raises ServeError naming the one that cannot."""
        if self._runtime is not None:
            raise ServeError("Deployment.start: was started before; allowed: once; make another one")
        # A plan says by itself whether worker processes pay for this ensemble.
        shape, dtype = self.input_shape, self.input_dtype.name
        runtime: Runtime
        if self._planned.in_process:
            runtime = InProcessRuntime(self._ensemble, self._planned, input_shape=shape, input_dtype=dtype)
        else:
            runtime = WorkerRuntime(
                self._ensemble,
                self._planned,
                settings=self.settings,
                runner=self._runner,
                input_shape=shape,
                input_dtype=dtype,
            )
        self._runtime = runtime
        try:
            runtime.start()
        except BaseException:
            self.drain(0.0)
            raise
        self._started = True
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drain(0.0 if kind is not None else math.inf)

    def predict(self, x: "Array | torch.Tensor", **options: Any) -> Array:
        """Return the combined prediction of rows x [N, ...], as `Ensemble.predict` does; options as in `Options`."""
        return self.submit(x, Options(**options) if options else None).result().prediction

    def submit(self, x: "Array | torch.Tensor", options: Options | None = None) -> "Future[Response]":
        """Admit the rows x [N, ...], which are not to be changed until the answer has come.

        Raises RequestError for rows or options that do not fit, Overloaded as `admit_unless_overloaded` does, NotReady
        if members are missing or the deployment ends. The future raises DeadlinePassed (see `Segments.expire_requests`)
        or RequestError for rows to which a member has no valid answer; cancelling it lets rows that wait go.
        """
        options = _DEFAULT if options is None else options
        rows = self._check_rows(x)
        check_options(options, self._ensemble)
        runtime = self._runtime
        if runtime is None or not self.ready():
            raise NotReady(f"service: {self._say_unready()}; try again", 1.0)
        request = request_of(rows, options, self.settings.deadline_ms)
        runtime.admit(request, self.queue_rows)
        return request.future

    def run(self, host: str = "127.0.0.1", port: int = 8000, **settings: Any) -> Mapping[str, Any]:
        """Answer over HTTP until SIGTERM or SIGINT, then drain; settings as of `Server`. For the main thread."""
        from trainwright.serve.http.server import Server

        return Server(self, host=host, port=port, **settings).run()

    def ready(self) -> bool:
        """Say whether requests are admitted now: members that answer hold at least the quorum of the weights."""
        runtime = self._runtime
        if runtime is None or not self._started or self._draining or runtime.over:
            return False
        # The usual case needs no weights.
        answering = runtime.answering
        if len(answering) == len(self._weights):
            return True
        weight = sum(self._weights[member] for member in answering)
        return weight >= self.settings.quorum * sum(self._weights.values())

    @property
    def queue_rows(self) -> int:
        """Rows that may wait: as set, or 4 x what the slowest unit can answer within the deadline, or 1 s without."""
        if self.settings.queue_rows is not None:
            return self.settings.queue_rows
        # Rows that wait longer than the deadline would be computed for nobody.
        seconds = (self.settings.deadline_ms or 1e3) / 1e3
        rate = 0.0 if self._runtime is None else self._runtime.rate
        return max(_LEAST_QUEUE_ROWS, int(4 * rate * seconds))

    def state(self) -> Mapping[str, Any]:
        """Return the current state as JSON."""
        state: dict[str, Any] = {"ready": self.ready(), "draining": self._draining, "plan": self.plan.to_json()}
        runtime = self._runtime
        if runtime is None:
            return state
        answering, lost = runtime.answering, runtime.lost()
        return {
            **state,
            **runtime.state(),
            "queue_rows": self.queue_rows,
            "waiting_rows": runtime.rows,
            "members_alive": len(answering),
            # Side by side: what was expected of the plan when it was made, and what is answered.
            "expected_rows_per_second": (self.plan.measured or self.plan.expected).get("value", 0.0),
            "reached_rows_per_second": self._measure_rate(runtime.state()["rows"]),
            "members": [
                {
                    "trial": member.trial,
                    "weight": self._weights[place],
                    "alive": place in answering,
                    "why": lost.get(place, ""),
                }
                for place, member in enumerate(self._ensemble.members)
            ],
            "instances": runtime.instances(),
        }

    def drain(self, seconds: float) -> None:
        """Refuse new requests, finish the admitted ones for at most so long, and end; safe to call twice."""
        self._draining = True
        runtime = self._runtime
        if runtime is None:
            return
        # Admitted requests are finished by the runtime's own threads.
        until = time.monotonic() + seconds
        while runtime.open and time.monotonic() < until:
            time.sleep(0.005)
        runtime.stop()

    def _measure_rate(self, rows: int) -> float:
        """Return the rows a second that were admitted between the last look and the one before, a second apart."""
        now = time.monotonic()
        before, counted, _ = self._looked
        if now >= before + _LOOK_SECONDS:
            self._looked = now, rows, (rows - counted) / (now - before)
        return self._looked[2]

    def _check_rows(self, x: "Array | torch.Tensor") -> Array:
        rows = np.asarray(x)
        if rows.ndim == 0 or len(rows) == 0 or rows.shape[1:] != self.input_shape:
            wanted = ", ".join(["N", *map(str, self.input_shape)])
            raise RequestError(f"x: got shape {rows.shape}; allowed: [{wanted}] with N >= 1")
        # Floats of another precision are rounded; whole numbers never become real ones unasked.
        if not np.can_cast(rows.dtype, self.input_dtype, casting="same_kind"):
            raise RequestError(f"x: got dtype {rows.dtype}; allowed: {self.input_dtype}, or what rounds to it")
        return rows

    def _say_unready(self) -> str:
        if self._draining:
            return "is draining"
        if self._runtime is None or not self._started:
            return "has not started"
        if isinstance(self._runtime, InProcessRuntime):
            return "has ended"
        states = [instance["state"] for instance in self._runtime.instances()]
        starting = len(states) - states.count("ready")
        return f"{starting} of {len(states)} workers cannot answer now, so members are below the quorum"


def _read_inputs(ensemble: Ensemble, sample: "Array | torch.Tensor | None") -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of one row."""
    if sample is not None:
        rows = np.asarray(sample)
        if rows.ndim == 0:
            raise ServeConfigError("Deployment, sample: got a single number; allowed: a batch of one row or more")
        return rows.shape[1:], rows.dtype
    # Members of one ensemble take the same rows, or none could be asked.
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

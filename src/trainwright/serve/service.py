"""Requests and responses of a served ensemble, its settings and limits, and the interface of a service."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, runtime_checkable

from trainwright.ensemble import Ensemble
from trainwright.ensemble.combine.uncertainty import Uncertainty
from trainwright.ensemble.metrics import Array
from trainwright.errors import RequestError, ServeConfigError
from trainwright.settings import Settings
from trainwright.validators import flag, integer, number, optional

__all__ = ["DeploymentSettings", "Limits", "Options", "Response", "Service", "can_promise", "check_options"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentSettings(Settings, error=ServeConfigError):
    """The limits of a deployment. Those of workers play no part without worker processes."""

    queue_rows: Annotated[
        int | None,
        optional(integer(minimum=1)),
        "rows that may wait; None: 4 x what the service can answer within its deadline",
    ] = None
    deadline_ms: Annotated[
        float | None, optional(number(above=0)), "of requests that give none; None: they wait as long as it takes"
    ] = None
    quorum: Annotated[
        float, number(above=0, maximum=1), "least share of the weights with which a request is answered"
    ] = 0.5
    strict: Annotated[bool, flag(), "refuse instead of answering with members missing"] = False
    hung_seconds: Annotated[
        float, number(above=0), "beyond 10 x its median batch, after which a silent worker is ended"
    ] = 5.0
    start_seconds: Annotated[float, number(above=0), "that a worker may take to load its members"] = 300.0
    failures: Annotated[
        int, integer(minimum=1), "within `failure_seconds` after which a worker has failed permanently"
    ] = 3
    failure_seconds: Annotated[float, number(above=0), "the window in which failures count together"] = 60.0
    backoff_seconds: Annotated[
        float, number(minimum=0), "before the first restart, doubled for each failure in the window"
    ] = 0.1
    move: Annotated[bool, flag(), "units whose workers all failed permanently move to other devices of the plan"] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits(Settings, error=ServeConfigError):
    """What one HTTP request, and all together, may take; refused with the limit: 413 for bytes and rows, 408, 503."""

    body_bytes: Annotated[int, integer(minimum=1), "of a request's body"] = 64 * 2**20
    rows: Annotated[int, integer(minimum=1), "of one request"] = 8192
    connections: Annotated[
        int, integer(minimum=1), "open; the next take the place of one without a request, or get 503"
    ] = 1024
    body_seconds: Annotated[float, number(minimum=1), "for a body; each MiB that has come adds a second"] = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(Settings, error=RequestError, label=""):
    """What a request wants in addition to the combined prediction."""

    members: bool = False  # every member's own prediction too
    uncertainty: bool = False
    conformal: bool = False  # the set of classes, or the interval of each value, that `Ensemble.conformal` promises
    deadline_ms: Annotated[
        float | None, optional(number(above=0)), "from admission; None: the service's own deadline"
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """The combined prediction of a request's rows, and the members that made it."""

    prediction: Array  # [N, C], [N, T] or [N, T, 2], float64, calibrated if the ensemble is
    used: tuple[int, ...]  # trial numbers of the members in it
    missing: Mapping[int, str] = field(default_factory=dict)  # trial number → why it is not in it
    weight: float = 1.0  # share of the weights that is in it
    uncertainty: Uncertainty | None = None
    conformal: Array | None = None  # booleans [N, C], or low and high ends [N, T, 2]; None if a member is missing
    members: Mapping[int, Array] = field(default_factory=dict)  # trial number → its own prediction, if asked for

    @property
    def degraded(self) -> bool:
        """Say whether a member is missing."""
        return bool(self.missing)


@runtime_checkable
class Service(Protocol):
    """A running ensemble: worker processes on one machine, replicas on Ray, or another carrier of the same answers."""

    @property
    def ensemble(self) -> Ensemble:
        """The ensemble that is served."""

    def submit(self, x: Array, options: Options) -> "Future[Response]":
        """Admit the rows x [N, ...], or raise Overloaded or NotReady at once; the future raises DeadlinePassed."""

    def ready(self) -> bool:
        """Say whether requests are admitted now."""

    def state(self) -> Mapping[str, Any]:
        """Return the current state as JSON: members and instances alive, rows waiting, restarts, plan."""

    def drain(self, seconds: float) -> None:
        """Refuse new requests, finish the admitted ones for at most so long, and end; safe to call twice."""


def can_promise(ensemble: Ensemble) -> bool:
    """Say whether a service may answer with conformal sets or intervals: a request does not tell groups of rows."""
    return ensemble.conformity is not None and ensemble.conformity.by != "group"


def check_options(options: Options, ensemble: Ensemble) -> None:
    """Refuse options that an ensemble cannot fulfil."""
    if options.conformal and not can_promise(ensemble):
        raise RequestError(
            "conformal: got True, but this ensemble promises no sets or intervals for rows alone; allowed: with one "
            "that ensemble.conformal(alpha) made, not by group"
        )

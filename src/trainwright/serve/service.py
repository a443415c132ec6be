"""What a served ensemble is asked, what it answers, and the contract between that and whatever carries it to users."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from trainwright.ensemble import Ensemble
from trainwright.ensemble.combine.uncertainty import Uncertainty
from trainwright.ensemble.metrics import Array
from trainwright.errors import RequestError
from trainwright.settings import Settings
from trainwright.validators import integer, number, optional

__all__ = ["Options", "Response", "Service"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(Settings, error=RequestError, label=""):
    """What a request asks for beside the combined prediction."""

    members: bool = False  # every member's own prediction too
    uncertainty: bool = False
    deadline_ms: Annotated[
        float | None, optional(number(above=0)), "from admission; None: the service's own deadline"
    ] = None
    max_members: Annotated[int | None, optional(integer(minimum=1)), "only so many, the heaviest"] = None
    trace: bool = False  # where the time went


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """The combined prediction of a request's rows, and whose it is."""

    prediction: Array  # [N, C], [N, T] or [N, T, 2], float64, calibrated if the ensemble is
    used: tuple[int, ...]  # trial numbers of the members in it
    missing: Mapping[int, str] = field(default_factory=dict)  # trial number → why it is not in it
    weight: float = 1.0  # share of the weights asked for that is in it
    uncertainty: Uncertainty | None = None
    members: Mapping[int, Array] = field(default_factory=dict)  # trial number → its own prediction, if asked for
    trace: Mapping[str, Any] = field(default_factory=dict)

    @property
    def degraded(self) -> bool:
        """Say whether a member that was asked for is missing."""
        return bool(self.missing)


class Service(Protocol):
    """A running ensemble: worker processes on one machine, replicas on Ray, or another carrier of the same answers."""

    @property
    def ensemble(self) -> Ensemble:
        """The ensemble that is served."""

    def submit(self, x: Array, options: Options) -> "Future[Response]":
        """Admit the rows x [N, ...] or refuse at once with Overloaded or NotReady; the future raises DeadlinePassed."""

    def ready(self) -> bool:
        """Say whether requests are admitted now."""

    def state(self) -> Mapping[str, Any]:
        """Return what goes on now, as JSON: members and instances alive, rows waiting, restarts, plan."""

    def drain(self, seconds: float) -> None:
        """Refuse new requests, finish the admitted ones for at most so long, and end; safe to call twice."""

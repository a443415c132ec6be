"""Settings of a deployment: how it queues, batches, waits and recovers."""

from dataclasses import dataclass
from typing import Annotated

from trainwright.errors import ServeConfigError
from trainwright.settings import Settings
from trainwright.validators import flag, integer, number, optional

__all__ = ["DeploymentSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentSettings(Settings, error=ServeConfigError):
    """The limits of a deployment. Those of segments, delays and workers play no part without worker processes."""

    segment_rows: Annotated[int, integer(minimum=1, maximum=65535), "rows that travel together to all members"] = 128
    max_delay_ms: Annotated[float, number(minimum=0), "how long rows wait for company while workers are free"] = 0.0
    queue_rows: Annotated[
        int | None,
        optional(integer(minimum=1)),
        "rows that may wait; None: 4 x what the service can answer within its deadline",
    ] = None
    deadline_ms: Annotated[
        float | None, optional(number(above=0)), "of requests that give none; None: they wait as long as it takes"
    ] = None
    quorum: Annotated[
        float, number(above=0, maximum=1), "least share of the weights asked for with which a request is answered"
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

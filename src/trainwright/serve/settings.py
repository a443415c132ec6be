"""How a deployment queues, batches, waits and recovers."""

import math
from dataclasses import dataclass, fields

from trainwright.errors import ServeConfigError

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The limits of a deployment; what is out of range is refused with the range."""

    segment_rows: int = 128  # rows that travel together to all members
    max_delay_ms: float = 0.0  # how long rows wait for company while workers are free
    queue_rows: int | None = None  # rows that may wait; None: 4 x what the service can answer within its deadline
    deadline_ms: float | None = None  # of requests that give none; None: they wait as long as it takes
    quorum: float = 0.5  # least share of the weights asked for with which a request is answered at all
    strict: bool = False  # refuse instead of answering with members missing
    slo_ms: float | None = None  # batches adapt so that 99 of 100 requests are answered within it
    hung_seconds: float = 5.0  # beyond 10 x its median batch, after which a silent worker is ended
    start_seconds: float = 300.0  # that a worker may take to load its members
    failures: int = 3  # within `failure_seconds` after which an instance is given up
    failure_seconds: float = 60.0
    backoff_seconds: float = 0.1  # before the first restart, doubled for each failure in the window
    move: bool = True  # units whose instances were all given up are placed on other devices of the plan

    def __post_init__(self) -> None:
        for name, least in (("segment_rows", 1), ("queue_rows", 1), ("failures", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ServeConfigError(f"Settings, {name}: got {value!r}; allowed: an integer >= {least}")
        if self.segment_rows > 65_535:
            raise ServeConfigError(f"Settings, segment_rows: got {self.segment_rows}; allowed: up to 65535")
        if not 0.0 < self.quorum <= 1.0:
            raise ServeConfigError(f"Settings, quorum: got {self.quorum!r}; allowed: above 0, up to 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if not field.name.endswith(("_ms", "_seconds")) or value is None:
                continue
            zero = field.name in {"max_delay_ms", "backoff_seconds"}
            if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
                allowed = "a number >= 0" if zero else "a number above 0"
                raise ServeConfigError(f"Settings, {field.name}: got {value!r}; allowed: {allowed}")

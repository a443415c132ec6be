"""What many workers on one ledger cost in a simulated study: proposals, records read by all, processors that are short.

Of N workers each reads what the N - 1 others write, so a trial costs some a + b N processor seconds, and the processors
of a host suffice as long as N workers with trials of T seconds stay below its cores: N (a + b N) / T < cores.
"""

import heapq
from dataclasses import dataclass
from typing import Annotated

from trainwright.errors import EngineError
from trainwright.ledger.reader import first_pause, pause_after
from trainwright.settings import Settings
from trainwright.validators import integer, number, optional

__all__ = ["LedgerCost", "Workers"]

_SECONDS = number(minimum=0)
_GOLDEN = 0.6180339887


@dataclass(frozen=True, kw_only=True)
class LedgerCost(Settings, error=EngineError):
    """Seconds that one worker per device spends beside training, on a ledger that all of them share.

    Processor seconds, but for `wait_seconds`. The defaults are a directory on a local disk and `ForestSearcher`, as
    `benchmarks/scale/contention.py` measures them; run it where the study is to run.
    """

    trial_seconds: Annotated[float, _SECONDS, "a trial: its claim, its proposal, writing start and end"] = 0.0
    growth_seconds: Annotated[float, _SECONDS, "more of it for each result that is known"] = 0.0
    result_seconds: Annotated[float, _SECONDS, "to read and learn a result of another worker"] = 0.0
    look_seconds: Annotated[float, _SECONDS, "to look whether one other writer has written"] = 0.0
    wait_seconds: Annotated[float, _SECONDS, "a trial's waiting for the disk or the server, no processor busy"] = 0.0
    cores: Annotated[int | None, optional(integer(minimum=1)), "that all workers share; None: one each"] = None


class Workers:
    """One worker for each device of a simulated study: what it has read, and when a core is free for it."""

    def __init__(self, cost: LedgerCost, count: int) -> None:
        self._cost, self._count = cost, count
        self._seen = [0] * count  # results
        self._cores = [0.0] * min(count, cost.cores or count)  # when each is free
        # Evenly, as if drawn.
        self._next_read = [first_pause(worker * _GOLDEN % 1.0, count, len(self._cores)) for worker in range(count)]

    def start(self, worker: int, at: float, results: int) -> float:
        """Return the seconds from `at`, when a worker is free and so many results are written, until its trial trains.

        It reads as a real worker does: not before its pause is over. Cores serve in the order of asking.
        """
        cost = self._cost
        work = cost.trial_seconds + cost.growth_seconds * self._seen[worker]
        if at >= self._next_read[worker]:
            read = cost.look_seconds * self._count + cost.result_seconds * (results - self._seen[worker])
            self._seen[worker] = results
            self._next_read[worker] = at + read + pause_after(read, self._count, len(self._cores))
            work += read
        done = max(at, self._cores[0]) + work
        heapq.heapreplace(self._cores, done)
        return done + cost.wait_seconds - at

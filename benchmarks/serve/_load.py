"""A load generator: requests at times drawn beforehand, whatever the server does; latency from the time meant.

A generator that waits for an answer before it sends the next request slows down with the server and so leaves out the
latencies that users would have seen (coordinated omission). Here the times are fixed first ("poisson", "constant"), and
a request that had to wait for its turn has waited. "closed" is that other kind, for the most a server can do: `clients`
of them, each sending its next request when it has the answer.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from trainwright.ensemble.metrics import Array
from trainwright.errors import RequestError, ServeConfigError, ServeError
from trainwright.randomness import rng
from trainwright.serve.http.client import Client, encode, read_answer
from trainwright.serve.http.tensors import DATATYPES
from trainwright.serve.service import Options
from trainwright.settings import Settings
from trainwright.validators import each, integer, number, one_of

__all__ = ["LoadResult", "LoadTest", "arrivals"]

KINDS = ("poisson", "constant", "closed")
_REQUESTS = 32  # different ones, sent in turn
_TIMEOUT_SECONDS = 60.0  # of one request
_LATE_SECONDS = 1e-3
_MOST_LATE, _LEAST_RATE = 0.01, 0.99  # shares beyond which a run says nothing of the rate asked for
_SPIN_SECONDS = 1e-3  # the event loop's sleep is not more exact than this


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """What a run saw, its warm-up left out; times in milliseconds."""

    requests: int
    seconds: float
    asked_rate: float | None  # requests a second; None for closed loops
    achieved_rate: float  # answers with status 200 a second
    rows_rate: float
    statuses: Mapping[str, int]  # status, or why there was none
    degraded_share: float
    wrong: int  # replies that differ from the reference by more than 1e-6
    checked: int
    late_share: float  # of sends more than 1 ms after their time, of the generator's own doing
    why: str  # why the rate sent was not the rate asked for; "" if it was
    latency_ms: Mapping[str, float | None]  # p50, p90, p95, p99, max of answers with status 200
    warm_up_seconds: float

    @property
    def valid(self) -> bool:
        """Whether the rate asked for was the rate sent."""
        return not self.why

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        fields = {name: value for name, value in asdict(self).items() if name != "latency_ms"}
        return {**fields, "valid": self.valid, **{f"{name}_ms": value for name, value in self.latency_ms.items()}}


@dataclass(frozen=True, kw_only=True)
class LoadTest(Settings, error=ServeConfigError):
    """A load: `LoadTest(rate=100, seconds=10).run(url)`.

    Rows of a request are drawn evenly from `rows`, inclusive, their values from a normal law (whole numbers: 0 or 1).
    With `reference(x)`, such as `Ensemble.predict`, every answer that is not degraded is compared with it. Equal seeds
    give equal requests at equal times.
    """

    rate: Annotated[float, number(above=0), "requests a second, of poisson and constant arrivals"] = 100.0
    kind: Annotated[str, one_of(*KINDS), "when requests are sent"] = "poisson"
    rows: Annotated[tuple[int, int], each(integer(minimum=1)), "least and most rows of a request"] = (1, 1)
    seconds: Annotated[float, number(above=0), "how long, after the warm-up"] = 10.0
    warm_up_seconds: Annotated[float, number(minimum=0), "before them, not counted"] = 1.0
    clients: Annotated[int, integer(minimum=1), "most connections; those of a closed loop"] = 64
    seed: int = 0
    binary: bool = True
    options: Options = field(default_factory=Options)
    token: str | None = None
    name: str = "ensemble"

    def check_together(self) -> None:
        """Refuse a range of rows that is none."""
        if len(self.rows) != 2 or self.rows[0] > self.rows[1]:
            raise ServeConfigError(f"LoadTest.rows: got {self.rows}; allowed: 1 <= first <= second")

    def run(self, url: str, *, reference: Callable[[Array], Array] | None = None) -> LoadResult:
        """Send the load to a server and return what was seen; ServeError if there is none."""
        with Client(url, token=self.token, name=self.name) as client:
            tensor = client.metadata()["inputs"][0]
        # Bodies are made before the clock starts, and sent in turn.
        requests = []
        for count in range(_REQUESTS):
            generator = rng(self.seed, "load bodies", count)
            rows = int(generator.integers(self.rows[0], self.rows[1] + 1))
            x = _draw_rows(tensor, rows, generator)
            content, headers = encode(x, self.options, binary=self.binary)
            headers |= {"Host": urlsplit(url).netloc, "Content-Length": str(len(content))}
            if self.token is not None:
                headers["Authorization"] = f"Bearer {self.token}"
            lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
            head = f"POST /v2/models/{self.name}/infer HTTP/1.1\r\n{''.join(lines)}\r\n"
            requests.append(_Request(head.encode() + content, rows, reference(x) if reference else None))
        return asyncio.run(_Run(self, url, requests).result())


def arrivals(kind: str, rate: float, seconds: float, seed: int) -> Array:
    """Return the times [n] of the requests within `seconds`, ascending: evenly spaced, or of a Poisson process."""
    if kind == "constant":
        return np.arange(math.ceil(rate * seconds)) / rate
    times: list[Array] = []
    last, number = 0.0, 0
    while last < seconds:
        gaps = rng(seed, "load arrivals", number).exponential(1 / rate, size=4096)
        times.append(last + gaps.cumsum())
        last, number = float(times[-1][-1]), number + 1
    found = np.concatenate(times)
    return found[found < seconds]


class _Request(NamedTuple):
    message: bytes
    rows: int
    expected: Array | None


@dataclass(slots=True)
class _Seen:
    """What became of one request; `status` is that of HTTP, or why there was none."""

    meant: float  # seconds from the start
    late: bool
    rows: int
    status: str = "timeout"
    latency: float = 0.0
    degraded: bool = False
    wrong: bool | None = None


class _Run:
    """One run: connections that are kept open, and what their requests saw."""

    def __init__(self, load: LoadTest, url: str, requests: Sequence[_Request]) -> None:
        self._load, self._requests = load, requests
        self._place = urlsplit(url)
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._seen: list[_Seen] = []
        self._start, self._answers, self._rows = 0.0, 0, 0

    async def result(self) -> LoadResult:
        load = self._load
        whole = load.warm_up_seconds + load.seconds
        if load.kind == "closed":
            self._start = time.perf_counter()
            await asyncio.gather(*(self._closed_loop(number, whole) for number in range(load.clients)))
        else:
            await self._open_loop(arrivals(load.kind, load.rate, whole, load.seed))
        for _, writer in self._free:
            writer.close()
        return self._summarise_run()

    async def _closed_loop(self, number: int, whole: float) -> None:
        while (now := time.perf_counter() - self._start) < whole:
            await self._send_one(number, now, late=False)
            number += self._load.clients

    async def _open_loop(self, times: Array) -> None:
        # Times were drawn beforehand: a slow server cannot slow the generator down.
        gate = asyncio.Semaphore(self._load.clients)
        self._start = time.perf_counter() + 0.01

        async def send(number: int, meant: float, *, late: bool) -> None:
            # A request that finds no connection free waits, which is part of its latency.
            async with gate:
                await self._send_one(number, meant, late=late)

        async with asyncio.TaskGroup() as tasks:
            for number, meant in enumerate(times.tolist()):
                await _sleep_until(self._start + meant)
                late = time.perf_counter() - self._start - meant > _LATE_SECONDS
                tasks.create_task(send(number, meant, late=late))

    async def _send_one(self, number: int, meant: float, *, late: bool) -> None:
        request = self._requests[number % len(self._requests)]
        seen = _Seen(meant=meant, late=late, rows=request.rows)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                status, headers, content = await self._exchange_messages(request.message)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            seen.status = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
        else:
            seen.status, seen.latency = str(status), time.perf_counter() - self._start - meant
            seen.degraded = "x-trainwright-degraded" in headers
            if status == 200 and request.expected is not None and not seen.degraded:
                found = read_answer(content, headers.get("inference-header-content-length")).prediction
                near = found.shape == request.expected.shape and np.abs(found - request.expected).max() <= 1e-6
                seen.wrong = not near
        ended = time.perf_counter() - self._start
        first, last = self._load.warm_up_seconds, self._load.warm_up_seconds + self._load.seconds
        # Answers to requests of the warm-up count too, so that both ends are alike.
        if seen.status == "200" and first <= ended < last:
            self._answers, self._rows = self._answers + 1, self._rows + seen.rows
        if meant >= first:
            self._seen.append(seen)

    async def _exchange_messages(self, message: bytes) -> tuple[int, dict[str, str], bytes]:
        # The connection that was used last is the least likely to have been closed.
        reader, writer = self._free.pop() if self._free else await self._open_connection()
        try:
            writer.write(message)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
            }
            content = await reader.readexactly(int(headers.get("content-length", "0")))
        except BaseException:
            # What is left unread would be taken for the next reply.
            writer.close()
            raise
        if headers.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._free.append((reader, writer))
        return int(head[0].split(" ")[1]), headers, content

    async def _open_connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        secure = self._place.scheme == "https"
        port = self._place.port or (443 if secure else 80)
        return await asyncio.open_connection(self._place.hostname, port, ssl=secure or None, limit=2**24)

    def _summarise_run(self) -> LoadResult:
        load, seen = self._load, self._seen
        if not seen:
            raise ServeError("load: nothing was sent after the warm-up; allow more seconds, or a higher rate")
        good = [one for one in seen if one.status == "200"]
        asked = None if load.kind == "closed" else len(seen) / load.seconds
        late = sum(one.late for one in seen) / len(seen)
        achieved = self._answers / load.seconds
        why = []
        if late > _MOST_LATE:
            why.append(f"{late:.1%} of the sends were more than 1 ms late")
        if asked is not None and achieved < _LEAST_RATE * asked:
            why.append(f"{achieved:.1f} answers a second of {asked:.1f} asked for")
        names = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
        milliseconds = [1e3 * one.latency for one in good]
        return LoadResult(
            requests=len(seen),
            seconds=load.seconds,
            asked_rate=asked,
            achieved_rate=achieved,
            rows_rate=self._rows / load.seconds,
            statuses=dict(Counter(one.status for one in seen)),
            degraded_share=sum(one.degraded for one in good) / max(1, len(good)),
            wrong=sum(bool(one.wrong) for one in good),
            checked=sum(one.wrong is not None for one in good),
            late_share=late,
            why="; ".join(why),
            latency_ms={name: float(np.percentile(milliseconds, q)) if good else None for name, q in names.items()},
            warm_up_seconds=load.warm_up_seconds,
        )


async def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > _SPIN_SECONDS:
        await asyncio.sleep(left - _SPIN_SECONDS)
    while time.perf_counter() < moment:  # noqa: ASYNC110  a moment is no event; replies are read meanwhile
        await asyncio.sleep(0)


def _draw_rows(tensor: Mapping[str, Any], rows: int, generator: np.random.Generator) -> Array:
    """Return rows that fit a server's metadata of its input."""
    shape = (rows, *tensor["shape"][1:])
    if len(shape) < 2:
        raise RequestError("load: the server does not say the shape of its input; allowed: members with a sample")
    code = DATATYPES[tensor["datatype"]]
    real = np.dtype(code).kind == "f"
    return (generator.normal(size=shape) if real else generator.integers(0, 2, size=shape)).astype(code)

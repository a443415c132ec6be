"""Malformed requests, seeded: whatever is sent, the server answers with a 4xx, stays what it was, and is right after.

10,000 requests over sockets of their own: cut JSON, bytes that are no UTF-8, wrong shapes, dtypes, sizes, header
lengths and parameters, NaN, depth, huge numbers, tensors given twice, other paths and content types, HTTP that is none,
and clients that leave in the middle of a body. `server_errors_on_malformed` counts answers of 500 and more, and none.
"""

import argparse
import contextlib
import gc
import gzip
import json
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._report import progress, table
from benchmarks.serve._ensembles import INPUTS, ensemble, plan

__all__ = ["LEFT", "attack", "held", "message", "run"]

LEFT = "left"  # the client left before the answer
_INFER = "/v2/models/ensemble/infer"
_LENGTH = "Inference-Header-Content-Length"
_TIMEOUT_SECONDS = 30.0
_JUNK: tuple[Any, ...] = (True, -1, 1.5, 10**40, "x", [], [[]], {}, {"a": 1}, ["x"], "\u0000", "9" * 200)
_JSON, _BINARY = "application/json", "application/octet-stream"

Message = tuple[bytes, bool]  # what is sent, and whether an answer is waited for


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Attack a deployment, and look at what it holds before and after."""
    from trainwright.serve import Client, Deployment, Server
    from trainwright.serve.service import Limits

    count = 300 if options.quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        found = ensemble(Path(folder), [{"width": 16, "depth": 1}] * 2)
        x = np.random.default_rng(options.seed).normal(size=(5, INPUTS)).astype(np.float32)
        limits = Limits(body_bytes=2**18, rows=200)
        with Deployment(found, plan(found)) as service, Server(service, port=0, limits=limits) as server:
            with Client(server.url) as client:
                client.predict(x)
            attack(server.port, options.seed, range(count, count + count // 10), shape=(INPUTS,))  # to warm up
            before = held()
            statuses = attack(server.port, options.seed, range(count), shape=(INPUTS,))
            after = held()
            with Client(server.url) as client:
                wrong = int(np.abs(client.predict(x) - found.predict(x)).max() > 1e-6)
    errors = sum(number for status, number in statuses.items() if not status.startswith("4") and status != LEFT)
    print(table(["status", "requests"], [[status, number] for status, number in sorted(statuses.items())]))
    progress(f"held before {before} and after {after}")
    return {
        "summary": {
            "server_errors_on_malformed": errors,
            "malformed_requests": count,
            "malformed_descriptors_left": max(0, after["descriptors"] - before["descriptors"]),
            "malformed_memory_growth_percent": round(100 * (after["bytes"] / before["bytes"] - 1), 2),
            "wrong_answers": wrong,
        },
        "statuses": dict(statuses),
        "before": before,
        "after": after,
    }


def attack(port: int, seed: int, numbers: range, *, shape: tuple[int, ...]) -> Counter[str]:
    """Send the requests of these numbers and count the answers by status; "none" where there was none."""
    found: Counter[str] = Counter()
    for number in numbers:
        content, waits = message(seed, number, shape)
        found[_status(port, content, waits=waits)] += 1
    return found


def held() -> dict[str, int]:
    """Count what this process holds: descriptors, threads, segments of shared memory, resident bytes."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "segments": len(list(Path("/dev/shm").iterdir())),  # noqa: S108  it is that place which is counted
        "bytes": int(resident.split()[1]) * 1024,
    }


def message(seed: int, number: int, shape: tuple[int, ...]) -> Message:
    """Return one malformed request for an ensemble whose rows have this shape in float32."""
    draw = np.random.default_rng([seed, number])
    makers: tuple[Callable[[np.random.Generator, tuple[int, ...]], Message], ...] = (
        _cut, _bytes, _tensor, _tensor, _field, _parameter, _binary, _binary, _deep, _large, _elsewhere, _typed, _http,
        _leaving,
    )  # fmt: skip
    return makers[number % len(makers)](draw, shape)


def _good(draw: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    rows = int(draw.integers(1, 4))
    data = draw.normal(size=rows * int(np.prod(shape))).round(3).tolist()
    return {"inputs": [{"name": "input", "datatype": "FP32", "shape": [rows, *shape], "data": data}]}


def _head(body: bytes, *, path: str = _INFER, method: str = "POST", kind: str = _JSON, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "\r\n"]).encode()


def _whole(told: object, **rest: Any) -> Message:
    body = told if isinstance(told, bytes) else json.dumps(told).encode()
    return _head(body, **rest) + body, True


def _choice(draw: np.random.Generator, options: Any) -> Any:
    return options[int(draw.integers(len(options)))]


def _cut(draw: np.random.Generator, shape: tuple[int, ...]) -> Message:
    body = json.dumps(_good(draw, shape)).encode()
    return _whole(body[: int(draw.integers(0, len(body)))])


def _bytes(draw: np.random.Generator, shape: tuple[int, ...]) -> Message:
    """Bytes that no JSON holds: within strings, numbers or between them."""
    body = json.dumps(_good(draw, shape)).encode()
    place = int(draw.integers(0, len(body)))
    return _whole(body[:place] + _choice(draw, (b"\xff", b"\xc3\x28", b"\x00", b"\xed\xa0\x80")) + body[place:])


def _tensor(draw: np.random.Generator, shape: tuple[int, ...]) -> Message:
    told = _good(draw, shape)
    one = told["inputs"][0]
    data = one["data"]
    rows = one["shape"][0]
    change: dict[str, Any] = _choice(
        draw,
        (
            {"shape": [rows + 1, *shape]},
            {"shape": [rows, *shape, 2]},
            {"shape": [0, *shape]},
            {"shape": [-rows, *shape]},
            {"shape": [2**62, 2**62]},
            {"shape": _choice(draw, _JUNK)},
            {"datatype": _choice(draw, ("FP31", "BYTES", "fp32", "INT64", "BOOL", "BF16", 5, None, ""))},
            {"name": _choice(draw, ("", "inputs", 3, None))},
            {"data": data[:-1]},
            {"data": [*data, 1.0]},
            {"data": [*data[:-1], _choice(draw, ("1", None, [], {}, True, 10**400, 1e300))]},
            {"data": [data[:1], data[1:]]},
            {"data": _choice(draw, _JUNK)},
            {"data": [float("nan")] * len(data)},
            {"data": None},
            {"more": 1},
            {"parameters": _choice(draw, _JUNK[:6])},
        ),
    )
    told["inputs"] = [{**one, **change}]
    if "more" not in change and draw.random() < 0.1:
        told["inputs"] *= 2
    return _whole(told)


def _field(draw: np.random.Generator, shape: tuple[int, ...]) -> Message:
    told = _good(draw, shape)
    inputs = told["inputs"]
    return _whole(
        _choice(
            draw,
            (
                {"inputs": inputs * 2},
                {"inputs": _choice(draw, _JUNK)},
                {"inputs": [*inputs, _choice(draw, _JUNK)]},
                {},
                {**told, "input": 1},
                {**told, "id": _choice(draw, (1, [], {}, True))},
                {**told, "outputs": _choice(draw, (1, [], {}, "x", [1], [{}], [{"name": "nothing"}]))},
                {**told, "outputs": [{"name": "prediction"}] * 2},
                {**told, "outputs": [{"name": "prediction", "parameters": {"classification": 3}}]},
                _choice(draw, _JUNK),
            ),
        )
    )


def _parameter(draw: np.random.Generator, shape: tuple[int, ...]) -> Message:
    name, values = _choice(
        draw,
        (
            ("deadline_ms", (0, -1, "5", True, [], 1e300, 10**50)),
            ("return_members", (1, "true", [], {})),
            ("binary_data_output", (1, "yes")),
            ("return_uncertainty", (None, 2)),
        ),
    )
    return _whole({**_good(draw, shape), "parameters": {name: _choice(draw, values)}})


def _binary(draw: np.random.Generator, shape: tuple[int, ...]) -> Message:
    rows = int(draw.integers(1, 4))
    values = draw.normal(size=(rows, *shape)).astype(np.float32)
    size = values.nbytes
    tensor = {"name": "input", "datatype": "FP32", "shape": [rows, *shape], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    behind = values.tobytes()
    kind = int(draw.integers(6))
    length = str(len(head))
    if kind == 0:
        behind = behind[: int(draw.integers(0, size))]
    elif kind == 1:
        behind += bytes(int(draw.integers(1, 50)))
    elif kind == 2:
        values[0] = _choice(draw, (np.nan, np.inf, -np.inf))
        behind = values.tobytes()
    elif kind == 3:
        length = _choice(draw, ("-1", "x", "", "1e2", "9" * 40, str(len(head) + size + 1), str(len(head) - 1), "0"))
    elif kind == 4:
        tensor["parameters"] = {"binary_data_size": _choice(draw, (size - 4, size + 4, -1, "8", 2**70, None, 0.5))}
        head = json.dumps({"inputs": [tensor]}).encode()
        length = str(len(head))
    else:
        return _whole(head + behind, kind=_BINARY)  # the length is missing
    return _whole(head + behind, kind=_BINARY, **{_LENGTH: length})


def _deep(draw: np.random.Generator, _shape: tuple[int, ...]) -> Message:
    depth = int(draw.integers(33, 50_000))
    opened = _choice(draw, (b"[", b'{"a":', b'{"inputs":['))
    closed = {b"[": b"]", b'{"a":': b"}", b'{"inputs":[': b"]}"}[opened]
    depth = min(depth, 2**17 // len(opened))
    return _whole(opened * depth + _choice(draw, (b"", b"1" + closed * depth)))


def _large(draw: np.random.Generator, shape: tuple[int, ...]) -> Message:
    if draw.random() < 0.5:
        told = _good(draw, shape)
        told["inputs"][0]["shape"] = [_choice(draw, (201, 10**6, 2**31 - 1)), *shape]
        return _whole(told)
    length = _choice(draw, (2**18 + 1, 2**40, 2**63 - 1))  # which is said, not sent
    return (
        f"POST {_INFER} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {_JSON}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode(), True


def _elsewhere(draw: np.random.Generator, shape: tuple[int, ...]) -> Message:
    paths = (
        "/v2/models/other/infer",
        "/v2/models/ensemble/versions/9/infer",
        "/v3",
        "/v2/models//infer",
        "/%00",
        "/..",
    )
    if draw.random() < 0.5:
        return _whole(_good(draw, shape), path=_choice(draw, paths))
    return _whole(_good(draw, shape), method=_choice(draw, ("PUT", "DELETE", "PATCH", "OPTIONS")))


def _typed(draw: np.random.Generator, shape: tuple[int, ...]) -> Message:
    if draw.random() < 0.5:
        good = json.dumps(_good(draw, shape)).encode()
        bomb = b" " * int(draw.integers(2**18 + 1, 2**24))
        content = _choice(draw, (good, gzip.compress(good)[: -int(draw.integers(1, 20))], gzip.compress(bomb)))
        return _whole(content, Content_Encoding=_choice(draw, ("gzip", "br", "deflate")))
    return _whole(_good(draw, shape), kind=_choice(draw, ("text/plain", "", "application/xml", "multipart/form-data")))


def _http(draw: np.random.Generator, _shape: tuple[int, ...]) -> Message:
    start = f"POST {_INFER} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {_JSON}\r\n".encode()
    found: Message = _choice(
        draw,
        (
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.bytes(50), True),
            (b"BREW /v2 HTTP/1.1\r\n\r\n", True),
            (start + b"Content-Length: -5\r\n\r\n", True),
            (start + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}    ", True),
            (start + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", True),
            (start + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", True),
            (start.replace(b"Host: localhost\r\n", b"") + b"Content-Length: 2\r\n\r\n{}", True),
            (start.replace(b"localhost", b"evil.example") + b"Content-Length: 2\r\n\r\n{}", True),
            (start + b"Origin: http://evil.example\r\nContent-Length: 2\r\n\r\n{}", True),
            (start + b"X: " + b"x" * 200_000, True),
            (start + b"bad header\x00: 1\r\n\r\n", True),
        ),
    )
    return found


def _leaving(draw: np.random.Generator, shape: tuple[int, ...]) -> Message:
    body = json.dumps(_good(draw, shape)).encode()
    whole = _head(body) + body
    return whole[: int(draw.integers(1, len(whole)))], False


def _status(port: int, content: bytes, *, waits: bool) -> str:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_SECONDS) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused early: the answer lies there
                connection.sendall(content)
            if not waits:
                return LEFT
            answer = b"".join(_parts(connection))
    except OSError as error:
        return type(error).__name__
    return answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "none"


def _parts(connection: socket.socket) -> Iterator[bytes]:
    """Yield what comes until the end; a reset after the first bytes is one, for the server need not read it all."""
    try:
        while part := connection.recv(2**16):
            yield part
            if part.startswith(b"HTTP/1.1 "):
                return
    except ConnectionResetError:
        return

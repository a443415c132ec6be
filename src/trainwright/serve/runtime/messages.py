"""Messages between the dispatcher and its workers, as JSON: tasks, reports, and what happens to a worker."""

import json
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

__all__ = ["ALIVE", "DONE", "DROPPED", "SlotReport", "SlotTask", "receive_message", "send_message"]

DONE, DROPPED, ALIVE = range(1, 4)  # kinds of reports: computed; too late, so left out; still computing


class SlotTask(NamedTuple):
    """Compute these members of the unit on the first `rows` rows of a slot; the arrays are in shared memory."""

    slot: int
    generation: int
    rows: int
    batch: int  # rows of a batch at most
    deadline: float  # of the last of its requests, seconds of the machine's monotonic clock; infinity for none
    members: tuple[int, ...]  # by position in the unit


class SlotReport(NamedTuple):
    """What became of one member's part of a task; `kind` is one of the constants above."""

    kind: int
    slot: int
    generation: int
    member: int  # position in the ensemble
    seconds: float  # that its last batch took


def send_message(line: "Connection[Any, Any]", message: Any) -> None:
    """Send an object of JSON, in which a task or a report is a list; OSError if the other process is gone."""
    # Unlike pickles, JSON lets neither process run anything in the other one.
    line.send_bytes(json.dumps(message).encode())


def receive_message(line: "Connection[Any, Any]") -> Any:
    """Return the next message; EOFError or OSError if the other process is gone."""
    return json.loads(line.recv_bytes())

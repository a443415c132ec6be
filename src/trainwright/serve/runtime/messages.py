"""Messages between dispatcher and workers: 32 bytes for a task or a report, JSON for the rest; arrays never travel."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["BEAT", "DONE", "DROPPED", "SlotReport", "SlotTask", "decode", "send_json"]

DONE, DROPPED, BEAT = range(1, 4)  # what a report says: computed; too late, so left out; still at it
_TASK = struct.Struct("<BxHIIIdQ")
_REPORT = struct.Struct("<BxHIIIdII")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotTask:
    """Front to worker: compute these members of the unit on the first `rows` rows of a slot."""

    slot: int
    generation: int
    rows: int
    batch: int  # rows of a batch at most
    deadline: float  # of the last of its requests, seconds of the machine's monotonic clock; infinity for none
    members: int  # bit k: member k of the unit

    def encode(self) -> bytes:
        """Return its 32 bytes."""
        return _TASK.pack(0, self.batch, self.slot, self.generation, self.rows, self.deadline, self.members)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotReport:
    """Worker to front: what became of one member's part of a task; `kind` is one of the constants above."""

    kind: int
    slot: int
    generation: int
    member: int  # position in the ensemble
    rows: int = 0  # of the batch that it was computed in
    seconds: float = 0.0  # that this batch took

    def encode(self) -> bytes:
        """Return its 32 bytes."""
        return _REPORT.pack(self.kind, self.member, self.slot, self.generation, self.rows, self.seconds, 0, 0)


def send_json(line: "Connection[Any, Any]", message: Mapping[str, Any]) -> None:
    """Send a JSON object."""
    line.send_bytes(json.dumps(message).encode())


def decode(message: bytes) -> SlotTask | list[SlotReport] | Mapping[str, Any]:
    """Return what a message says: work, one report or several that were sent together, or a JSON object."""
    # Work and reports never start with it.
    if message[0] == ord("{"):
        told: Mapping[str, Any] = json.loads(message)
        return told
    if message[0] == 0:
        _, batch, slot, generation, rows, deadline, members = _TASK.unpack(message)
        return SlotTask(slot=slot, generation=generation, rows=rows, batch=batch, deadline=deadline, members=members)
    return [
        SlotReport(kind=kind, slot=slot, generation=generation, member=member, rows=rows, seconds=seconds)
        for kind, member, slot, generation, rows, seconds, _, _ in _REPORT.iter_unpack(message)
    ]

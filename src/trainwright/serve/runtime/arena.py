"""The shared memory of front and workers: a ring of slots that nothing can outlive, and messages that name its slots.

A slot holds the rows of one segment, `inputs [rows, ...]`, and a place for each member's answer,
`predictions [members, rows, ...]`. On Linux the memory is a memfd, elsewhere a file without a name; workers inherit its
descriptor, so that it is gone with the last process that has it, however that ends.
"""

import json
import math
import mmap
import os
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from trainwright.ensemble.metrics import Array

__all__ = ["Arena", "ArenaShape", "SlotReport", "SlotTask", "receive_message", "send_message"]

_LINE = 64  # bytes: places start on cache lines of their own


@dataclass(frozen=True, kw_only=True, slots=True)
class ArenaShape:
    """Where things lie in the memory."""

    slots: int
    rows: int  # of a segment
    members: int
    input_shape: tuple[int, ...]  # of one row
    input_dtype: str
    output_shape: tuple[int, ...]  # of one row of one member: (C,), (T,) or (T, 2); float64

    @property
    def input_bytes(self) -> int:
        """Bytes of a slot's inputs."""
        return _round_to_lines(self.rows * math.prod(self.input_shape) * np.dtype(self.input_dtype).itemsize)

    @property
    def output_bytes(self) -> int:
        """Bytes of one member's predictions in a slot."""
        return _round_to_lines(self.rows * math.prod(self.output_shape) * 8)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
        return self.input_bytes + self.members * self.output_bytes


class Arena:
    """The memory as numpy arrays without copies; `descriptor` is what a worker inherits."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._inputs: list[Array] = []
        self._outputs: list[list[Array]] = []

    @classmethod
    def create(cls) -> "Arena":
        """Return an arena without memory yet."""
        return cls(_open_anonymous())

    def grow(self, layout: ArenaShape) -> None:
        """Give the memory its size and map it: in the front, once it is known what members answer."""
        # The size is known only once a worker has sent the shape of its outputs.
        os.ftruncate(self.descriptor, max(mmap.PAGESIZE, layout.slots * layout.slot_bytes))
        self.map(layout)

    def map(self, layout: ArenaShape) -> None:
        """Map memory that the front has given its size."""
        # Every array is made once: making one for each task would take longer than small batches.
        memory = mmap.mmap(self.descriptor, 0)
        dtype = np.dtype(layout.input_dtype)
        self._inputs, self._outputs = [], []
        for slot in range(layout.slots):
            start = slot * layout.slot_bytes
            shape = (layout.rows, *layout.input_shape)
            self._inputs.append(_map_array(memory, start, shape, dtype))
            start += layout.input_bytes
            shape = (layout.rows, *layout.output_shape)
            places = range(start, start + layout.members * layout.output_bytes, layout.output_bytes)
            self._outputs.append([_map_array(memory, place, shape, np.dtype(np.float64)) for place in places])

    def inputs(self, slot: int) -> Array:
        """Return the inputs [rows, ...] of a slot."""
        return self._inputs[slot]

    def predictions(self, slot: int, member: int) -> Array:
        """Return the place [rows, ...] for the predictions of a member."""
        return self._outputs[slot][member]

    def close(self) -> None:
        """Let go of the memory; arrays that are still held keep theirs."""
        self._inputs, self._outputs = [], []
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class SlotTask(NamedTuple):
    """Compute these members of the unit on the first `rows` rows of a slot; the arrays are in shared memory."""

    slot: int
    generation: int
    rows: int
    members: tuple[int, ...]  # by position in the unit


class SlotReport(NamedTuple):
    """A member's predictions for the rows of a task are in the slot."""

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


def _open_anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("trainwright-serve", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _map_array(memory: mmap.mmap, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return np.frombuffer(memory, dtype, count=math.prod(shape), offset=start).reshape(shape)


def _round_to_lines(size: int) -> int:
    return -(-size // _LINE) * _LINE

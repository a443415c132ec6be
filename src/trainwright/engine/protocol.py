"""The protocol of engines, which run assignments on blocks of slots, and the outcomes that they report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trainwright.cluster.device import NodeShape
from trainwright.ledger import Record
from trainwright.ledger.trials import RaisedAt
from trainwright.train import Trial
from trainwright.train.assignment import Assignment
from trainwright.validators import Validator, number

__all__ = [
    "SPEEDS",
    "Block",
    "Died",
    "Engine",
    "Handler",
    "Outcome",
    "Raised",
    "Returned",
    "StoppedEarly",
    "TrainFunction",
    "node_shapes",
]

TrainFunction = Callable[[Trial], Any]
Block = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ended:
    """What every end carries: the last metrics reported, their epoch, the seconds that the run took."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    epoch: int = 0
    seconds: float = 0.0
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Returned(_Ended):
    """The training function returned `value`: the objective, metrics by name, or None."""

    value: float | Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoppedEarly(_Ended):
    """The trial was told not to go on and ended quietly; if `preempted`, within an epoch and to go on later."""

    preempted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Raised(_Ended):
    """The trial failed: exception, out_of_memory, timeout, killed, misuse or rejected; `message` is one sentence.

    no_room is no failure of its own: its checkpoint found none on the disk, and it may run again.
    """

    failure: str
    message: str
    traceback: str = ""
    raised: RaisedAt | None = None  # the line of the user's code, if it is known


@dataclass(frozen=True, kw_only=True, slots=True)
class Died(_Ended):
    """The process went away through no fault of the trial's own: it may run again.

    `blame` says whether this may have been the trial's doing all the same: one that dies again and again is given up.
    """

    why: str
    blame: bool = True


Outcome = Returned | StoppedEarly | Raised | Died


class Handler(Protocol):
    """Whoever keeps the ledger, called back by an engine's `poll`."""

    def facts(self, trial: int, records: list[Record]) -> bool:
        """Take a trial's records; return whether it continues."""

    def exited(self, trial: int, outcome: Outcome) -> None:
        """Take a trial's end; exactly one comes for each launch, after its facts."""

    def leaves(self) -> bool:
        """Whether running trials that can save within an epoch are to do so at their next step, and to end."""


@runtime_checkable
class Engine(Protocol):
    """Where trials run. `open`, then `launch` and `poll` in turn, then `close`, which leaves no process behind."""

    @property
    def slots(self) -> int:
        """How many blocks of one slot it has."""

    @property
    def slots_per_node(self) -> int:
        """How many of them are in one node; slots are numbered node by node."""

    @property
    def gone(self) -> frozenset[int]:
        """The slots of nodes that it has lost since `open`. What ran there has died, and nothing can be launched."""

    def open(self, train: TrainFunction, directory: Path | None) -> None:
        """Make ready to run `train`; logs go below `directory`. Raises `EngineError` if it cannot be shipped."""

    def devices(self, block: Block) -> tuple[str, ...]:
        """Return the names of a block's devices, such as ("cuda:0",)."""

    def launch(self, assignment: Assignment, block: Block) -> None:
        """Start an assignment on free slots."""

    def poll(self, handler: Handler, timeout_seconds: float) -> None:
        """Hand what has happened to `handler`, waiting for at most `timeout_seconds` if nothing has."""

    def close(self) -> None:
        """End whatever still runs, without an outcome, and every process."""


SPEEDS = Validator(
    lambda value: isinstance(value, Mapping) and all(map(number(above=0).accepts, value.values())),
    'speeds > 0 by patterns of device names, such as {"old-*": 0.5}',
)


def node_shapes(engine: Engine) -> tuple[NodeShape, ...]:
    """Return the nodes of an engine in the order of their slots; the parts of a node whose speeds differ are several.

    Its `node_sizes` says how many slots each node has, if they differ, and its `speeds` how fast devices are whose
    names match a pattern: the first one counts, others are of speed 1. An engine may lack both.
    """
    slots, per_node, speeds = engine.slots, engine.slots_per_node, getattr(engine, "speeds", {})
    sizes = getattr(engine, "node_sizes", ()) or [min(per_node, slots - first) for first in range(0, slots, per_node)]
    if not speeds:
        return tuple(map(NodeShape, sizes))
    nodes = [node for node, size in enumerate(sizes) for _ in range(size)]
    names = [engine.devices((slot,))[0] for slot in range(slots)]
    found = [next((speed for pattern, speed in speeds.items() if fnmatchcase(name, pattern)), 1.0) for name in names]
    return tuple(NodeShape(len(list(part)), speed) for (_, speed), part in groupby(zip(nodes, found, strict=True)))

"""A plan's operations as the interpreter does them: copies placed, stages put together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import torch

from trainwright.errors import ChainError
from trainwright.plan.memory.operations import Operation, OperationKind, Value
from trainwright.plan.memory.plan_record import Plan
from trainwright.train.parallel.recompute.trees import map_only
from trainwright.train.parallel.recompute.values import detach_leaf

__all__ = [
    "FORWARDS",
    "Act",
    "Release",
    "Script",
    "arrange_script",
    "lent_units",
    "moved_units",
    "place_acts",
    "without_graph",
]

FORWARDS: Final = frozenset({OperationKind.FORWARD_ALL, OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP})


@dataclass(frozen=True, slots=True)
class Release:
    """The device's copy of a value that is on its way to the host goes."""

    stage: int
    value: Value
    kind: ClassVar[None] = None


Act = Operation | Release


@dataclass(frozen=True, kw_only=True)
class Script:
    """What to do, with units in the place of stages: stages in a row that are always treated alike, done as one."""

    units: list[range]
    acts: list[Act]
    """Their stages are units, counted from 1."""
    turn: int
    """How many acts belong to the forward pass."""
    until: dict[int, int]
    """Of each unit, how many acts come before the end of its backward; of the first, all."""

    @cached_property
    def runs(self) -> Counter[int]:
        """How often each unit runs forward."""
        return Counter(act.stage for act in self.acts if act.kind in FORWARDS)

    @cached_property
    def kept(self) -> set[int]:
        """The units that run once, and whose saved values lie untouched until their backward."""
        acts = self.acts
        once = {act.stage for act in acts if act.kind is OperationKind.FORWARD_ALL}
        once -= {unit for unit, times in self.runs.items() if times > 1}
        return once - lent_units(acts) - {act.stage for act in acts if act.value is Value.SAVED}

    @cached_property
    def graphs_only(self) -> set[int]:
        """The places of forwards with gradients whose output nobody reads: their backward is what comes next."""
        found = set()
        for place, act in enumerate(self.acts):
            own, above = act.stage, act.stage + 1
            if act.kind is OperationKind.FORWARD_ALL:
                # The first act that needs the graph, or that may read the output, decides.
                uses = (
                    later
                    for later in self.acts[place + 1 :]
                    if (later.stage == own and later.value is not Value.OUTPUT)
                    or (later.stage == above and later.value is None)
                )
                if next(uses) == Operation(OperationKind.BACKWARD, own):
                    found.add(place)
        return found


def place_acts(plan: Plan) -> tuple[Act, ...]:
    """Return what to do, in order, with copies as the simulator has them.

    A copy to the host begins where the plan says; its value leaves the device before the computation during which the
    simulated copy ends, but never before its last reader is done; a copy back begins before the computation during
    which the simulated one does. So the bytes alive at each computation are at most the simulated ones, however fast
    the real link is.
    """
    operations = plan.operations
    if not any(operation.kind in {OperationKind.OFFLOAD, OperationKind.PREFETCH} for operation in operations):
        return operations
    spans = {span.operation: span for span in plan.simulation.spans}
    works = [place for place, operation in enumerate(operations) if operation.value is None]

    def during(seconds: float, after: int) -> int:
        """Return the place of the first computation behind a place that does not end before a time."""
        for place in works:
            span = spans[place]
            if place > after and (span.end_seconds > seconds or span.start_seconds >= seconds):
                return place
        return len(operations)

    # Acts to be inserted before each place: releases where the simulated copy ends, fetches where it begins.
    before: dict[int, list[Act]] = {}
    # A release stands before the computation during which the simulated copy ends, after its last reader.
    for place, operation in enumerate(operations):
        value = operation.value
        if value is None or operation.kind is OperationKind.DELETE:
            continue
        if operation.kind is OperationKind.OFFLOAD:
            gone = during(spans[place].end_seconds, max(place, _last_reader(operations, place)))
            # Releases come first: they make the room that others take.
            before.setdefault(gone, []).insert(0, Release(operation.stage, value))
        else:
            before.setdefault(during(spans[place].start_seconds, place), []).append(operation)
    acts: list[Act] = []
    for place, operation in enumerate(operations):
        acts += before.get(place, [])
        if operation.kind is not OperationKind.PREFETCH:
            acts.append(operation)
    return (*acts, *before.get(len(operations), []))


def _last_reader(operations: Sequence[Operation], place: int) -> int:
    """Return the place of the last computation that reads a value that leaves, before it comes back; else `place`."""
    leaving = operations[place]
    last = place
    for later in range(place + 1, len(operations)):
        other = operations[later]
        if other.kind is OperationKind.PREFETCH and (other.stage, other.value) == (leaving.stage, leaving.value):
            break
        own = other.kind is OperationKind.BACKWARD and other.stage == leaving.stage and leaving.value is Value.SAVED
        if other.value is None and (other.stage == leaving.stage + 1 or own):
            last = later
    return last


def lent_units(acts: Iterable[Act]) -> set[int]:
    """Return the stages whose input goes between a forward with gradients and the backward."""
    found: set[int] = set()
    waiting: set[int] = set()  # for their backward
    for act in acts:
        number = act.stage
        if isinstance(act, Release):
            # What leaves is the input of the next stage, whose graph may need it for its backward.
            found |= {number + 1} & waiting
        elif act.kind is OperationKind.FORWARD_ALL:
            waiting.add(number)
        elif act.kind is OperationKind.BACKWARD:
            waiting.discard(number)
        elif act.kind is OperationKind.FORWARD_DROP and number in waiting:
            found.add(number)
        elif act.kind is OperationKind.DELETE:
            if act.value is Value.SAVED:
                waiting.discard(number)
            found |= {number + 1} & waiting
    return found


def moved_units(acts: Iterable[Act]) -> set[int]:
    """Return the stages whose saved values go to the host."""
    return {act.stage for act in acts if isinstance(act, Release) and act.value is Value.SAVED}


def arrange_script(acts: Sequence[Act], count: int) -> Script:
    """Return what to do with `count` stages; raise ChainError if a forward or backward of one is missing.

    The loss stage's computations are the caller's: they only say where the forward pass ends.
    """
    units = _units(acts, count)
    # Units by the stage at which their forward, or their backward, begins.
    ends = {(unit[0], True): number for number, unit in enumerate(units, 1)}
    ends |= {(unit[-1], False): number for number, unit in enumerate(units, 1)}
    # Keep one act for a whole unit: the forward of its first stage, the backward of its last.
    ours: list[Act] = []
    turn: int | None = None
    # The units whose first forward, and whose backward, come next.
    first, below = 1, len(units)
    until: dict[int, int] = {}
    for act in acts:
        forward = act.kind in FORWARDS
        # With the loss's forward the forward pass is over.
        if act.stage > count and forward:
            turn = len(ours)
        if (act.stage, forward) not in ends:
            continue
        number = ends[act.stage, forward]
        ours.append(replace(act, stage=number))
        if forward and number == first:
            first += 1
            turn = len(ours)
        elif act.kind is OperationKind.BACKWARD and number == below:
            until[number], below = len(ours), below - 1
    if below or first <= len(units):
        missing = f"backward of stage {units[below - 1][-1]}" if below else f"forward of stage {units[first - 1][0]}"
        raise ChainError(f"operations: got no {missing}; allowed: a forward and a backward of each of {count} stages")
    # What follows the last backward, such as a deletion, is done with it.
    until[1] = len(ours)
    return Script(units=units, acts=ours, turn=turn or 0, until=until)


def _units(acts: Sequence[Act], count: int) -> list[range]:
    """Return rows of stages of which nothing moves, and each computation comes right beside the same of the next."""
    begins = {1}
    for before, act, after in zip((None, *acts), acts, (*acts[1:], None), strict=False):
        stage = act.stage
        # What moves or goes is handled by itself, so that its stage is a unit of its own.
        if act.value is Value.SAVED or act.kind in {None, OperationKind.OFFLOAD, OperationKind.PREFETCH}:
            begins |= {stage, stage + 1}
        elif act.kind is OperationKind.DELETE:
            # An output can go only where a unit ends: inside a unit nobody holds it.
            begins.add(stage + 1)
        else:
            ahead, behind = (stage, stage + 1) if act.kind is OperationKind.BACKWARD else (stage + 1, stage)
            begins |= {place for place, pair in ((behind, (before, act)), (ahead, (act, after))) if not _go_on(*pair)}
    starts = sorted(begins & set(range(1, count + 1)))
    return [range(first, stop) for first, stop in zip(starts, [*starts[1:], count + 1], strict=True)]


def _go_on(one: Act | None, other: Act | None) -> bool:
    """Return whether a computation is done to the next stage as it was to the one before, in its own direction."""
    if one is None or other is None:
        return False
    if one.kind is OperationKind.BACKWARD:
        return other.kind is OperationKind.BACKWARD and other.stage == one.stage - 1
    # A run without gradients may keep its first input; each later stage drops what it has read.
    same = OperationKind.FORWARD_ALL if one.kind is OperationKind.FORWARD_ALL else OperationKind.FORWARD_DROP
    return one.kind in FORWARDS and other.kind is same and other.stage == one.stage + 1


def without_graph(value: Any) -> Any:
    """Return a value of a rerun for the next stage: a graph behind it would hold what the run began with."""
    return map_only(torch.Tensor, detach_leaf, value)

"""A plan's operations as the interpreter does them: copies placed, and what the model itself does marked."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

from trainwright.errors import ChainError
from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Operation, OperationKind, Value
from trainwright.plan.memory.plan_record import Plan

__all__ = [
    "FORWARDS",
    "NOTHING_REMADE",
    "Act",
    "Release",
    "RemadeOperations",
    "Script",
    "arrange_script",
    "lent_stages",
    "moved_stages",
    "place_acts",
    "remade_operations",
]

FORWARDS: Final = frozenset({OperationKind.FORWARD_ALL, OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP})


@dataclass(frozen=True, slots=True)
class Release:
    """The device's copy of a value that is on its way to the host goes."""

    stage: int
    value: Value
    kind: ClassVar[None] = None


Act = Operation | Release
RemadeOperations = Mapping[tuple[int, int], Sequence[int]]
"""Of a stage and its option, the numbers of the operations that its backward does again."""
NOTHING_REMADE: Final[RemadeOperations] = {}


@dataclass(frozen=True, kw_only=True)
class Script:
    """What to do in a step, and which of it the model's own forward and autograd's walk do."""

    acts: list[Act]
    turn: int
    """How many acts belong to the forward pass."""
    firsts: dict[int, int]
    """Of each stage, the place of its first forward, which is the model's."""
    until: dict[int, int]
    """Of each stage, how many acts come before the end of its backward; of the first, all."""

    @cached_property
    def first_places(self) -> frozenset[int]:
        """The places of first forwards."""
        return frozenset(self.firsts.values())

    @cached_property
    def runs(self) -> Counter[int]:
        """How often each stage runs forward."""
        return Counter(act.stage for act in self.acts if act.kind in FORWARDS)

    @cached_property
    def kept(self) -> set[int]:
        """The stages that run once, and whose saved values lie untouched until their backward."""
        acts = self.acts
        once = {act.stage for act in acts if act.kind is OperationKind.FORWARD_ALL}
        once -= {act.stage for act in acts if isinstance(act, Operation) and act.option}
        once -= {stage for stage, times in self.runs.items() if times > 1}
        return once - lent_stages(acts) - {act.stage for act in acts if act.value is Value.SAVED}

    @cached_property
    def idle(self) -> frozenset[int]:
        """Those of the kept stages about which nothing is to be done, neither behind their forward nor before it ends.

        Of a stage whose input goes and comes again, the stage before is none of them.
        """
        lent, count = lent_stages(self.acts), len(self.firsts)
        return frozenset(
            stage
            for stage in self.kept
            if stage + 1 not in lent
            and self.firsts.get(stage + 1, self.turn) == self.firsts[stage] + 1
            and self.until[stage] - (self.until[stage + 1] if stage < count else self.turn) == 1
        )

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


def remade_operations(chain: Chain) -> RemadeOperations:
    """Return what the backwards of a chain's stages do again, by stage and option."""
    return {
        (number, place): option.remade
        for number, stage in enumerate(chain.stages, start=1)
        for place, option in enumerate(stage.options, start=1)
    }


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
            gone = during(*plan.simulation.releases.get(place, (math.inf, place)))
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


def lent_stages(acts: Iterable[Act]) -> set[int]:
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


def moved_stages(acts: Iterable[Act]) -> set[int]:
    """Return the stages whose saved values go to the host."""
    return {act.stage for act in acts if isinstance(act, Release) and act.value is Value.SAVED}


def arrange_script(acts: Sequence[Act], count: int) -> Script:
    """Return what to do with `count` stages; raise ChainError if a forward or backward of one is missing.

    The loss stage's computations are the caller's: they only say where the forward pass ends.
    """
    ours: list[Act] = []
    turn = 0
    firsts: dict[int, int] = {}
    until: dict[int, int] = {}
    for act in acts:
        # With the loss's forward the forward pass is over.
        if act.stage > count:
            turn = len(ours) if act.kind in FORWARDS else turn
            continue
        ours.append(act)
        if act.kind in FORWARDS and act.stage == len(firsts) + 1:
            firsts[act.stage] = len(ours) - 1
            turn = len(ours)
        elif act.kind is OperationKind.BACKWARD and act.stage == count - len(until):
            until[act.stage] = len(ours)
    if len(firsts) < count or len(until) < count:
        below, first = count - len(until), len(firsts) + 1
        missing = f"backward of stage {below}" if below else f"forward of stage {first}"
        raise ChainError(f"operations: got no {missing}; allowed: a forward and a backward of each of {count} stages")
    # What follows the last backward, such as a deletion, is done with it.
    until[1] = len(ours)
    return Script(acts=ours, turn=turn, firsts=firsts, until=until)

"""A plan's operations as the interpreter does them: copies where the simulator has them, sorted to autograd's nodes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trainwright.errors import ChainError
from trainwright.memory.operations import Kind, Operation, Value
from trainwright.memory.plan_record import Plan

__all__ = ["FORWARDS", "Act", "Leave", "lent", "moved", "placed", "sorted_to_nodes"]

FORWARDS: Final = frozenset({Kind.FORWARD_ALL, Kind.FORWARD_KEEP, Kind.FORWARD_DROP})


@dataclass(frozen=True, slots=True)
class Leave:
    """The device's copy of a value that is on its way to the host goes."""

    stage: int
    value: Value


Act = Operation | Leave


def placed(plan: Plan) -> tuple[Act, ...]:
    """Return what to do, in order, with copies as the simulator has them.

    A copy to the host begins where the plan says; its value leaves the device before the computation during which the
    simulated copy ends, but never before its last reader is done; a copy back begins before the computation during
    which the simulated one does. So the bytes alive at each computation are at most the simulated ones, however fast
    the real link is.
    """
    operations = plan.operations
    if not any(operation.kind in {Kind.OFFLOAD, Kind.PREFETCH} for operation in operations):
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

    before: dict[int, list[Act]] = {}
    for place, operation in enumerate(operations):
        value = operation.value
        if value is None or operation.kind is Kind.DELETE:
            continue
        if operation.kind is Kind.OFFLOAD:
            gone = during(spans[place].end_seconds, max(place, _last_reader(operations, place)))
            before.setdefault(gone, []).insert(0, Leave(operation.stage, value))  # room first, then what takes it
        else:
            before.setdefault(during(spans[place].start_seconds, place), []).append(operation)
    acts: list[Act] = []
    for place, operation in enumerate(operations):
        acts += before.get(place, [])
        if operation.kind is not Kind.PREFETCH:
            acts.append(operation)
    return (*acts, *before.get(len(operations), []))


def _last_reader(operations: Sequence[Operation], place: int) -> int:
    """Return the place of the last computation that reads a value that leaves, before it comes back; else `place`."""
    leaving = operations[place]
    last = place
    for later in range(place + 1, len(operations)):
        other = operations[later]
        if other.kind is Kind.PREFETCH and (other.stage, other.value) == (leaving.stage, leaving.value):
            break
        own = other.kind is Kind.BACKWARD and other.stage == leaving.stage and leaving.value is Value.SAVED
        if other.value is None and (other.stage == leaving.stage + 1 or own):
            last = later
    return last


def lent(acts: Iterable[Act]) -> set[int]:
    """Return the stages whose input goes between a forward with gradients and the backward."""
    found: set[int] = set()
    waiting: set[int] = set()  # for their backward
    for act in acts:
        number = act.stage
        if isinstance(act, Leave):
            found |= {number + 1} & waiting
        elif act.kind is Kind.FORWARD_ALL:
            waiting.add(number)
        elif act.kind is Kind.BACKWARD:
            waiting.discard(number)
        elif act.kind is Kind.FORWARD_DROP and number in waiting:
            found.add(number)
        elif act.kind is Kind.DELETE:
            if act.value is Value.SAVED:
                waiting.discard(number)
            found |= {number + 1} & waiting
    return found


def moved(acts: Iterable[Act]) -> set[int]:
    """Return the stages whose saved values go to the host."""
    return {act.stage for act in acts if isinstance(act, Leave) and act.value is Value.SAVED}


def sorted_to_nodes(acts: Sequence[Act], count: int) -> tuple[list[list[Act]], list[list[Act]]]:
    """Return what each stage's node does, forward and backward; the loss stage's computations are the caller's."""
    forwards: list[list[Act]] = []
    backwards: list[list[Act]] = [[] for _ in range(count)]
    segment: list[Act] = []
    below = count
    for act in acts:
        if isinstance(act, Leave):
            segment.append(act)
            continue
        if act.stage > count:
            if act.kind is Kind.FORWARD_ALL and forwards:
                forwards[-1] += segment
                segment = []
            continue
        segment.append(act)
        if len(forwards) < count and act.kind in FORWARDS and act.stage == len(forwards) + 1:
            forwards.append(segment)
            segment = []
        elif act.kind is Kind.BACKWARD and act.stage == below:
            backwards[below - 1] = segment
            segment, below = [], below - 1
    if below or len(forwards) < count:
        missing = f"backward of stage {below}" if below else f"forward of stage {len(forwards) + 1}"
        raise ChainError(f"operations: got no {missing}; allowed: a forward and a backward of each of {count} stages")
    backwards[0] += segment
    return forwards, backwards

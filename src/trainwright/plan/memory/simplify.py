"""Simpler operations for the same work: no graph is made that has no backward, nothing is kept only to be dropped."""

from collections.abc import Callable, Sequence

from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Link, Operation, OperationKind, Value
from trainwright.plan.memory.simulate import simulate

__all__ = ["simplify_plan"]


def simplify_plan(chain: Chain, operations: Sequence[Operation], *, link: Link | None = None) -> tuple[Operation, ...]:
    """Return the operations in their simplest form, if the simulator finds it neither slower nor larger.

    Where bytes are free for it, solvers say "Fall 1; Fall 2; Del s1" for what is "Fck 1; Fall 2; Del a1", and
    "Fck 2; Del a1" for "Fdrop 2". Nobody needs the graph; an executor would make it, and do the stages one by one.
    """
    found = _drop_with_forward(_without_graphs(list(operations)))
    before, after = simulate(chain, operations, link=link), simulate(chain, found, link=link)
    worse = not after.fits or after.seconds > before.seconds or after.peak_bytes > before.peak_bytes
    return tuple(operations) if worse else tuple(found)


def _without_graphs(found: list[Operation]) -> list[Operation]:
    """Let forwards whose graph is deleted make only their output."""
    bare: set[int] = set()  # outputs that are there already: a second one would have no name
    for place, operation in enumerate(found):
        stage = operation.stage
        if operation.kind is OperationKind.FORWARD_ALL and stage not in bare:
            ends = _next_use(found, place, lambda later: later.value is not Value.OUTPUT, of=(stage,))
            if found[ends : ends + 1] == [Operation(OperationKind.DELETE, stage, Value.SAVED)]:
                found[place] = Operation(OperationKind.FORWARD_KEEP, stage)
                found[ends] = Operation(OperationKind.DELETE, stage, Value.OUTPUT)
                drop, keep = (
                    Operation(kind, stage + 1) for kind in (OperationKind.FORWARD_DROP, OperationKind.FORWARD_KEEP)
                )
                found[place:ends] = [keep if each == drop else each for each in found[place:ends]]
        if found[place].kind in {OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP}:
            bare.add(stage)
        if found[place].kind is OperationKind.FORWARD_DROP:
            bare.discard(stage - 1)
        elif operation.kind is OperationKind.DELETE and operation.value is Value.OUTPUT:
            bare.discard(stage)
    return found


def _drop_with_forward(found: list[Operation]) -> list[Operation]:
    """Let forwards drop what they read where it is deleted before anybody else reads it."""
    for place, operation in reversed(list(enumerate(found))):
        if operation.kind is OperationKind.FORWARD_KEEP:
            read, reader = operation.stage - 1, operation.stage
            ends = _next_use(
                found,
                place,
                lambda later, read=read: later.value is (Value.OUTPUT if later.stage == read else None),  # type: ignore[misc]
                of=(read, reader),
            )
            if found[ends : ends + 1] == [Operation(OperationKind.DELETE, read, Value.OUTPUT)]:
                found[place] = Operation(OperationKind.FORWARD_DROP, reader)
                del found[ends]
    return found


def _next_use(
    operations: Sequence[Operation], place: int, wanted: Callable[[Operation], bool], *, of: tuple[int, ...]
) -> int:
    """Return the place of the next operation of a sort on some stages behind a place; the end if there is none."""
    places = range(place + 1, len(operations))
    return next(
        (later for later in places if operations[later].stage in of and wanted(operations[later])), len(operations)
    )

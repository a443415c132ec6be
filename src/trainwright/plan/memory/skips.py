"""The values that skip stages while operations run: which are alive, and how many bytes they take.

The first forward of a reader reads what the maker's first has made; one that is run again what the maker's latest has.
A value stays while such a forward is to come, and while the graph of a stage that holds it is there; made twice, it may
be alive twice.

Solvers count bytes by stage and know no such values, so these are put into the stages' numbers, with the gradients of
outputs, as if each were alive until its maker's backward; the simulator decides on what they find.
"""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace

from trainwright.model.chain import Chain, Skip
from trainwright.plan.memory.operations import Operation, OperationKind, Value

__all__ = ["SkipAccounting", "fold_skips", "without_skips"]

_Key = tuple[Value, int]
_BARE = frozenset({OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP})
_FORWARDS = _BARE | {OperationKind.FORWARD_ALL}


class SkipAccounting:
    """The values of a chain that skip stages, as its operations are done one after the other."""

    def __init__(self, chain: Chain, operations: Sequence[Operation]) -> None:
        self._values = [_Alive(skip, operations) for skip in chain.skips]

    def made_bytes(self, stage: int) -> int:
        """Return the bytes that a forward of a stage makes to skip others, beside its output."""
        skips = (each.skip for each in self._values if each.skip.maker == stage)
        return sum(skip.value_bytes - skip.shared_bytes for skip in skips)

    def do(self, place: int, operation: Operation) -> None:
        """Do the operation at a place of the list."""
        for each in self._values:
            each.do(place, operation)

    def left(self, key: _Key) -> None:
        """Note that the device's copy of a value between stages has gone to the host."""
        for each in self._values:
            each.left(key)

    def came(self, key: _Key) -> None:
        """Note that a value between stages is coming back."""
        for each in self._values:
            each.came(key)

    def alive_bytes(self, there: Collection[_Key]) -> int:
        """Return the bytes that are alive now, beside the values between stages that are there."""
        return sum(each.bytes(there) for each in self._values)


class _Alive:
    """One value: who holds which of its copies, numbered by the runs of its maker."""

    def __init__(self, skip: Skip, operations: Sequence[Operation]) -> None:
        self.skip = skip
        self._copies = 0
        self._holders: dict[Hashable, int] = {}
        self._outputs: dict[_Key, int] = {}  # the copy that is a part of the maker's output
        self._first_reads = dict.fromkeys(skip.readers, len(operations))  # places
        self._again_until: dict[int, int] = {}  # of each copy, the place of the last that is run again and reads it
        # Number the runs of the maker, and note the last rerun of a reader that reads each copy.
        copy = -1
        for place, operation in enumerate(operations):
            if operation.kind not in _FORWARDS:
                continue
            if operation.stage == skip.maker:
                copy += 1
            elif operation.stage in self._first_reads:
                if self._first_reads[operation.stage] == len(operations):
                    self._first_reads[operation.stage] = place
                else:
                    self._again_until[copy] = place

    def do(self, place: int, operation: Operation) -> None:
        key = operation.value or (Value.OUTPUT if operation.kind in _BARE else Value.SAVED), operation.stage
        if operation.kind in _FORWARDS:
            self._forward(place, key)
        elif operation.kind in {OperationKind.BACKWARD, OperationKind.DELETE}:
            for holder in (key, ("away", key)):
                self._holders.pop(holder, None)
        elif operation.kind is OperationKind.OFFLOAD and key in self._outputs:
            # What else is needed of it stays, until it is back or deleted.
            copy = self._outputs[key]
            if copy in (self._holders.get("again"), self._holders.get((Value.SAVED, key[1]))):
                self._holders["away", key] = copy

    def _forward(self, place: int, key: _Key) -> None:
        makes = key[1] == self.skip.maker
        if makes:
            if not self._copies:
                self._holders["first"] = 0
            self._holders["again"] = self._outputs[key] = self._copies
            self._copies += 1
        latest = self._copies - 1
        if key[0] is Value.SAVED and key[1] in self.skip.holders:
            first = not makes and place == self._first_reads[key[1]]
            self._holders[key] = 0 if first else latest
        # The first copy is free after the last first read, a later one after the last rerun that reads it.
        if place >= max(self._first_reads.values()):
            self._holders.pop("first", None)
        if place >= self._again_until.get(latest, 0):
            self._holders.pop("again", None)

    def left(self, key: _Key) -> None:
        if ("away", key) not in self._holders:
            self._outputs.pop(key, None)

    def came(self, key: _Key) -> None:
        self._holders.pop(("away", key), None)

    def bytes(self, there: Collection[_Key]) -> int:
        shown = {copy for key, copy in self._outputs.items() if key in there}
        skip = self.skip
        return sum(skip.value_bytes - skip.shared_bytes * (copy in shown) for copy in {*self._holders.values()})


def fold_skips(chain: Chain) -> Chain:
    """Return the chain with each value counted from the start of the step to its maker's backward.

    That is enough for every plan, unless graphs hold a value and another copy of it.
    """
    if not chain.skips:
        return chain
    steps, before = [], 0
    for number, step in enumerate(chain.steps, start=1):
        alive = sum(skip.value_bytes for skip in chain.skips if skip.maker <= number)
        # While it runs backward, the gradient that arrives and the one it makes are both there: count this once.
        twice, before = min(alive, before), alive
        options = tuple(
            replace(each, backward_temporary_bytes=each.backward_temporary_bytes - twice) for each in step.options
        )
        steps.append(
            replace(
                step,
                gradient_bytes=step.output_gradient_bytes + alive,
                backward_temporary_bytes=step.backward_temporary_bytes - twice,
                options=options,
            )
        )
    return replace(chain, stages=tuple(steps[:-1]), loss=steps[-1], skips=())


def without_skips(chain: Chain) -> Chain:
    """Return the chain without its values: no plan takes less."""
    return replace(chain, skips=()) if chain.skips else chain

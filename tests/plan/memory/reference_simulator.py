"""A simulator of memory plans that shares no code with that of `plan.memory`: what that says is compared with this.

The rules are those of `plan.memory.simulate`.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Link, Operation, OperationKind, Value
from trainwright.plan.memory.simulate import LaneSpan, PlanViolation

__all__ = ["simulate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """What a list of operations does; where `violation` is not None, only what was before it."""

    seconds: float
    peak_bytes: int
    peak_operation: int
    """Place in the list of what was being done when the peak was first reached."""
    peak_owners: tuple[tuple[str, int], ...]
    """Who holds the bytes of the peak."""
    points: tuple[tuple[float, int], ...] = field(repr=False)
    """From which second on how many bytes are alive."""
    spans: tuple[LaneSpan, ...] = field(repr=False)
    releases: Mapping[int, tuple[float, int]] = field(repr=False)
    """Of each copy to the host, by its place: when its value left the device, and what was the last done by then."""
    violation: PlanViolation | None = None

    @property
    def fits(self) -> bool:
        """Whether the list is valid and, if a budget was given, stays within it."""
        return self.violation is None


def simulate(
    chain: Chain, operations: Sequence[Operation], *, budget_bytes: int | None = None, link: Link | None = None
) -> Simulation:
    """Run the operations; with a budget, work waits for bytes that copies free, and fails where none will.

    The budget is the whole of the device's bytes, those of `chain.fixed` and the input included.
    """
    return _Machine(chain, operations, budget_bytes, link).run_all()


_Key = tuple[Value, int]
_GONE = 1e-12
_BARE = (OperationKind.FORWARD_KEEP, OperationKind.FORWARD_DROP)


@dataclass(slots=True)
class _Copy:
    operation: int
    key: _Key
    left: float
    start: float = 0.0


class _Machine:
    def __init__(self, chain: Chain, operations: Sequence[Operation], budget: int | None, link: Link | None) -> None:
        self.steps = chain.steps
        self.chain = chain
        self.operations = operations
        self.room = math.inf if budget is None else budget
        self.linked = link is not None
        self.link = link or Link(to_host=math.inf, to_device=math.inf)
        self.now = 0.0
        self.place, self.done = 0, -1
        # Values by key: where they are, and for those that are leaving the last operation that reads the device's copy.
        self.alive: dict[_Key, tuple[int, int]] = {}  # on the device: bytes, option
        self.host: dict[_Key, tuple[int, int]] = {}  # on the host, or on the way there
        self.gradient = len(self.steps)
        # Bytes of what is always there, outputs, saved values, gradients, temporaries, and gradients of parameters.
        self.sums = [chain.fixed_bytes, 0, 0, chain.loss.output_gradient_bytes, 0, 0]
        self.points: list[tuple[float, int]] = []
        self.spans: list[LaneSpan] = []
        self.peak, self.peak_at, self.peak_owners = -1, 0, self._peak_owners()
        self.outgoing: deque[_Copy] = deque()
        self.incoming: deque[_Copy] = deque()
        self.copying_in = False
        self.readers: dict[_Key, int] = {}  # the last reader of a value that is leaving
        self.sent: dict[_Key, int] = {}  # the place of its copy
        self.releases: dict[int, tuple[float, int]] = {}

    def run_all(self) -> Simulation:
        self._note_point()
        violation = None
        for place, operation in enumerate(self.operations):
            self.place, value = place, operation.value
            violation = self._run_stage(operation) if value is None else self._move_value(operation, value)
            if violation is not None:
                break
            self.done = place
        if violation is None and self.gradient:
            violation = PlanViolation(len(self.operations), f"the list ends before backward {self.gradient}")
        return Simulation(
            seconds=self.now,
            peak_bytes=self.peak,
            peak_operation=self.peak_at,
            peak_owners=self.peak_owners,
            points=tuple(self.points),
            spans=tuple(self.spans),
            releases=self.releases,
            violation=violation,
        )

    def _move_value(self, operation: Operation, value: Value) -> PlanViolation | None:
        """Del, Off and Pre take no time; they stand between two computations."""
        key, place = (value, operation.stage), self.place
        if not self.linked and operation.kind is not OperationKind.DELETE:
            return PlanViolation(place, f"{operation}: there is no link to the host")
        if not 1 <= operation.stage <= len(self.steps):
            return PlanViolation(place, f"{operation}: there is no stage {operation.stage}")
        # A value that is on its way can neither be dropped nor sent again.
        coming = any(copy.key == key for copy in self.incoming)
        if operation.kind is OperationKind.DELETE:
            if key in self.readers or coming:
                return PlanViolation(place, f"{operation}: it is being copied")
            if key not in self.alive and key not in self.host:
                return PlanViolation(place, f"{operation}: it is not there")
            self.host.pop(key, None)
            if key in self.alive:
                self._free_value(key)
            self._note_point()
            return None
        if operation.kind is OperationKind.OFFLOAD:
            if key not in self.alive or key in self.readers or coming:
                return PlanViolation(place, f"{operation}: it is not on the device")
            self.host[key] = self.alive[key]
            self.readers[key], self.sent[key] = self._last_reader(key), place
            self.outgoing.append(_Copy(place, key, float(self.alive[key][0]), self.now))
        else:
            if key not in self.host or coming:
                return PlanViolation(place, f"{operation}: it is not on the host")
            self.incoming.append(_Copy(place, key, float(self.host[key][0])))
        self._start_copies()
        return None

    def _run_stage(self, operation: Operation) -> PlanViolation | None:
        # Wait until what it reads is there and its bytes are free, from one end of a copy to the next.
        while True:
            reason, passes = self._find_obstacle(operation)
            if not reason:
                break
            if not passes or not self._copies_pending():
                return PlanViolation(self.place, f"{operation}: {reason}")
            self._advance_copies(math.inf)
        stage, number = self.steps[operation.stage - 1], operation.stage
        # Charge what it makes from its start on, and its temporaries for as long as it runs.
        made, temporary, seconds = self._find_result(operation)
        if operation.kind is OperationKind.BACKWARD:
            self.sums[3] += made
            self.sums[5] += stage.parameter_gradient_bytes
        else:
            saves = operation.kind is OperationKind.FORWARD_ALL
            key = (Value.SAVED if saves else Value.OUTPUT, number)
            self.alive[key] = (made, operation.option)
            self.sums[2 if saves else 1] += made
        self.sums[4] += temporary
        start = self.now
        self._note_point()
        self._advance_copies(start + seconds)
        self.spans.append(LaneSpan("compute", self.place, start, self.now))
        self.sums[4] -= temporary
        if operation.kind is OperationKind.BACKWARD:
            # The gradient that it has read goes, and what the stage has saved.
            self.sums[3] -= stage.output_gradient_bytes
            self.readers.pop((Value.SAVED, number), None)
            self._free_value((Value.SAVED, number))
            self.gradient -= 1
        elif operation.kind is OperationKind.FORWARD_DROP:
            read = (Value.OUTPUT, number - 1)
            if read in self.alive and read not in self.readers:  # one that is leaving goes when its copy ends
                self._free_value(read)
        self.done = self.place
        self._release_value()
        self._note_point()
        self._start_copies()
        return None

    def _find_obstacle(self, operation: Operation) -> tuple[str, bool]:
        """Return what keeps an operation from starting, and whether the end of a copy may change that."""
        number = operation.stage
        if not 1 <= number <= len(self.steps):
            return f"there is no stage {number}", False
        needs = [self._input_value(number)]
        if operation.kind is OperationKind.BACKWARD:
            if self.gradient != number:
                return f"the gradient of stage {self.gradient} is there, not of {number}", False
            needs.append((Value.SAVED, number))
        elif operation.option >= len(self.steps[number - 1].options) + 1:
            return f"stage {number} has no option {operation.option}", False
        elif (Value.SAVED if operation.kind is OperationKind.FORWARD_ALL else Value.OUTPUT, number) in self.alive:
            return "what it makes is there already", False
        for key in needs:
            if key is not None and not self._is_ready(key):
                name = _name_of(key)
                return f"{name} is not there", any(copy.key == key for copy in self.incoming)
        # Bytes are compared at the start of the operation, when all that it makes and needs is there.
        made, temporary, _ = self._find_result(operation)
        wanted = sum(self.sums) + made + temporary
        if operation.kind is OperationKind.BACKWARD:
            wanted += self.steps[number - 1].parameter_gradient_bytes
        if wanted > self.room:
            return f"it needs {wanted} bytes, the budget is {self.room}", True
        return "", False

    def _input_value(self, number: int) -> _Key | None:
        """Return what the stage reads, the saved values rather than the bare output; None for the chain's input."""
        if number == 1:
            return None
        saved, bare = (Value.SAVED, number - 1), (Value.OUTPUT, number - 1)
        if self._is_ready(bare) or (not self._is_ready(saved) and any(copy.key == bare for copy in self.incoming)):
            return bare
        return saved

    def _is_ready(self, key: _Key) -> bool:
        return key in self.alive and not any(copy.key == key for copy in self.incoming)

    def _find_result(self, operation: Operation) -> tuple[int, int, float]:
        """Return bytes made, temporary bytes and seconds of a computation."""
        stage, number = self.steps[operation.stage - 1], operation.stage
        if operation.kind is OperationKind.BACKWARD:
            option = stage.choices[self.alive[Value.SAVED, number][1]] if stage.options else stage
            gradient = self.steps[number - 2].output_gradient_bytes if number > 1 else self.chain.input_gradient_bytes
            return gradient, option.backward_temporary_bytes, option.backward_seconds
        if operation.kind is OperationKind.FORWARD_ALL:
            option = stage.choices[operation.option] if operation.option else stage
            made, temporary, seconds = option.saved_bytes, option.forward_temporary_bytes, option.forward_seconds
        else:
            made, temporary, seconds = stage.output_bytes, stage.no_grad_temporary_bytes, stage.no_grad_seconds
        return made, temporary, seconds

    def _free_value(self, key: _Key) -> None:
        size, _ = self.alive.pop(key)
        self.sums[1 if key[0] is Value.OUTPUT else 2] -= size

    def _last_reader(self, key: _Key) -> int:
        """Return the place of the last operation that may read a leaving value before it comes back."""
        last, (value, stage) = self.place, key
        # `bare`: the stage's bare output is on the device, and the next stage reads that instead of the saved value.
        bare = (
            value is Value.SAVED and (Value.OUTPUT, stage) in self.alive and (Value.OUTPUT, stage) not in self.readers
        )
        for later in range(self.place + 1, len(self.operations)):
            other = self.operations[later]
            if other.kind is OperationKind.PREFETCH and (other.value, other.stage) == key:
                break
            if value is Value.SAVED and other.value is Value.OUTPUT and other.stage == stage:
                bare = other.kind is OperationKind.PREFETCH
            own = other.kind is OperationKind.BACKWARD and other.stage == stage and value is Value.SAVED
            if other.value is None and ((other.stage == stage + 1 and not bare) or own):
                last = later
            elif value is Value.SAVED and other.kind in _BARE and other.stage == stage:
                bare = True  # who comes next reads this one
            if other.kind is OperationKind.FORWARD_DROP and other.stage == stage + 1:
                bare = False
        return last

    # Copies

    def _copies_pending(self) -> bool:
        return bool(self.outgoing) or self.copying_in

    def _start_copies(self) -> None:
        if self.copying_in or not self.incoming:
            return
        head = self.incoming[0]
        # A copy back starts when its value has left, and its bytes are free.
        arrived = not any(copy.key == head.key for copy in self.outgoing) and head.key not in self.readers
        size = self.host[head.key][0]
        if arrived and sum(self.sums) + size <= self.room:
            self.copying_in, head.start = True, self.now
            self.alive[head.key] = self.host[head.key]
            self.sums[1 if head.key[0] is Value.OUTPUT else 2] += size
            self._note_point()

    def _advance_copies(self, until: float) -> None:
        """Let copies go on until a time, or, for ever given, until the next one ends."""
        while self._copies_pending():
            # Both directions share the link: rates change with every copy that starts or ends.
            out, into = bool(self.outgoing), self.copying_in
            rate_out, rate_in = self.link.rates[2:] if out and into else self.link.rates[:2]
            end_out = self.now + self.outgoing[0].left / rate_out if out else math.inf
            end_in = self.now + self.incoming[0].left / rate_in if into else math.inf
            end = min(end_out, end_in)
            step = min(end, until) - self.now
            if out:
                self.outgoing[0].left -= step * rate_out
            if into:
                self.incoming[0].left -= step * rate_in
            if end > until:
                break
            self.now = end
            # Both may end at once, within rounding.
            if out and end_out <= end + _GONE * end:
                copy = self.outgoing.popleft()
                self.spans.append(LaneSpan("to host", copy.operation, copy.start, end))
                if self.outgoing:
                    self.outgoing[0].start = end
                self._release_value()
            if into and end_in <= end + _GONE * end:
                copy = self.incoming.popleft()
                self.spans.append(LaneSpan("to device", copy.operation, copy.start, end))
                self.copying_in = False
                del self.host[copy.key]
            self._note_point()
            self._start_copies()
            if until == math.inf:
                return
        if until < math.inf:
            self.now = until

    def _release_value(self) -> None:
        """Free values whose copy to the host has ended and whose last reader is done."""
        # The device's copy stays while it is sent, and while an operation still reads it.
        flying = {copy.key for copy in self.outgoing}
        for key, last in list(self.readers.items()):
            if key not in flying and last <= self.done:
                del self.readers[key]
                self.releases[self.sent[key]] = self.now, self.done
                self._free_value(key)

    # Records

    def _note_point(self) -> None:
        alive = sum(self.sums)
        self.points.append((self.now, alive))
        if alive > self.peak:
            self.peak, self.peak_at, self.peak_owners = alive, self.place, self._peak_owners()

    def _peak_owners(self) -> tuple[tuple[str, int], ...]:
        owners = [(name, size) for name, size in self.chain.fixed.items() if size]
        if self.chain.input_bytes:
            owners.append(("input", self.chain.input_bytes))
        owners += [(_name_of(key), size) for key, (size, _) in self.alive.items() if size]
        if self.sums[4]:
            owners.append((f"temporaries of stage {self.operations[self.place].stage}", self.sums[4]))
        if self.sums[5]:
            owners.append(("gradients of parameters", self.sums[5]))
        if self.sums[3]:
            owners.append((f"gradient at stage {self.gradient}", self.sums[3]))
        return tuple(owners)


def _name_of(key: _Key) -> str:
    return f"{'output' if key[0] is Value.OUTPUT else 'saved values'} of stage {key[1]}"

"""Rematerialisation and offloading together: what the priced programme chooses, placed in time and simulated.

At every price of a byte that leaves, the programme of `joint` says what is kept, sent to the host, and run again. The
prices that matter are those at which two plans cost the same; they are found by taking the price between two plans
that are known and asking for a better one, as for the corners of a convex hull. Because bytes are not free before
they have left, this is done for several shares of the room. A value leaves right after its last reader, and comes
back, in the order of need, as early as it fits, or a little before it is needed; where operations still need more
bytes than there are, the values whose next reader is farthest leave too (Belady's rule). The simulator decides which
is the fastest; with a plan without copies among them, offloading never loses time.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.memory.baselines import keep_all
from trainwright.memory.chain import Chain
from trainwright.memory.joint import Leaving, Priced, solve_priced
from trainwright.memory.link import Link
from trainwright.memory.operations import Kind, Operation, Value, offload, prefetch
from trainwright.memory.simulate import simulate

__all__ = ["hull", "lower_bound", "plan_offload", "with_copies"]

_SLOTS = 250
_PRICES = 24
_ROOMS = (1.0, 0.95, 0.9, 0.8, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
"""Shares of the room for which the priced programme plans: less, for what is still leaving, or more."""
_FEW, _TOGGLES, _PASSES = 3, 48, 2
_SAME = 1e-3
_LONG, _PRICES_LONG, _ROOMS_LONG = 80, 6, (1.0, 0.9, 1.2, 1.5)
"""Beyond so many stages, where each solve takes long: fewer prices, fewer rooms."""
_DEAR = 1e3
"""Seconds a byte: a price at which nothing leaves that need not."""
_HURRIES = (math.inf, 3.0, 1.5)


def plan_offload(
    chain: Chain,
    budget_bytes: int,
    link: Link,
    *,
    start: tuple[Operation, ...] | None = None,
    lowest: tuple[Operation, ...] | None = None,
) -> tuple[Operation, ...] | None:
    """Return the fastest plan found within a budget with copies over a link; None if none was found.

    `start` is a plan without copies that fits, if there is one, `lowest` one with copies that may.
    """
    search = _Search(chain, budget_bytes, link, start)
    if lowest is not None:
        search.accept(lowest)
    room = budget_bytes - chain.fixed_bytes
    whole = simulate(chain, keep_all(chain)).peak_bytes - chain.fixed_bytes
    prices = _PRICES if len(chain.steps) <= _LONG else _PRICES_LONG
    for share in _ROOMS if len(chain.steps) <= _LONG else _ROOMS_LONG:
        if share > 1 and share * room > whole:
            continue
        for priced in hull(chain, int(share * room), prices=prices):
            search.offer(priced)
    search.refine()
    return search.best


class _Search:
    """The fastest plan so far, and the choices that led to the fastest few."""

    def __init__(self, chain: Chain, budget_bytes: int, link: Link, start: tuple[Operation, ...] | None) -> None:
        self.chain, self.budget_bytes, self.link, self.best = chain, budget_bytes, link, start
        self.seconds = math.inf
        if start is not None:
            self.seconds = simulate(chain, start, budget_bytes=budget_bytes).seconds
        self.seen: set[tuple[tuple[Operation, ...], Leaving]] = set()
        self.few: list[tuple[float, int, tuple[Operation, ...], Leaving]] = []

    def offer(self, priced: Priced) -> None:
        """Try what the priced programme has chosen."""
        key = (priced.operations, priced.leaving)
        if priced.seconds >= self.seconds or key in self.seen:
            return
        self.seen.add(key)
        self.few.append((self.attempt(*key), len(self.seen), *key))
        self.few = sorted(self.few)[:_FEW]

    def attempt(self, operations: tuple[Operation, ...], leaving: Leaving) -> float:
        """Place the copies in several ways, and return the least seconds."""
        least = math.inf
        for hurry in _HURRIES:
            copied = with_copies(self.chain, operations, self.budget_bytes, leaving, link=self.link, hurry=hurry)
            if copied is None:
                break
            least = min(least, self.accept(copied))
        return least

    def accept(self, copied: tuple[Operation, ...]) -> float:
        """Return the seconds of a plan, infinite if it does not fit, and keep it if it is the fastest."""
        simulation = simulate(self.chain, copied, budget_bytes=self.budget_bytes, link=self.link)
        if not simulation.fits:
            return math.inf
        if simulation.seconds < self.seconds:
            self.best, self.seconds = copied, simulation.seconds
        return simulation.seconds

    def refine(self) -> None:
        """Let one more value leave, or one less, as long as that is faster."""
        for seconds, _, operations, leaving in self.few:
            gaps = sorted(_profile(self.chain, operations)[1], key=lambda each: -each.size)[:_TOGGLES]
            chosen, least = leaving, seconds
            for _ in range(_PASSES):
                before = least
                for gap in gaps:
                    other = chosen ^ {(gap.value, gap.stage, gap.after)}
                    found = self.attempt(operations, other)
                    if found < least * (1 - 1e-9):
                        chosen, least = other, found
                if least >= before:
                    break


def lower_bound(chain: Chain, budget_bytes: int, link: Link) -> float:
    """Return what no plan is faster than whose values stay, or wait on the host, until their backward.

    Of Lagrange: at every price, D / (1 + price rate) of `joint` with sizes rounded down, a link of `rate` both ways
    being as fast as its slower direction needs; the best of the prices, by golden sections.
    """
    room, rate, slots = budget_bytes - chain.fixed_bytes, min(link.to_host, link.to_device), _slots(chain)
    if math.isinf(rate):
        return 0.0

    def bound(exponent: float) -> float:
        price = math.exp(exponent) / rate
        found = solve_priced(chain, room, price, slots=slots, down=True)
        return 0.0 if found is None else found.value / (1 + price * rate)

    low, high = math.log(1e-3), math.log(10.0)
    best = 0.0
    for _ in range(14):
        left, right = low + 0.382 * (high - low), low + 0.618 * (high - low)
        one, other = bound(left), bound(right)
        best = max(best, one, other)
        low, high = (low, right) if one > other else (left, high)
    return best


def hull(chain: Chain, room: int, *, prices: int = _PRICES) -> Iterator[Priced]:
    """Yield the plans that are best at some price, from endless links on; at most so many prices are asked for."""
    slots = _slots(chain)
    most, least = solve_priced(chain, room, 0.0, slots=slots), solve_priced(chain, room, _DEAR, slots=slots)
    if most is None or least is None:
        return
    yield from (most, least)
    pairs = [(most.seconds - least.seconds, 0, most, least)]  # the widest first
    for count in range(1, prices):
        if not pairs:
            return
        _, _, more, less = heapq.heappop(pairs)
        if more.bytes <= less.bytes or less.seconds - more.seconds <= _SAME * less.seconds:
            continue
        price = (less.seconds - more.seconds) / (more.bytes - less.bytes)
        found = solve_priced(chain, room, price, slots=slots)
        if found is None or found.value >= (more.seconds + price * more.bytes) * (1 - 1e-6):
            continue
        yield found
        for one, other in ((more, found), (found, less)):
            heapq.heappush(pairs, (one.seconds - other.seconds, 2 * count + (one is found), one, other))


def _slots(chain: Chain) -> int:
    return _SLOTS if len(chain.steps) <= _LONG else max(60, _SLOTS * _LONG // len(chain.steps))


@dataclass(slots=True)
class _Gap:
    """Between two readers, at places `after` and `before` of the list, a value only waits."""

    value: Value
    stage: int
    size: int
    after: int
    before: int


def with_copies(
    chain: Chain, operations: tuple[Operation, ...], budget_bytes: int, leaving: Leaving = frozenset(), *,
    link: Link | None = None, hurry: float = math.inf,
) -> tuple[Operation, ...] | None:  # fmt: skip
    """Return the operations with the copies that let them run within a budget, or None if none can.

    What is `leaving` does so in any case. A value comes back as early as it fits, but, given a link, not before
    `hurry` times the seconds of its copy and of those that wait for it are left.
    """
    needs, gaps = _profile(chain, operations)
    chosen = [gap for gap in gaps if (gap.value, gap.stage, gap.after) in leaving]
    gaps = [gap for gap in gaps if (gap.value, gap.stage, gap.after) not in leaving]
    for gap in chosen:
        for each in range(gap.after + 1, gap.before):
            needs[each] -= gap.size
    for place in range(len(operations)):
        while needs[place] > budget_bytes:
            waiting = [gap for gap in gaps if gap.after < place < gap.before]
            if not waiting:
                return None
            gap = max(waiting, key=lambda each: (each.before, each.size))
            gaps.remove(gap)
            chosen.append(gap)
            for each in range(gap.after + 1, gap.before):
                needs[each] -= gap.size
    seconds = [_seconds(chain, operation) for operation in operations]
    leaving_at: dict[int, list[Operation]] = {}
    coming: dict[int, list[Operation]] = {}
    chosen.sort(key=lambda each: each.before)
    ends = [0.0] * (len(operations) + 1)
    for place in range(len(operations) - 1, -1, -1):
        ends[place] = ends[place + 1] + seconds[place]
    due = 0.0
    latest = [0.0] * len(chosen)
    for number in range(len(chosen) - 1, -1, -1):
        gap = chosen[number]
        copy = 0.0 if link is None else gap.size / link.to_device
        due = max(due, ends[gap.before]) + copy
        latest[number] = ends[gap.before] + hurry * (due - ends[gap.before]) if hurry < math.inf else math.inf
    last = 0
    for number, gap in enumerate(chosen):
        leaving_at.setdefault(gap.after + 1, []).append(offload(gap.value, gap.stage))
        begin = gap.before
        while begin > gap.after + 2 and needs[begin - 1] + gap.size <= budget_bytes and ends[begin] < latest[number]:
            begin -= 1
        begin = last = max(begin, min(last, gap.before))
        for each in range(begin, gap.before):
            needs[each] += gap.size
        coming.setdefault(begin, []).append(prefetch(gap.value, gap.stage))
    listed: list[Operation] = []
    for place, operation in enumerate(operations):
        listed += [*leaving_at.get(place, []), *coming.get(place, []), operation]
    return tuple(listed)


def _seconds(chain: Chain, operation: Operation) -> float:
    step = chain.steps[operation.stage - 1]
    if operation.value is not None:
        return 0.0
    if operation.kind is Kind.BACKWARD:
        return step.backward_seconds
    return step.choices[operation.option].forward_seconds if operation.kind is Kind.FORWARD_ALL else step.plain_seconds


def _profile(chain: Chain, operations: tuple[Operation, ...]) -> tuple[list[int], list[_Gap]]:
    """Return the bytes that each operation needs, and where values only wait."""
    steps = chain.steps
    needs: list[int] = []
    gaps: list[_Gap] = []
    alive: dict[tuple[Value, int], tuple[int, int, int]] = {}  # bytes, option, last reader
    gradient, grown = chain.loss.delta_bytes, 0
    for place, operation in enumerate(operations):
        stage = operation.stage
        if operation.value is not None:
            alive.pop((operation.value, stage))
            needs.append(0)
            continue
        step = steps[stage - 1]
        reads = [(Value.OUTPUT, stage - 1) if (Value.OUTPUT, stage - 1) in alive else (Value.SAVED, stage - 1)]
        if operation.kind is Kind.BACKWARD:
            reads.append((Value.SAVED, stage))
        for key in reads:
            if key in alive:
                size, option, before = alive[key]
                if place > before + 1 and size:
                    gaps.append(_Gap(key[0], key[1], size, before, place))
                alive[key] = (size, option, place)
        held = chain.fixed_bytes + gradient + grown + sum(size for size, _, _ in alive.values())
        if operation.kind is Kind.BACKWARD:
            way = step.choices[alive.pop((Value.SAVED, stage))[1]]
            made = steps[stage - 2].delta_bytes if stage > 1 else chain.input_gradient_bytes
            grown += step.parameter_gradient_bytes
            needs.append(held + made + step.parameter_gradient_bytes + way.backward_temporary_bytes)
            gradient = made
        elif operation.kind is Kind.FORWARD_ALL:
            way = step.choices[operation.option]
            needs.append(held + way.saved_bytes + way.forward_temporary_bytes)
            alive[Value.SAVED, stage] = (way.saved_bytes, operation.option, place)
        else:
            needs.append(held + step.output_bytes + step.plain_temporary_bytes)
            alive[Value.OUTPUT, stage] = (step.output_bytes, 0, place)
            if operation.kind is Kind.FORWARD_DROP:
                alive.pop((Value.OUTPUT, stage - 1), None)
    return needs, gaps

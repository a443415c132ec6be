"""How far any plan with copies can be from the best: an integer programme that every such plan is a solution of.

Events are the first forwards of stages 1..n and then their backwards, n..1. Before the operation of an event lies its
slot, in which stages run again and the device may wait. Nothing else takes the device's time, so that a step lasts
the operations and the slots. Bytes move in both. Of every value k, a bare output or what an option saves, at event e

    C, E   binary: its bytes are charged when the operation starts, and just before it ends
    R      binary: it is made in the slot; of the event's own stage, by the operation
    c, x   in [0, 1]: how much of it is on the device at both moments, its copy back having gone so far
    u, v   in [0, 1]: how much of it goes to the host and comes back, in the slot and in the operation

    C[e] <= E[e-1] + R[e] + begun(slot);  E[e] <= C[e] + begun(operation)   charged as before, or made, or coming
    begun, v <= sum of u until then               what comes back has left, whole
    u(slot) <= E[e-1] + R[e];  u(operation) <= C[e]                         what leaves is on the device
    c[e] <= C[e], x[e-1] + R[e] + v(slot);  x[e] <= E[e], c[e] + v(operation)
    sum c >= 1, sum E >= 1                        of the kinds of what the operation reads
    bytes of u, of v <= rate * seconds            of each slot and operation
    bytes charged, made and used <= room          when an operation starts, and just before it ends
    bytes held over a slot, and what a run in it reads, makes and uses <= room

A run in a slot ends when what it reads is there, and its own seconds have passed: S[k] >= seconds + (bytes that come in
this slot) / rate, and S[k] >= S[j] + seconds if it reads what run j of the slot makes; no S is beyond the slot's end.

Every list that the simulator accepts gives such numbers: what is charged at a moment has been charged since the last
one or begun since, a copy back begins when the one to the host has ended, and a slot lasts at least as long as what
happens in it one after the other. So the optimum is a lower bound on all lists, in whatever order they run stages, and
so is HiGHS's bound on it. It is a relaxation: of what is made and gone within a slot only single runs are counted,
copies on the host are never lost, queues have no order, and several links' joint bandwidth is that of each alone.

Long chains have values that hardly count. Sizes below `small` bytes are taken for nothing, which is a relaxation too;
neighbours of which nothing is left are one event, whose slot holds the operations of all but the last.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from benchmarks.memory.integer_program import Integer, Terms

from trainwright.model.chain import Chain, Stage
from trainwright.plan.memory.operations import Link

__all__ = ["Value", "bound_by_events", "small_share", "values_of"]

_SLACK = 1e-6
"""Of HiGHS: by so much of the time a bound may be too high."""
_GAP = 1e-4
_PAIRS = 700
"""Of an event and a value: so many are few."""
_SMALL = (0.0, 0.01, 0.02, 0.035, 0.05)
"""Shares of the room that may be called small."""


def small_share(chain: Chain, budget_bytes: int) -> float | None:
    """Return the least share of the room that makes few events where it is taken for nothing; None if none does."""
    room = budget_bytes - chain.fixed_bytes
    return next((share for share in _SMALL if _pairs(_merged(chain, share * room)) <= _PAIRS), None)


def bound_by_events(
    chain: Chain, budget_bytes: int, link: Link, *, small: float, known_seconds: float, limit_seconds: float
) -> tuple[float, bool]:
    """Return a lower bound on the seconds of all plans, and whether the programme was solved.

    Values of at most a share `small` of the room are taken for nothing.
    """
    room = budget_bytes - chain.fixed_bytes
    steps = _merged(chain, small * room)
    programme = _Programme(steps, chain.input_gradient_bytes, room, link, known_seconds)
    solved = programme.integer.solve(limit_seconds, gap=_GAP, known=known_seconds / programme.unit - programme.constant)
    lower = (solved.bound * (1 - _SLACK) + programme.constant) * programme.unit
    return min(known_seconds, max(0.0, lower)), solved.finished


@dataclass(frozen=True, slots=True)
class _Step:
    """A stage, or neighbours that are one event; seconds of all operations but the last, forward and backward."""

    stage: Stage
    heads: tuple[float, float] = (0.0, 0.0)
    several: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """What may be kept of a stage: its bare output (option -1) or what an option saves, and what making it takes."""

    stage: int
    option: int
    size: float
    seconds: float
    temporary: float


def _merged(chain: Chain, small: float) -> list[_Step]:
    """Return the stages, sizes of at most `small` bytes taken for nothing."""
    steps: list[_Step] = []
    for stage in chain.steps:
        sizes = (stage.output_bytes, stage.output_gradient_bytes, stage.parameter_gradient_bytes)
        if max(*sizes, *(each.saved_bytes for each in stage.choices)) > small:
            steps.append(_Step(stage))
            continue
        forward = min(stage.no_grad_seconds, *(each.forward_seconds for each in stage.choices))
        back = min(each.backward_seconds for each in stage.choices)
        needs = [each.forward_temporary_bytes for each in stage.choices]
        empty = Stage(
            name=stage.name,
            forward_seconds=forward,
            backward_seconds=back,
            output_bytes=0,
            saved_bytes=0,
            forward_temporary_bytes=min(stage.no_grad_temporary_bytes, *needs),
            backward_temporary_bytes=min(each.backward_temporary_bytes for each in stage.choices),
        )
        last = steps[-1] if steps else None
        if last is None or last.stage.saved_bytes or last.stage.output_gradient_bytes or last.stage.options:
            steps.append(_Step(empty))
            continue
        ahead = last.heads[0] + last.stage.forward_seconds, last.heads[1] + back
        least = min(0, last.stage.backward_temporary_bytes)
        both = replace(empty, backward_seconds=last.stage.backward_seconds, forward_temporary_bytes=0)
        steps[-1] = _Step(replace(both, backward_temporary_bytes=least), ahead, several=True)
    return steps


def _pairs(steps: list[_Step]) -> int:
    return sum((2 * (len(steps) - i) + 1) * len(values_of(i + 1, each.stage)) for i, each in enumerate(steps))


def values_of(number: int, stage: Stage) -> list[Value]:
    """Return the values of a stage but a bare output that one of the saved can always stand for."""
    saved = [
        Value(number, o, each.saved_bytes, each.forward_seconds, each.forward_temporary_bytes)
        for o, each in enumerate(stage.choices)
    ]
    bare = Value(number, -1, stage.output_bytes, stage.no_grad_seconds, stage.no_grad_temporary_bytes)
    better = any(
        each.size <= bare.size and each.seconds <= bare.seconds and each.temporary <= bare.temporary for each in saved
    )
    return saved if better else [bare, *saved]


@dataclass(frozen=True, slots=True)
class _Event:
    """Variables of an event, by value; pairs are those of slot and operation."""

    stage: int
    wait: int
    head: float
    """Seconds of the slot that are not waiting."""
    lasts: Terms
    """Seconds of the operation."""
    spare: float
    live: list[Value]
    run: Mapping[Value, int]
    start: Mapping[Value, int]
    stop: Mapping[Value, int]
    ready: Mapping[Value, int]
    left: Mapping[Value, int]
    out: Mapping[Value, tuple[int, int]]
    begun: Mapping[Value, tuple[int, int]]
    comes: Mapping[Value, tuple[int, int]]


class _Programme:
    """Sizes are in units of the room, times in those of a step without recomputation and waiting."""

    def __init__(self, steps: list[_Step], input_gradient: int, room: int, link: Link, known: float) -> None:
        self.steps, self.n, self.room = steps, len(steps), float(room)
        together = link.rates[2:]
        alone = link.rates[:2]
        least = [
            min(s.stage.no_grad_seconds, *(o.forward_seconds for o in s.stage.choices))
            + min(o.backward_seconds for o in s.stage.choices)
            for s in steps
        ]
        heads = math.fsum(sum(s.heads) for s in steps)
        self.unit = math.fsum(least) + heads or 1.0
        self.rates = [max(pair) * self.unit / self.room for pair in zip(alone, together, strict=True)]
        self.constant, self.spare = heads / self.unit, max(0.0, known / self.unit * (1 + _SLACK) - 1.0)
        self.delta = [input_gradient / self.room, *(s.stage.output_gradient_bytes / self.room for s in steps)]
        self.values = {i: list(self._scaled(i)) for i in range(1, self.n + 1)}
        self.values[self.n] = [k for k in self.values[self.n] if k.option >= 0]
        self.sent: dict[Value, Terms] = {}
        """What has left for the host before an event."""
        self.end: Mapping[Value, int] = {}
        self.there: Mapping[Value, int] = {}
        """E and x of the event before."""
        self.integer = Integer()
        for number in (*range(1, self.n + 1), *range(-self.n, 0)):
            self._event(abs(number), back=number < 0)

    def _scaled(self, i: int) -> Iterator[Value]:
        for k in values_of(i, self.steps[i - 1].stage):
            yield replace(k, size=k.size / self.room, seconds=k.seconds / self.unit, temporary=k.temporary / self.room)

    def _event(self, d: int, *, back: bool) -> None:
        """Add the first forward or the backward of a stage."""
        step = self.steps[d - 1]
        live = [k for i in range(1, d + 1) for k in self.values[i] if i < d or (back and k.option >= 0)]
        own = [] if back else self.values[d]
        fraction = {k: [self._share() for _ in range(4)] for k in live if k.size}
        start = {k: self.integer.variable() for k in live}
        stop = {k: self.integer.variable() for k in live}
        made = {k: self.integer.variable(k.seconds) for k in own}
        chosen = {
            o: self.integer.variable(each.backward_seconds / self.unit, whole=len(step.stage.choices) > 1)
            for o, each in enumerate(step.stage.choices)
            if back
        }
        lasts = [(made[k], k.seconds) for k in own]
        lasts += [(chosen[o], step.stage.choices[o].backward_seconds / self.unit) for o in chosen]
        head = step.heads[back] / self.unit
        event = _Event(
            stage=d,
            wait=self.integer.variable(1.0, whole=False, most=self.spare),
            head=head,
            lasts=lasts,
            spare=self.spare + head,
            live=live,
            run={k: self.integer.variable() for k in live},
            start=start | made,
            stop=stop | made,
            ready={k: self._share() for k in live},
            left={k: self._share() for k in live} | made,
            out={k: (each[0], each[1]) for k, each in fraction.items()},
            begun={k: (self._share(), self._share()) for k in fraction},
            comes={k: (each[2], each[3]) for k, each in fraction.items()},
        )
        self.integer.row([(column, 1.0) for column in (made or chosen).values()], 1.0, 1.0)
        for k in live:
            if back and k.stage == d:
                self._below([(chosen[k.option], 1.0)], [(event.ready[k], 1.0)])
                self._below([(chosen[k.option], 1.0)], [(stop[k], 1.0)])
        if d > 1 and (back or not step.several):
            for moment in (event.ready, event.stop):
                self.integer.row([(moment[k], 1.0) for k in self.values[d - 1]], low=1.0)
        arrived = self.delta[d if back else self.n] + self._grown(d if back else self.n)
        self._bytes(event, chosen, self.room_of(d, arrived) if back else 1.0 - arrived)
        self._sources_of(event)
        self._runs(event, 1.0 - arrived)
        self._link(event)
        self.end = {k: column for k, column in event.stop.items() if not (back and k.stage == d)}
        self.there = {k: column for k, column in event.left.items() if not (back and k.stage == d)}

    def _share(self) -> int:
        return self.integer.variable(whole=False)

    def _below(self, less: Terms, more: Iterable[tuple[int, float]]) -> None:
        self.integer.row([*less, *((column, -factor) for column, factor in more)], high=0.0)

    def _grown(self, d: int) -> float:
        """Return the gradients of parameters that are there when the gradient of d has arrived."""
        return sum(each.stage.parameter_gradient_bytes for each in self.steps[d:]) / self.room

    def room_of(self, d: int, arrived: float) -> float:
        """Return the room of a backward beside its gradients."""
        return 1.0 - arrived - self.delta[d - 1] - self.steps[d - 1].stage.parameter_gradient_bytes / self.room

    def _bytes(self, event: _Event, chosen: Mapping[int, int], room: float) -> None:
        """Limit what is charged at both moments of an operation."""
        choices = self.steps[event.stage - 1].stage.choices
        temporary = [(column, choices[o].backward_temporary_bytes / self.room) for o, column in chosen.items()]
        temporary += [
            (column, k.temporary) for k, column in event.start.items() if k.stage == event.stage and not chosen
        ]
        for moment in (event.start, event.stop):
            self.integer.row([*((column, k.size) for k, column in moment.items()), *temporary], high=room)

    def _sources_of(self, event: _Event) -> None:
        """Say where each value comes from."""
        for k in event.live:
            run = (event.run[k], 1.0)
            before = [(self.end[k], 1.0), run] if k in self.end else [run]
            was = [(self.there[k], 1.0), run] if k in self.there else [run]
            begun: list[Terms] = [[], []]
            comes: list[Terms] = [[], []]
            if k.size:
                past = self.sent.get(k, [])
                for turn in (0, 1):
                    past = [*past, (event.out[k][turn], 1.0)]
                    begun[turn] = [(event.begun[k][turn], 1.0)]
                    comes[turn] = [(event.comes[k][turn], 1.0)]
                    self._below(begun[turn], past)
                    self._below(comes[turn], past)
                self.sent[k] = past
                self._below([(event.out[k][0], 1.0)], before)
                self._below([(event.out[k][1], 1.0)], [(event.start[k], 1.0)])
            self._below([(event.start[k], 1.0)], [*before, *begun[0]])
            self._below([(event.stop[k], 1.0)], [(event.start[k], 1.0), *begun[1]])
            self._below([(event.ready[k], 1.0)], [(event.start[k], 1.0)])
            self._below([(event.ready[k], 1.0)], [*was, *comes[0]])
            self._below([(event.left[k], 1.0)], [(event.stop[k], 1.0)])
            self._below([(event.left[k], 1.0)], [(event.ready[k], 1.0), *comes[1]])

    def _runs(self, event: _Event, room: float) -> None:
        """Limit the runs of a slot: their seconds, what they wait for, and the bytes held meanwhile."""
        held = {k: self._share() for k in event.live if k in self.end and k.size}
        for k, column in held.items():
            self._below([(event.start[k], 1.0)], [(column, 1.0), (event.run[k], 1.0), (event.begun[k][0], 1.0)])
        self._below([(event.run[k], k.seconds) for k in event.live], [(event.wait, 1.0)])
        done = {k: self.integer.variable(whole=False, most=event.spare) for k in event.live}
        for k in event.live:
            run, sources = event.run[k], self.values.get(k.stage - 1, [])
            least = min((each.size for each in sources), default=0.0)
            near = [held[each] for each in (*sources, *self.values[k.stage]) if each in held]
            others = [(column, each.size) for each, column in held.items() if column not in near]
            self.integer.row([*others, (run, least + k.size + k.temporary)], high=room)
            self.integer.row([(done[k], 1.0), (event.wait, -1.0)], high=event.head)
            found: Terms = []
            comes: Terms = []
            for each in sources:
                columns = (self.there.get(each), event.comes[each][0] if each.size else None, event.run[each])
                for column in (column for column in columns if column is not None):
                    part = self._share()
                    found.append((part, 1.0))
                    self._below([(part, 1.0)], [(column, 1.0)])
                    if column == event.run[each]:
                        after = [(done[each], 1.0), (run, k.seconds), (part, event.spare), (done[k], -1.0)]
                        self.integer.row(after, high=event.spare)
                    elif each.size and column == event.comes[each][0] and math.isfinite(self.rates[1]):
                        comes.append((part, each.size / self.rates[1]))
            if sources:
                self._below([(run, 1.0)], found)
            self._below([(run, k.seconds), *comes], [(done[k], 1.0)])

    def _link(self, event: _Event) -> None:
        """Limit the bytes that move each way in the slot and in the operation."""
        for rate, moved in zip(self.rates, (event.out, event.comes), strict=True):
            if math.isfinite(rate):
                in_slot = [(columns[0], k.size / rate) for k, columns in moved.items()]
                self.integer.row([*in_slot, (event.wait, -1.0)], high=event.head)
                self._below([(columns[1], k.size / rate) for k, columns in moved.items()], event.lasts)

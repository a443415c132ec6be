"""How far any plan with copies of a long chain can be from the best: an integer programme of a few moments of its step.

A moment is the start of a backward; the first is the loss's. Moments part the step into windows, and of what happens
within one only that counts which happens at all. Of every value k, a bare output or what an option saves, at moment m
and in the window w after it

    C  binary: its bytes are charged when the backward starts      x  in [0, 1]: how much of it is on the device then
    R  binary: it is made in the window                            u, v  in [0, 1]: how much of it leaves, comes back

    C[m+1] <= C[m] + R[w] + begun[w];  begun[w], v[w] <= sum of u until then      what comes back has left, whole
    x[m+1] <= C[m+1], x[m] + R[w] + v[w];  u[w] <= C[m] + R[w]
    R[w] <= sum (x[m] + R[w] + v[w]) of the kinds of what it reads, and so for every backward of the window
    seconds of a window = runs + backwards + rest;  bytes of u, of v <= rate * seconds
    bytes charged, of gradients and temporaries <= room                           at each moment
    bytes charged at both ends of a window without being made or fetched in it, and what a run in it reads, makes and
    uses beside the least gradient of the window <= room

Every list that the simulator accepts gives such numbers, the rest being whatever else takes time, so that the optimum,
and HiGHS's bound on it, is one on all lists. With one moment it asks which values a step may still have when its first
backward starts, kept or sent on a link that has had only the forward for it; with every backward a moment it would be
nearly that of `joint_milp`. Few moments are solved in seconds for chains on which that does not end.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from benchmarks.memory.event_bound import Value, values_of
from benchmarks.memory.integer_program import Integer, Terms

from trainwright.model.chain import Chain
from trainwright.plan.memory.operations import Link

__all__ = ["bound_by_moments"]

_COUNTS = (1, 2, 3, 5, 8)
_GAP = 1e-4
_SLACK = 1e-6
"""Of HiGHS: by so much of the time a bound may be too high."""


def bound_by_moments(
    chain: Chain,
    budget_bytes: int,
    link: Link,
    *,
    known_seconds: float,
    limit_seconds: float,
    most_moments: int = _COUNTS[-1],
) -> float:
    """Return a lower bound on the seconds of all plans within a budget, given those of one.

    Programmes of more and more moments are solved, until one does not end in what is left of the time limit.
    """
    until, lower = time.monotonic() + limit_seconds, 0.0
    for count in (each for each in _COUNTS if each <= most_moments):
        moments = _moments(chain, count)
        programme = _Programme(chain, moments, budget_bytes - chain.fixed_bytes, link, known_seconds)
        left = until - time.monotonic()
        if left <= 0 or lower >= known_seconds * (1 - _GAP):
            break
        solved = programme.integer.solve(left, gap=_GAP, known=known_seconds / programme.unit)
        lower = max(lower, solved.bound * programme.unit * (1 - _SLACK))
        if not solved.finished or len(moments) < count:
            break
    return min(lower, known_seconds)


def _moments(chain: Chain, count: int) -> list[int]:
    """Return stages whose backwards start at the moments, last first, as many saved bytes between one and the next."""
    total, before, found = sum(each.saved_bytes for each in chain.steps), 0, {len(chain.steps)}
    for number, each in enumerate(chain.stages, start=1):
        if before * count // max(1, total) < (before + each.saved_bytes) * count // max(1, total) < count:
            found.add(number)
        before += each.saved_bytes
    return sorted(found, reverse=True)


class _Programme:
    """Sizes are in units of the room, times in those of a step without recomputation and waiting."""

    def __init__(self, chain: Chain, moments: Sequence[int], room: int, link: Link, known: float) -> None:
        self.steps, self.room, self.integer = chain.steps, float(room), Integer()
        self.unit = chain.plain_seconds or 1.0
        together, alone = link.rates[2:], link.rates[:2]
        self.rates = [max(pair) * self.unit / room for pair in zip(alone, together, strict=True)]
        self.most = known / self.unit * (1 + _SLACK)
        self.delta = [
            each / room for each in (chain.input_gradient_bytes, *(s.output_gradient_bytes for s in self.steps))
        ]
        self.grown = [0.0]
        """Of gradients of parameters, by how many backwards have ended."""
        for step in reversed(self.steps):
            self.grown.append(self.grown[-1] + step.parameter_gradient_bytes / room)
        self.values = {
            i: [
                replace(k, size=k.size / room, seconds=k.seconds / self.unit, temporary=k.temporary / room)
                for k in values_of(i, each)
                if i < len(self.steps) or k.option >= 0
            ]
            for i, each in enumerate(self.steps, start=1)
        }
        self.charged: Mapping[Value, int] = {}
        self.there: Mapping[Value, int] = {}
        """C and x of the last moment."""
        self.sent: dict[Value, Terms] = {}
        for start, end in zip((0, *moments), (*moments, 0), strict=True):
            self._window(start, end)

    def _window(self, start: int, end: int) -> None:
        """Add what happens from the backward of one stage, 0 for the start of the step, to that of another, and it."""
        n, variable = len(self.steps), self.integer.variable
        first = start == 0
        top = start or n
        live = [k for i in range(1, top + 1) for k in self.values[i] if i < top or k.option >= 0]
        runs = {k: variable(k.seconds) for k in live}
        leaves = {k: self._share() for k in live if k.size}
        comes = {} if first else {k: self._share() for k in live if k.size}
        seconds = [(runs[k], k.seconds) for k in live]
        seconds.append((variable(1.0, whole=False, most=self.most), 1.0))
        available = {k: [(each[k], 1.0) for each in (self.there, runs, comes) if k in each] for k in live}

        def reads(what: Terms, stage: int) -> None:
            if stage:
                self._below(what, [term for k in self.values[stage] for term in available[k]])

        for k in live:
            reads([(runs[k], 1.0)], k.stage - 1)
        if first:
            for i in range(1, n + 1):
                self.integer.row([(runs[k], 1.0) for k in self.values[i]], low=1.0)
        for d in range(start, end, -1):
            choices = self.steps[d - 1].choices
            chosen = [variable(each.backward_seconds / self.unit, whole=len(choices) > 1) for each in choices]
            seconds += [
                (column, each.backward_seconds / self.unit) for column, each in zip(chosen, choices, strict=True)
            ]
            self.integer.row([(column, 1.0) for column in chosen], 1.0, 1.0)
            for k in self.values[d]:
                if k.option >= 0:
                    self._below([(chosen[k.option], 1.0)], available[k])
            reads([(column, 1.0) for column in chosen], d - 1)
        for k, column in leaves.items():
            self._below([(column, 1.0)], [(each[k], 1.0) for each in (self.charged, runs) if k in each])
            self.sent[k] = [*self.sent.get(k, []), (column, 1.0)]
        for k, column in comes.items():
            self._below([(column, 1.0)], self.sent[k])
        for rate, moved in zip(self.rates, (leaves, comes), strict=True):
            if math.isfinite(rate):
                self._below([(column, k.size / rate) for k, column in moved.items()], seconds)
        if end:
            self._moment(start, end, runs, available)

    def _moment(self, start: int, end: int, runs: Mapping[Value, int], available: Mapping[Value, Terms]) -> None:
        """Add the start of the backward of a stage, at the end of a window."""
        live = [k for k in runs if k.stage < end or (k.stage == end and k.option >= 0)]
        charged = {k: self.integer.variable() for k in live}
        there = {k: self._share() for k in live}
        begun = {k: self._share() for k in live if start and k.size}
        for k in live:
            came = [(begun[k], 1.0)] if k in begun else []
            self._below(came, self.sent.get(k, []))
            before = [(each[k], 1.0) for each in (self.charged, runs) if k in each]
            self._below([(charged[k], 1.0)], [*before, *came])
            self._below([(there[k], 1.0)], [(charged[k], 1.0)])
            self._below([(there[k], 1.0)], available[k])
        for stage in (end, end - 1):
            if stage:
                self.integer.row([(there[k], 1.0) for k in self.values[stage] if k in there], low=1.0)
        step = self.steps[end - 1]
        temporary = [
            (charged[k], step.choices[k.option].backward_temporary_bytes / self.room)
            for k in self.values[end]
            if k.option >= 0
        ]
        new = self.delta[end - 1] + step.parameter_gradient_bytes / self.room
        self.integer.row([*((charged[k], k.size) for k in live), *temporary], high=1.0 - self._arrived(end) - new)
        if start:
            held = {k: self._share() for k in live if k.size}
            for k, column in held.items():
                both = [(self.charged[k], 1.0), (charged[k], 1.0)]
                self.integer.row([*both, (column, -1.0), (runs[k], -1.0), (begun[k], -1.0)], high=1.0)
            least = min(self._arrived(d) for d in range(end, start))
            for k, run in runs.items():
                sources = self.values.get(k.stage - 1, [])
                own = min((each.size for each in sources), default=0.0) + k.size + k.temporary
                others = [(column, each.size) for each, column in held.items() if not 0 <= k.stage - each.stage <= 1]
                self.integer.row([*others, (run, own)], high=1.0 - least)
        self.charged, self.there = charged, there

    def _arrived(self, d: int) -> float:
        """Return the bytes of gradients when that of stage d has arrived."""
        return self.delta[d] + self.grown[len(self.steps) - d]

    def _share(self) -> int:
        return self.integer.variable(whole=False)

    def _below(self, less: Terms, more: Iterable[tuple[int, float]]) -> None:
        if less:
            self.integer.row([*less, *((column, -factor) for column, factor in more)], high=0.0)

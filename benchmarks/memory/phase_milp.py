"""The best plan of a chain by an integer programme, and a lower bound where its time ends: certificates of mid chains.

Between the arrivals of two gradients lies a phase d = n..1, in which stages i <= d may run forward once each, in their
order, before the backward of d: the frontier-advancing stages of Checkmate (Jain et al., MLSys 2020, arXiv
1910.02653), with the chain's two kinds of forward and the peaks that the simulator counts. Binary are

    A[d,i]    the bare output of i is alive when phase d begins     P[d,i]    i runs without gradients in phase d
    V[d,i,o]  what option o saves of i is alive when d begins       G[d,i,o]  i runs with gradients by option o

and H[d,i,.] in [0, 1] says whether the value of i is still alive while i+1 may read it in phase d. Then

    A + sum V + P + sum G <= 1                      a value that is there is not made, and only one kind is of use
    P[d,i] + sum G[d,i,.] <= sum H[d,i-1,.]         a forward reads what is before it
    H <= A + P, or V + G                            of the same kind
    A[d-1,i] <= H[d,i], V[d-1,i,o] <= H[d,i,o]      what the next phase finds was alive at this one's end
    sum V[d,d,.] + G[d,d,.] = 1 = sum H[d,d-1,.]    what the backward of d reads

with one row of bytes for each place where a forward may stand and one for each backward. Values that are left of a
phase's place are those that the next phase finds, right of it those that this one has found. Where a forward without
gradients is not dearer than one with, saved values stay until their backward: V[d-1] = V[d] + G[d].

Plans outside of the phases' order exist (a stage run twice between two backwards); on random chains none was better
than the best within it, which the tests and the benchmark compare with the exact search.
"""

import math
from collections.abc import Iterable

import numpy as np
from benchmarks.memory.integer_program import Integer, Terms
from numpy.typing import NDArray

from trainwright.model.chain import Chain
from trainwright.plan.memory.exact import SearchResult, list_operations
from trainwright.plan.memory.simulate import simulate

__all__ = ["solve_milp"]

_SLACK = 1e-6
"""Of HiGHS: by so much of the room, or of the time, a solution may be beyond a limit."""


def solve_milp(
    chain: Chain, budget_bytes: int, *, better_than_seconds: float = math.inf, limit_seconds: float = 60.0
) -> SearchResult:
    """Search for the fastest plan of the phases' order that is not slower than a known one, by HiGHS.

    Where the time ends first, `lower_seconds` is the bound reached so far and `finished` is false. O(L^2) binaries,
    O(L^3) coefficients: for chains of about 30 stages.
    """
    room = budget_bytes - chain.fixed_bytes
    if room <= 0:
        return SearchResult(operations=None, seconds=math.inf, lower_seconds=0.0, finished=True)
    return _Programme(chain, room).solve(better_than_seconds, limit_seconds)


class _Programme:
    """Variables and rows, sizes in units of the room, times in those of a step without recomputation."""

    def __init__(self, chain: Chain, room: int) -> None:
        self.chain, self.steps, self.n = chain, (None, *chain.steps), len(chain.steps)
        self.room = room
        self.unit = (
            math.fsum(min(o.forward_seconds + o.backward_seconds for o in s.choices) for s in chain.steps) or 1.0
        )
        self.integer = Integer()
        self.bare: dict[tuple[int, int], int] = {}  # A
        self.plain: dict[tuple[int, int], int] = {}  # P
        self.found: dict[tuple[int, int, int], int] = {}  # V
        self.made: dict[tuple[int, int, int], int] = {}  # G
        self.read: dict[tuple[int, int, int], int] = {}  # H; option -1 is the bare output
        self._variables()
        for d in range(1, self.n + 1):
            self._logic(d)
            self._bytes(d)

    # Variables

    def _variable(self, seconds: float = 0.0, *, whole: bool = True) -> int:
        return self.integer.variable(seconds / self.unit, whole=whole)

    def _variables(self) -> None:
        for d in range(1, self.n + 1):
            for i in range(1, d + 1):
                step = self.chain.steps[i - 1]
                if i < d:
                    if d < self.n:
                        self.bare[d, i] = self._variable()
                    self.plain[d, i] = self._variable(step.no_grad_seconds)
                    self.read[d, i, -1] = self._variable(whole=False)
                for o, option in enumerate(step.choices):
                    ends = option.backward_seconds if i == d else 0.0
                    if d < self.n:
                        self.found[d, i, o] = self._variable(ends)
                    self.made[d, i, o] = self._variable(option.forward_seconds + ends)
                    if i < d:
                        self.read[d, i, o] = self._variable(whole=False)

    def _options(self, i: int) -> range:
        return range(len(self.chain.steps[i - 1].choices))

    def _stays(self, i: int) -> bool:
        """Whether saving a stage only to run another is never better than running it plainly."""
        step = self.chain.steps[i - 1]
        return all(
            step.no_grad_seconds <= each.forward_seconds
            and step.no_grad_temporary_bytes <= each.forward_temporary_bytes
            for each in step.choices
        )

    # Rows

    def _there(self, d: int, i: int, o: int) -> list[tuple[int | None, float]]:
        """Return the value of i, bare (-1) or by an option, found or made in phase d."""
        if o < 0:
            return [(self.bare.get((d, i)), 1.0), (self.plain.get((d, i)), 1.0)]
        return [(self.found.get((d, i, o)), 1.0), (self.made[d, i, o], 1.0)]

    def _logic(self, d: int) -> None:
        for i in range(1, d + 1):
            kinds = [-1, *self._options(i)] if i < d else list(self._options(i))
            everything = [term for o in kinds for term in self._there(d, i, o)]
            self.integer.row(everything, 1.0 if i == d else 0.0, 1.0)
            if i > 1:
                runs = [(self.plain.get((d, i)), -1.0), *((self.made[d, i, o], -1.0) for o in self._options(i))]
                before = [(self.read[d, i - 1, o], 1.0) for o in (-1, *self._options(i - 1))]
                self.integer.row([*before, *runs], 0.0, math.inf)
                if i == d:
                    self.integer.row(before, 1.0, 1.0)
            if i == d:
                continue
            for o in kinds:
                here = self.read[d, i, o]
                self.integer.row([*self._there(d, i, o), (here, -1.0)], 0.0, math.inf)
                later = self.bare.get((d - 1, i)) if o < 0 else self.found[d - 1, i, o]
                self.integer.row([(here, 1.0), (later, -1.0)], 0.0, math.inf)
                if o >= 0 and self._stays(i):
                    self.integer.row([*self._there(d, i, o), (later, -1.0)], 0.0, 0.0)

    def _start(self, d: int, i: int) -> Terms:
        """Bytes of what phase d finds of stage i."""
        step = self.chain.steps[i - 1]
        terms = [(self.found.get((d, i, o)), float(each.saved_bytes)) for o, each in enumerate(step.choices)]
        return [(k, size) for k, size in ((self.bare.get((d, i)), float(step.output_bytes)), *terms) if k is not None]

    def _held(self, d: int, i: int) -> Terms:
        """Bytes of the value of i while i + 1 stands in phase d."""
        step = self.chain.steps[i - 1]
        options = ((self.read[d, i, o], float(each.saved_bytes)) for o, each in enumerate(step.choices))
        return [(self.read[d, i, -1], float(step.output_bytes)), *options]

    def _bytes(self, d: int) -> None:
        steps = self.chain.steps
        grown = sum(step.parameter_gradient_bytes for step in steps[d:])
        arrived = steps[d - 1].output_gradient_bytes + grown
        left: Terms = []
        for i in range(1, d + 1):
            step = steps[i - 1]
            if i > 2:
                left += self._start(d - 1, i - 2)
            held = self._held(d, i - 1) if i > 1 else []
            right = [term for j in range(i, d + 1) for term in self._start(d, j)]
            runs: list[tuple[int | None, float]] = [
                (self.plain.get((d, i)), step.output_bytes + step.no_grad_temporary_bytes),
                *((self.made[d, i, o], each.saved_bytes + each.forward_temporary_bytes)
                  for o, each in enumerate(step.choices)),
            ]  # fmt: skip
            self._limit([*left, *held, *right, *runs], self.room - arrived)
            if i == d:
                more = step.parameter_gradient_bytes
                more += steps[d - 2].output_gradient_bytes if d > 1 else self.chain.input_gradient_bytes
                back = [
                    (column, each.saved_bytes + each.backward_temporary_bytes)
                    for o, each in enumerate(step.choices)
                    for column, _ in self._there(d, d, o)
                ]
                self._limit([*left, *held, *back], self.room - arrived - more)

    def _limit(self, terms: Iterable[tuple[int | None, float]], most: int) -> None:
        self.integer.row([(column, size / self.room) for column, size in terms], -math.inf, most / self.room)

    # Solution

    def solve(self, known: float, limit_seconds: float) -> SearchResult:
        """Run HiGHS; nothing slower than a known time is searched."""
        solved = self.integer.solve(limit_seconds, gap=_SLACK, known=known / self.unit)
        lower = min(known, max(0.0, solved.bound) * self.unit)
        if solved.values is None:
            return SearchResult(operations=None, seconds=math.inf, lower_seconds=lower, finished=solved.finished)
        operations = list_operations(self._path(solved.values > 0.5))
        simulation = simulate(self.chain, operations, budget_bytes=self.chain.fixed_bytes + self.room)
        if not simulation.fits:  # by HiGHS's tolerance beyond the room: the bound holds, the plan does not
            return SearchResult(operations=None, seconds=math.inf, lower_seconds=lower, finished=False)
        return SearchResult(
            operations=operations,
            seconds=simulation.seconds,
            lower_seconds=lower,
            finished=solved.finished,
        )

    def _path(self, chosen: NDArray[np.bool_]) -> list[list[int]]:
        """Return the rows (kind, stage, option) of a solution, as `listed` reads them."""

        def after(d: int, i: int) -> bool:
            """Whether the phase after d finds a value of i."""
            return any(chosen[column] for column, _ in self._start(d - 1, i))

        path: list[list[int]] = []
        alive: set[int] = set()
        for d in range(self.n, 0, -1):
            path += [[4, i, 0] for i in sorted(alive) if not any(chosen[k] for k, _ in self._start(d, i))]
            alive = {i for i in alive if any(chosen[column] for column, _ in self._start(d, i))}
            for i in range(1, d + 1):
                if i < d and chosen[self.plain[d, i]]:
                    path.append([1, i, 0])
                    alive.add(i)
                for o in self._options(i):
                    if chosen[self.made[d, i, o]]:
                        path.append([0, i, o])
                        alive.add(i)
                if i > 1 and i - 1 in alive and i - 1 < d - 1 and not after(d, i - 1):
                    path.append([4, i - 1, 0])
                    alive.remove(i - 1)
            path.append([3, d, 0])
            alive -= {d}
            if d > 1 and not after(d, d - 1):
                saved = any(chosen[column] for o in self._options(d - 1) for column, _ in self._there(d, d - 1, o))
                path += [[4, d - 1, 0]] if saved else []  # a bare output goes with the backward that reads it
                alive -= {d - 1}
        return path

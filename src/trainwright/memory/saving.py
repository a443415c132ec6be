"""What a compiled step saves from forward to backward, and what backward runs again: once each, when first needed.

A step is one graph, forward operations first. Given the set S of saved values, backward runs again what it needs and
S lacks, back to saved or fixed values; the seconds of these are the cost. Bytes are those of live storages, operation
by operation, in the order that torch's partitioner gives backward: what is run again comes just before its first use.

The choice is a local search from given starts and from saving every k-th place where one value alone crosses: first
flips that lower the bytes above the limit at the least cost, then flips that save time within it, each simulated, then
one value at a time let go and the room filled anew. The best of all is taken, so no start is better than it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from trainwright.kernels import Flags, Floats, Ints
from trainwright.memory._saving import flips, sweep

__all__ = ["Choice", "Step", "choose", "least"]

_EVERY = (1, 2, 3, 4, 6, 8)  # crossings saved
_DROPS = 40
_PART, _LEAST_PART = 0.2, 0.004  # of a peak, that `least` lowers it by


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step's graph of n nodes in order; node i reads `inputs[first[i]:first[i + 1]]`, all of them before it."""

    forward: int
    """Nodes of the forward, which come first."""
    first: Ints
    inputs: Ints
    storage: Ints
    """Of each node; -1 without bytes to count (parameters, the batch, views of them, tuples)."""
    kept: Ints
    """Bytes of each storage."""
    passing: Ints
    """Bytes of each storage while it is only passed on: 0 where the compiler never makes it."""
    scratch: Ints
    """Bytes that each node takes and gives back while it runs."""
    seconds: Floats
    """Of each node."""
    fixed: Flags
    """Nodes that are always there: parameters, the batch, gradients that arrive."""
    pinned: Flags
    """Nodes that are never run again: those that draw random numbers."""
    keepable: Flags
    trunk: Flags
    """Nodes that backward is made of: what depends on gradients that arrive, and the results."""
    handed: Flags
    """Nodes whose storage is the caller's from when it is made: the results of forward and of backward."""

    def tried(self, saved: Flags, limit: int = 0) -> "Choice":
        """Return what saving these nodes of the forward takes, without those that backward does not need."""
        saved, again = saved.copy(), np.zeros(len(self.storage), np.bool_)
        saved[self.forward :] = False
        spent, peak, excess = sweep(saved, again, limit, *self._arrays)
        return Choice(saved=saved, again=again, seconds=spent, peak_bytes=peak, excess=excess)

    @cached_property
    def candidates(self) -> Ints:
        """The nodes that may be saved."""
        return np.flatnonzero(self.keepable[: self.forward])

    def flipped(self, saved: Flags, candidates: Ints, limit: int) -> tuple[Floats, Floats]:
        """Return seconds and bytes above the limit, summed over operations, with one node each flipped."""
        return flips(saved, candidates, limit, *self._arrays)

    @property
    def _arrays(self) -> tuple[Any, ...]:
        return (self.forward, self.first, self.inputs, self.storage, self.kept, self.passing, self.scratch,
                self.seconds, self.fixed, self.pinned, self.trunk, self.handed)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Nodes saved and run again, with the seconds of the latter and the peak of bytes."""

    saved: Flags
    again: Flags
    seconds: float
    peak_bytes: int
    excess: float
    """Bytes above the limit that it was tried with, summed over operations."""

    @property
    def rank(self) -> tuple[float, float]:
        """The lower the better."""
        return self.excess, self.seconds


def choose(step: Step, limit: int, starts: Iterable[Flags] = ()) -> Choice:
    """Return the fastest choice found whose peak is at most `limit` bytes; `excess` is above 0 if none was found."""
    found = [step.tried(start, limit) for start in (*starts, *_crossings(step))]
    best = min((_filled(step, _lowered(step, each, limit), limit) for each in found), key=lambda each: each.rank)
    if best.excess:
        return best
    sizes = step.kept[step.storage]
    held = sorted(np.flatnonzero(best.saved), key=lambda node: -sizes[node])
    for node in held[:_DROPS]:
        if best.saved[node]:
            without = best.saved.copy()
            without[node] = False
            best = min(
                best, _filled(step, step.tried(without, limit), limit, but=int(node)), key=lambda each: each.rank
            )
    return best


def least(step: Step, starts: Iterable[Flags] = ()) -> Choice:
    """Return the choice of the least peak found, whatever its time.

    From each start as `choose`, but for ever lower limits. Measured seconds have no part in it: the same graph has the
    same least.
    """
    alike = replace(step, seconds=np.ones(len(step.seconds)))
    found = (_sunk(alike, alike.tried(start)) for start in (*starts, *_crossings(step)))
    best = min(found, key=lambda each: (each.peak_bytes, each.seconds))
    return step.tried(best.saved, best.peak_bytes)


def _sunk(step: Step, choice: Choice) -> Choice:
    """Return a choice after flips that lower its peak, by parts of it that become smaller."""
    part = _PART
    while part > _LEAST_PART:
        limit = int(choice.peak_bytes * (1 - part))
        lower = _lowered(step, step.tried(choice.saved, limit), limit)
        if lower.peak_bytes < choice.peak_bytes:
            choice = lower
        else:
            part /= 2
    return choice


def _crossings(step: Step) -> Iterator[Flags]:
    """Yield sets of every k-th node that alone goes from what came before to the rest of forward, and none."""
    last = np.full(len(step.kept), -1)
    for node in range(step.forward):
        for each in (node, *step.inputs[step.first[node] : step.first[node + 1]]):
            if step.storage[each] >= 0:
                last[step.storage[each]] = node
    alive: set[int] = set()
    alone: dict[int, None] = {}
    for node in range(step.forward):
        if step.storage[node] >= 0:
            alive.add(int(step.storage[node]))
        alive = {each for each in alive if last[each] > node}
        if len(alive) == 1:
            alone |= dict.fromkeys(alive)
    owners = {int(step.storage[node]): int(node) for node in reversed(step.candidates)}
    places = [owners[each] for each in alone if each in owners]
    for every in _EVERY:
        saved = np.zeros(len(step.storage), np.bool_)
        saved[places[every - 1 :: every]] = True
        yield saved


def _lowered(step: Step, choice: Choice, limit: int) -> Choice:
    """Return a choice after flips that lower what is above the limit at the least cost, as far as they do."""
    while choice.excess:
        seconds, excess = step.flipped(choice.saved, step.candidates, limit)
        gain = choice.excess - excess
        price = np.maximum(seconds - choice.seconds, 1e-9)
        better = choice
        for place in np.argsort(-gain / price, kind="stable"):
            if gain[place] <= 0:
                break
            other = step.tried(_flip(better.saved, step.candidates[place]), limit)
            if other.excess < better.excess:
                better = other
            if not better.excess:
                break
        if better is choice:
            break
        choice = better
    return choice


def _filled(step: Step, choice: Choice, limit: int, *, but: int = -1) -> Choice:
    """Return a choice that saves more while there is room for it, the most seconds per byte first."""
    while not choice.excess:
        candidates = step.candidates[choice.again[step.candidates] & (step.candidates != but)]
        if not len(candidates):
            break
        seconds, excess = step.flipped(choice.saved, candidates, limit)
        gain = np.where(excess > 0, 0, choice.seconds - seconds) / np.maximum(step.kept[step.storage[candidates]], 1)
        better = choice
        for place in np.argsort(-gain, kind="stable"):
            if gain[place] <= 0:
                break
            other = step.tried(_flip(better.saved, candidates[place]), limit)
            if other.rank < better.rank:
                better = other
        if better is choice:
            break
        choice = better
    return choice


def _flip(saved: Flags, node: int) -> Flags:
    other = saved.copy()
    other[node] = not other[node]
    return other

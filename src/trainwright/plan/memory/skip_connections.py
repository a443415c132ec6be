"""Chains without skips for solvers, which count bytes by stage: what skips stages is put into the stages' numbers.

When such a value is alive depends on the plan. So a solver is given a guess, the bytes alive while each stage's
backward is the next, counted with the gradient of its output; the simulator decides on what it finds, and says what was
alive.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trainwright.model.chain import Chain
from trainwright.plan.memory.simulate import Simulation

__all__ = ["SkipGuesses", "count_skips", "fold_skips", "without_skips"]

_ROUNDS = 8


class SkipGuesses:
    """A chain with one guess after the other, each of what was alive in plans for those before; once without skips."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._waiting = deque([_all_bytes(chain), (0,) * (len(chain.steps) + 1)])
        self._tried: list[tuple[int, ...]] = []

    def __iter__(self) -> Iterator[Chain]:
        while self._waiting and len(self._tried) < _ROUNDS:
            alive = self._waiting.popleft()
            if alive not in self._tried:
                self._tried.append(alive)
                yield count_skips(self._chain, alive)

    def learn(self, simulation: Simulation) -> None:
        """Note what was alive in a plan for the latest guess."""
        found = simulation.skip_bytes_by_stage
        self._waiting += [found, tuple(map(max, found, self._tried[-1]))]


def fold_skips(chain: Chain) -> Chain:
    """Return the chain with each value counted from the start of the step to its maker's backward.

    That is enough for every plan, unless graphs hold a value and another copy of it.
    """
    return count_skips(chain, _all_bytes(chain))


def without_skips(chain: Chain) -> Chain:
    """Return the chain without its values: no plan takes less."""
    return replace(chain, skips=()) if chain.skips else chain


def count_skips(chain: Chain, alive: Sequence[int]) -> Chain:
    """Return the chain with so many bytes while the backward of each stage (the first's at 1) is the next to come."""
    if not chain.skips:
        return chain
    steps = []
    for number, step in enumerate(chain.steps, start=1):
        # While it runs backward, the gradient that arrives and the one it makes are both there: count this once.
        twice = min(alive[number], alive[number - 1]) if number > 1 else 0
        options = tuple(
            replace(each, backward_temporary_bytes=each.backward_temporary_bytes - twice) for each in step.options
        )
        steps.append(
            replace(
                step,
                gradient_bytes=step.output_gradient_bytes + alive[number],
                backward_temporary_bytes=step.backward_temporary_bytes - twice,
                options=options,
            )
        )
    return replace(chain, stages=tuple(steps[:-1]), loss=steps[-1], skips=())


def _all_bytes(chain: Chain) -> tuple[int, ...]:
    numbers = range(len(chain.steps) + 1)
    return tuple(sum(skip.value_bytes for skip in chain.skips if skip.maker <= number) for number in numbers)

"""The strategies of the oracle: the built-in ones and those that entry points of other distributions name."""

from trainwright.plan.parallel.strategies.strategy import ParallelStrategy
from trainwright.plugins import load, names_of

__all__ = ["AXES", "STRATEGIES"]


def _find_strategies() -> tuple[ParallelStrategy, ...]:
    """Return one of every strategy, in the order of their axes."""
    found: list[ParallelStrategy] = [load("strategy", name, "strategies")() for name in names_of("strategy")]
    strategies = sorted(found, key=lambda one: (one.axis.order, one.axis.name))
    names = [one.axis.name for one in strategies]
    for name in names:
        if names.count(name) > 1:
            raise ImportError(f"strategies: the axis {name!r} is declared twice; allowed: a different name for each")
    return tuple(strategies)


STRATEGIES: tuple[ParallelStrategy, ...] = _find_strategies()
"""In the order of their axes: the first changes fastest over the ranks."""

AXES = tuple(strategy.axis for strategy in STRATEGIES)

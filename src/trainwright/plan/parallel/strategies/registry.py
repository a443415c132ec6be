"""The strategies of the oracle: the modules of this folder that define one, and entry points of other distributions."""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from trainwright.plan.parallel.strategies.strategy import ParallelStrategy
from trainwright.plugins import load, names_of

__all__ = ["AXES", "STRATEGIES"]

_METHODS = ("limit", "applies", "compute", "memory", "communication")


def _find_strategies() -> tuple[ParallelStrategy, ...]:
    """Return one of every strategy, in the order of their axes."""
    found: list[Any] = []
    for module in iter_modules([str(Path(__file__).parent)]):
        if module.name not in {"registry", "strategy"}:
            members = vars(import_module(f"{__package__}.{module.name}")).values()
            found += [kind for kind in members if isinstance(kind, type) and _is_strategy(kind)]
    found += [load("strategy", name, "strategies") for name in names_of("strategy")]
    # A module may import the strategy of another: each class counts once.
    strategies = sorted((kind() for kind in dict.fromkeys(found)), key=lambda one: (one.axis.order, one.axis.name))
    names = [one.axis.name for one in strategies]
    for name in names:
        if names.count(name) > 1:
            raise ImportError(f"strategies: the axis {name!r} is declared twice; allowed: a name of its own for each")
    return tuple(strategies)


def _is_strategy(kind: type) -> bool:
    return hasattr(kind, "axis") and all(hasattr(kind, method) for method in _METHODS) and kind is not ParallelStrategy


STRATEGIES: tuple[ParallelStrategy, ...] = _find_strategies()
"""In the order of their axes: the first changes fastest over the ranks."""

AXES = tuple(strategy.axis for strategy in STRATEGIES)

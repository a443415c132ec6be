"""Trainwright's own searchers behind the same ask and tell as its peers, through the public face only."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.peers.columns import Column
from benchmarks.peers.constant_liar import ConstantLiar
from benchmarks.peers.sources import digest

import trainwright as tw
from trainwright.search import SearchView

__all__ = ["METHODS", "Own", "Team"]


class Own:
    """A study in memory, or in a directory, with one of our searchers."""

    def __init__(
        self,
        columns: Sequence[Column],
        seed: int,
        *,
        searcher: str = "ForestSearcher",
        settings: Mapping[str, Any] | None = None,
        directory: str | None = None,
    ) -> None:
        self._columns = columns
        self.space = tw.Space.of({column.name: _parameter(column) for column in columns})
        self._positions = [{value: index for index, value in enumerate(column.values)} for column in columns]
        settings = settings or {}
        made = ConstantLiar() if searcher == "ConstantLiar" else getattr(tw, searcher)(**settings)
        self._study = tw.Study(self.space, objectives="min loss", directory=directory, seed=seed, searcher=made)
        named = ", ".join(f"{key}={value}" for key, value in settings.items()) or "defaults"
        home = type(made.forest if isinstance(made, ConstantLiar) else made).__module__
        sources = _sources(home.removeprefix("trainwright."))
        self.version = f"trainwright {tw.__version__}; {searcher} {named}; sources {sources}"

    def load(self, rows: Sequence[list[float]], losses: Sequence[float]) -> None:
        """Tell results of configurations that nobody asked for."""
        for row, loss in zip(rows, losses, strict=True):
            self._study.tell(self._params(row), loss=loss)

    def ask(self, count: int) -> list[tuple[Any, list[float]]]:
        """Propose rows."""
        return [(asked, self.row(asked.params)) for asked in self._study.ask(count)]

    def tell(self, tokens: Sequence[Any], losses: Sequence[float]) -> None:
        """Tell losses."""
        for configuration, loss in zip(tokens, losses, strict=True):
            self._study.tell(configuration, loss=loss)

    def row(self, params: dict[str, Any]) -> list[float]:
        return [
            params[column.name] if column.numeric else positions[params[column.name]]
            for column, positions in zip(self._columns, self._positions, strict=True)
        ]

    def _params(self, row: Sequence[float]) -> dict[str, Any]:
        return {
            column.name: value if column.numeric else column.values[int(value)]
            for column, value in zip(self._columns, row, strict=True)
        }


class Team(Own):
    """Workers without a leader, simulated: each has a slot, and so a kappa of its own; results reach all at once."""

    def __init__(self, columns: Sequence[Column], seed: int) -> None:
        super().__init__(columns, seed)
        self.version += "; a slot for each worker"
        self._searcher = tw.ForestSearcher()
        self._view = SearchView(self.space, seed)
        self._free: list[int] = []  # slots whose trial has ended
        self._count = 0  # trials

    def load(self, rows: Sequence[list[float]], losses: Sequence[float]) -> None:
        """Tell results of configurations that nobody asked for."""
        for row, loss in zip(rows, losses, strict=True):
            self._view.propose(self._count, self.space.configuration_of(self._params(row)))
            self._view.result(self._count, [loss], epoch=None, complete=True)
            self._count += 1

    def ask(self, count: int) -> list[tuple[Any, list[float]]]:
        """Propose rows, each by a worker that is free, or by one that joins."""
        asked = []
        for _ in range(count):
            self._view.slot = self._free.pop() if self._free else len(self._view.pending)
            [configuration] = self._searcher.ask(self._view, [self._count])
            self._view.propose(self._count, configuration)
            asked.append(((self._count, self._view.slot), self.row(configuration.params)))
            self._count += 1
        return asked

    def tell(self, tokens: Sequence[Any], losses: Sequence[float]) -> None:
        """Tell losses, and free their workers."""
        for (number, slot), loss in zip(tokens, losses, strict=True):
            self._view.result(number, [loss], epoch=None, complete=True)
            self._free.append(slot)


@cache  # as loaded, whatever is edited while a benchmark runs
def _sources(module: str) -> str:
    return digest(Path(tw.__file__).parent, module)


def _parameter(column: Column) -> Any:
    if column.kind == "int":
        return tw.Int(int(column.low), int(column.high))
    if column.numeric:
        return tw.Float(column.low, column.high, log=column.kind == "log_float")
    return tw.Choice(*column.values, ordered=column.kind == "ordinal")


_PLAIN = {"kappa": 1.96, "kappa_final": 1.96, "pending": "ignore"}

METHODS = {
    "trainwright-default": partial(Own, searcher="DefaultSearcher"),
    "trainwright-forest": Own,
    "trainwright-gp": partial(Own, searcher="GaussianProcessSearcher"),
    "trainwright-botorch": partial(Own, searcher="BoTorchSearcher"),
    "trainwright-evolution": partial(Own, searcher="EvolutionSearcher"),
    "trainwright-forest-team": Team,
    "trainwright-plain-ucb": partial(Own, settings=_PLAIN),
    "trainwright-liar": partial(Own, searcher="ConstantLiar"),
    "trainwright-quasirandom": partial(Own, searcher="QuasiRandomSearcher"),
    "trainwright-random": partial(Own, searcher="RandomSearcher"),
}

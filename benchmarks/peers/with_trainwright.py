"""Trainwright's own searchers behind the same ask and tell as its peers, through the public face only."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.columns import Column
from benchmarks.peers.sources import digest

import trainwright as tw

__all__ = ["METHODS", "Own"]


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
        self._space = tw.Space.of({column.name: _parameter(column) for column in columns})
        self._positions = [{value: index for index, value in enumerate(column.values)} for column in columns]
        settings = settings or {}
        made = getattr(tw, searcher)(**settings)
        self._study = tw.Study(self._space, objectives="min loss", directory=directory, seed=seed, searcher=made)
        named = ", ".join(f"{key}={value}" for key, value in settings.items()) or "defaults"
        sources = digest(Path(tw.__file__).parent, type(made).__module__.removeprefix("trainwright."))
        self.version = f"trainwright {tw.__version__}; {searcher} {named}; sources {sources}"

    def load(self, rows: Sequence[list[float]], losses: Sequence[float]) -> None:
        """Tell results of configurations that nobody asked for."""
        for row, loss in zip(rows, losses, strict=True):
            self._study.tell(self._params(row), loss=loss)

    def ask(self, count: int) -> list[tuple[Any, list[float]]]:
        """Propose rows."""
        return [(asked, self._row(asked.params)) for asked in self._study.ask(count)]

    def tell(self, tokens: Sequence[Any], losses: Sequence[float]) -> None:
        """Tell losses."""
        for configuration, loss in zip(tokens, losses, strict=True):
            self._study.tell(configuration, loss=loss)

    def _row(self, params: dict[str, Any]) -> list[float]:
        return [
            params[column.name] if column.numeric else positions[params[column.name]]
            for column, positions in zip(self._columns, self._positions, strict=True)
        ]

    def _params(self, row: Sequence[float]) -> dict[str, Any]:
        return {
            column.name: value if column.numeric else column.values[int(value)]
            for column, value in zip(self._columns, row, strict=True)
        }


def _parameter(column: Column) -> Any:
    if column.kind == "int":
        return tw.Int(int(column.low), int(column.high))
    if column.numeric:
        return tw.Float(column.low, column.high, log=column.kind == "log_float")
    return tw.Choice(*column.values, ordered=column.kind == "ordinal")


_PLAIN = {"kappa": 1.96, "kappa_final": 1.96, "pending": "ignore"}

METHODS = {
    "trainwright-forest": Own,
    "trainwright-gp": partial(Own, searcher="GaussianProcessSearcher"),
    "trainwright-evolution": partial(Own, searcher="EvolutionSearcher"),
    "trainwright-plain-ucb": partial(Own, settings=_PLAIN),
    "trainwright-liar": partial(Own, settings={"pending": "liar-min"}),
    "trainwright-quasirandom": partial(Own, searcher="QuasiRandomSearcher"),
    "trainwright-random": partial(Own, searcher="RandomSearcher"),
}

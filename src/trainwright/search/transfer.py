"""What an earlier study found, carried into another one: by names of parameters, so that the spaces may differ.

Three ways. Surrogate: its rows are told to the forest, ranked among themselves and marked by a column of their own.
Generative: a mixture model of its best configurations proposes candidates (Dorier et al., arXiv 2210.00798). Priors:
candidates come from around its best configuration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import SearchError, TrialError
from trainwright.ledger import State, Status, open_ledger, state_of
from trainwright.pareto import non_dominated
from trainwright.randomness import rng
from trainwright.search.bayes.mixture import Mixture
from trainwright.space import Choice, Space

__all__ = ["EarlierStudy", "Experience", "Recalled", "Transfer"]

Array = NDArray[np.float64]
Transfer = Literal["surrogate", "generative", "priors"]

_MOST = 500  # rows that are told
_LEAST, _TENTH = 10, 0.1  # good rows that a mixture is fitted to
_LEVELS = {Status.COMPLETE: 0, Status.STOPPED: 1, Status.FAILED: 2}  # a trial that got less far was the worse one


@runtime_checkable
class EarlierStudy(Protocol):
    """A study, as far as others learn from it."""

    directory: Path | None

    @property
    def state(self) -> State:
        """All that is known of its trials."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experience:
    """Configurations of an earlier study and how they ranked there, as plain data that a ledger can keep."""

    source: str
    complete: int  # trials that it completed
    rows: tuple[Mapping[str, Any], ...]  # parameters of ended trials, by number
    ranks: tuple[tuple[float, ...], ...]  # of each in each objective: 0 the best, 1 the worst

    @classmethod
    def of(cls, earlier: "EarlierStudy | Experience | Mapping[str, Any] | str | Path", way: Transfer) -> Self:
        """Return what `way` needs of a study, of its directory or URL, or of what `to_json` made.

        Raises `SearchError` if it has completed no trial, or too few.
        """
        if isinstance(earlier, cls):
            return earlier
        if isinstance(earlier, Mapping):
            # JSON knows no tuples.
            rows = ({k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for row in earlier["rows"])
            ranks = tuple(map(tuple, earlier["ranks"]))
            return cls(source=earlier["source"], complete=earlier["complete"], rows=tuple(rows), ranks=ranks)
        if isinstance(earlier, EarlierStudy):
            found = cls._read(earlier.state, str(earlier.directory or "the earlier study"))
        elif isinstance(earlier, str | Path):
            ledger = open_ledger(earlier, create=False)
            try:
                # Read here and closed: what the earlier study learns later must not change proposals.
                found = cls._read(state_of(ledger), str(earlier))
            finally:
                ledger.close()
        else:
            raise SearchError(
                f"warm_start: got {earlier!r}; allowed: a study, as of tw.Study.open('runs/old'), or its directory"
            )
        least = _LEAST if way == "generative" else 1
        if found.complete < least:
            mend = "use transfer='priors'" if found.complete else "leave warm_start out"
            many = f"{least} completed trials" if least > 1 else "a completed trial"
            raise SearchError(f"transfer={way!r} needs at least {many}, {found.source} has {found.complete}; {mend}")
        return found._needed(way)  # noqa: SLF001 -- it is one of us

    @classmethod
    def _read(cls, state: State, source: str) -> Self:
        """Rank the ended trials of a state in each objective; one that was stopped or failed after those that ended."""
        rows, scores = [], []
        for number in sorted(state.trials):
            trial = state.trials[number]
            if not trial.key or trial.status not in _LEVELS:
                continue
            # Trials that got less far rank behind all that got farther; within a level losses decide.
            level, values = _LEVELS[trial.status], trial.values
            if trial.failure is None and any(objective.metric not in values for objective in state.objectives):
                continue  # nothing is known of it
            losses = [0.0 if trial.failure else o.loss(float(values[o.metric])) for o in state.objectives]
            rows.append(trial.params)
            scores.append([(level, -trial.epoch if level == 1 else 0, loss) for loss in losses])
        # Ranks instead of losses: two studies need not have one scale.
        ranked = np.array([_mean_ranks(column) for column in zip(*scores, strict=True)]).T
        return cls(
            source=source,
            complete=sum(score[0][0] == 0 for score in scores),
            rows=tuple(rows),
            ranks=tuple(map(tuple, ranked.tolist())),
        )

    def _needed(self, way: Transfer) -> Self:
        """Return the rows that a way of transfer looks at: one, the good ones, or at most 500 of all qualities."""
        ranks = np.array(self.ranks)
        if way == "priors":
            chosen = _best(ranks, 1)
        elif way == "generative":
            chosen = _best(ranks, max(_LEAST, min(_MOST, int(np.ceil(_TENTH * self.complete)))))
        else:
            # A fifth are the best, the rest an even sample of all qualities: the forest must see bad rows too.
            chosen = _best(ranks, _MOST // 5)
            rest = np.setdiff1d(np.argsort(ranks.mean(axis=1), kind="stable"), chosen, assume_unique=True)
            chosen = np.concatenate([chosen, rest[_evenly(len(rest), _MOST - len(chosen))]])
        places = np.sort(chosen) if way == "surrogate" else chosen
        return type(self)(
            source=self.source,
            complete=self.complete,
            rows=tuple(self.rows[i] for i in places),
            ranks=tuple(self.ranks[i] for i in places),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data from which `of` makes an equal object."""
        return {
            "source": self.source,
            "complete": self.complete,
            "rows": [dict(row) for row in self.rows],
            "ranks": [list(ranks) for ranks in self.ranks],
        }


class Recalled:
    """Experience as rows of one space, which some of its parameters are shared with."""

    def __init__(self, experience: Experience, way: Transfer, space: Space, seed: int, objectives: int) -> None:
        shared = [c for c, column in enumerate(space.columns) if any(column.name in row for row in experience.rows)]
        if not shared:
            theirs = ", ".join(dict.fromkeys(name for row in experience.rows for name in row))
            ours = ", ".join(column.name for column in space.columns)
            raise SearchError(f"warm_start: {experience.source} has {theirs}, this study {ours}: they share nothing")
        # A row with a value outside of the new space says nothing about it.
        latent, inside = _read_rows(experience.rows, space)
        if not inside.any():
            raise SearchError(f"warm_start: no configuration of {experience.source} lies within this study's space")
        ranks = np.array(experience.ranks)
        if way == "surrogate" and ranks.shape[1] != objectives:
            raise SearchError(
                f"transfer='surrogate' needs as many objectives as {experience.source} has, {ranks.shape[1]}; this "
                f"study has {objectives}; use transfer='generative'"
            )
        latent, self.ranks = latent[inside], ranks[inside]
        # What the earlier space did not have, or was inactive there, says nothing: it is drawn.
        filled = np.where(np.isnan(latent), space.latent(rng(seed, "transfer", 0), len(latent)), latent)
        self.rows: Array = space.settle(filled)
        # The best earlier configuration opens the new study, with middle values for what it did not have.
        [best] = _best(self.ranks, 1)
        middle = space.quantile(np.full((1, space.dimension), 0.5))
        start = space.settle(np.where(np.isnan(latent[best]), middle, latent[best]))
        self.best: Array = start[space.legal(start)]  # [1, columns], or [0, columns] where requirements forbid it
        if way == "generative":
            self.mixture: Mixture | None = Mixture.fitted(space, latent)
        else:
            self.mixture = Mixture.around_row(space, latent[best]) if way == "priors" else None


def _read_rows(rows: Sequence[Mapping[str, Any]], space: Space) -> tuple[Array, NDArray[np.bool_]]:
    """Return latent rows, NaN where a value is not known, and which of them have no value outside the space."""
    latent = np.full((len(rows), space.dimension), np.nan)
    inside = np.ones(len(rows), dtype=np.bool_)
    for c, column in enumerate(space.columns):
        parameter = space.parameters[column.name]
        for i, row in enumerate(rows):
            if column.name in row:
                try:
                    latent[i, c] = _unit(parameter, column.name, row[column.name])
                except TrialError:
                    inside[i] = False
    return latent, inside


def _unit(parameter: Any, name: str, value: Any) -> float:
    """Return the unit of a value, which need not be on a number's grid, or raise TrialError."""
    if isinstance(parameter, Choice):
        position = parameter.number(parameter.clean(name, value))
        return float(parameter.axis.to_units(np.array([position]))[0])
    return float(parameter.axis.place(parameter.rank(name, value)))


def _mean_ranks(scores: Sequence[tuple[float, ...]]) -> Array:
    """Return the place of each score among all, ties sharing theirs, on a scale from 0 to 1."""
    _, place, counts = np.unique(np.array(scores), axis=0, return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - 0.5 * counts
    found: Array = middles[place.ravel()] / len(scores)
    return found


def _best(ranks: Array, most: int) -> NDArray[np.intp]:
    """Return the places of at most so many rows, best first: front after front, each by its mean rank."""
    means = ranks.mean(axis=1)
    if ranks.shape[1] == 1:
        return np.argsort(means, kind="stable")[:most]
    chosen, left = np.arange(0), np.argsort(means, kind="stable")
    while len(chosen) < most and len(left):
        # Fronts are peeled off one after another; within each the mean rank decides, by the order of `left`.
        front = non_dominated(ranks[left])
        chosen, left = np.concatenate([chosen, left[front]]), left[~front]
    return chosen[:most]


def _evenly(count: int, most: int) -> NDArray[np.intp]:
    """Return at most so many places among `count`, evenly spread."""
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.intp)) if count > most else np.arange(count)

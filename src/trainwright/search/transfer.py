"""Warm start (transfer learning): uses trials of earlier studies in another, by parameter names; spaces may differ.

Their rows are told to the forest, ranked within each study and marked by a column of their own. Other ways, a mixture
of the best configurations or normals around the best, found less (`benchmarks/transfer`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trainwright.aliases import Array
from trainwright.errors import SearchError, TrialError
from trainwright.ledger import State, Status, open_ledger, state_of
from trainwright.pareto import non_dominated
from trainwright.randomness import rng
from trainwright.search.view import SearchView
from trainwright.space import Choice, Space

__all__ = ["Earlier", "EarlierStudy", "WarmStart", "WarmStartRows"]


_MOST = 500  # rows that are told, of all studies together
_LEAST = 10  # rows of each study, at least
_JUDGED = (4, 8, 16, 32, 64)  # completed trials by which it is judged whether they contradict a study
_NEAREST = 3  # rows of it by which it is judged at a trial
_AGAINST = -0.8  # deviations of Spearman's coefficient without any relation, 1 / sqrt(n - 1)
_LEVELS = {Status.COMPLETE: 0, Status.STOPPED: 1, Status.FAILED: 2}  # a trial that got less far was the worse one


@runtime_checkable
class EarlierStudy(Protocol):
    """A study, as far as others learn from it."""

    directory: Path | None

    @property
    def state(self) -> State:
        """All that is known of its trials."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    """Configurations of earlier studies and how they ranked there, as plain data that a ledger can keep."""

    sources: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]  # parameters of ended trials, study by study
    ranks: tuple[tuple[float, ...], ...]  # of each in each objective of its study: 0 the best, 1 the worst
    owners: tuple[int, ...]  # of each row: the place of its study in `sources`

    @classmethod
    def of(cls, earlier: "Earlier | Sequence[Earlier]") -> Self:
        """Return what a study says, or its directory or URL, or several of these, or what `to_json` made.

        Raises `SearchError` if one has completed no trial, or if their numbers of objectives differ.
        """
        if isinstance(earlier, cls):
            return earlier
        if isinstance(earlier, Mapping):
            # JSON knows no tuples.
            rows = ({k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for row in earlier["rows"])
            sources, owners = tuple(earlier["sources"]), tuple(earlier["owners"])
            return cls(sources=sources, rows=tuple(rows), ranks=tuple(map(tuple, earlier["ranks"])), owners=owners)
        if not isinstance(earlier, list | tuple):
            return cls._of_one(earlier, _MOST)
        if not earlier:
            raise SearchError("warm_start: got no study; allowed: one or more, or None")
        most = max(_LEAST, _MOST // len(earlier))
        found = [cls._of_one(one, most) for one in earlier]
        counts = [len(one.ranks[0]) for one in found]
        if len(set(counts)) > 1:
            each = ", ".join(f"{' and '.join(one.sources)} {count}" for one, count in zip(found, counts, strict=True))
            raise SearchError(f"warm_start: the studies differ in their number of objectives: {each}")
        return cls(
            sources=tuple(source for one in found for source in one.sources),
            rows=tuple(row for one in found for row in one.rows),
            ranks=tuple(ranks for one in found for ranks in one.ranks),
            owners=tuple(place for place, one in enumerate(found) for _ in one.rows),
        )

    @classmethod
    def _of_one(cls, earlier: object, most: int) -> Self:
        if isinstance(earlier, EarlierStudy):
            state, source = earlier.state, str(earlier.directory or "the earlier study")
        elif isinstance(earlier, str | Path):
            ledger = open_ledger(earlier, create=False)
            try:
                # Read here and closed: what the earlier study learns later must not change proposals.
                state, source = state_of(ledger), str(earlier)
            finally:
                ledger.close()
        else:
            raise SearchError(
                f"warm_start: got {earlier!r}; allowed: a study, as of tw.Study.open('runs/old'), its directory, or "
                "a list of them"
            )
        rows, ranks, complete = _ranked(state)
        if not complete:
            raise SearchError(
                f"warm_start: {source} has 0 completed trials; allowed: one or more, or leave warm_start out"
            )
        chosen = _choose_rows(ranks, most)
        return cls(
            sources=(source,),
            rows=tuple(rows[i] for i in chosen),
            ranks=tuple(tuple(ranks[i].tolist()) for i in chosen),
            owners=(0,) * len(chosen),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data from which `of` makes an equal object."""
        return {
            "sources": list(self.sources),
            "rows": [dict(row) for row in self.rows],
            "ranks": [list(ranks) for ranks in self.ranks],
            "owners": list(self.owners),
        }


Earlier = EarlierStudy | WarmStart | Mapping[str, Any] | str | Path


def _ranked(state: State) -> tuple[list[Mapping[str, Any]], Array, int]:
    """Return the ended trials of a state by number, their ranks [trials, objectives], and how many completed.

    One that was stopped or failed ranks behind those that completed.
    """
    rows: list[Mapping[str, Any]] = []
    scores = []
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
    ranks: Array = np.array([_mean_ranks(column) for column in zip(*scores, strict=True)]).T
    return rows, ranks, sum(score[0][0] == 0 for score in scores)


def _choose_rows(ranks: Array, most: int) -> NDArray[np.intp]:
    """Return the places of at most `most` rows of all qualities."""
    # A fifth are the best, the rest an even sample of all qualities: the forest must see bad rows too.
    chosen = _best(ranks, most // 5)
    rest = np.setdiff1d(np.argsort(ranks.mean(axis=1), kind="stable"), chosen, assume_unique=True)
    # Of the rest as many as there is room for, evenly spread.
    places = np.linspace(0, len(rest) - 1, min(len(rest), most - len(chosen))).round().astype(np.intp)
    return np.sort(np.concatenate([chosen, rest[np.unique(places)]]))


class WarmStartRows:
    """Earlier experience as rows of one space, which some of its parameters are shared with."""

    def __init__(self, experience: WarmStart, space: Space, seed: int, objectives: int) -> None:
        ranks, owners = np.array(experience.ranks), np.array(experience.owners)
        if ranks.shape[1] != objectives:
            raise SearchError(
                f"warm_start: {' and '.join(experience.sources)} has {ranks.shape[1]} objectives, this study "
                f"{objectives}; allowed: as many, or leave warm_start out"
            )
        # A row with a value outside of the new space says nothing about it.
        latent, inside = _read_rows(experience.rows, space)
        for owner, source in enumerate(experience.sources):
            here = owners == owner
            _check_shared(space, source, compress(experience.rows, here), within=bool(inside[here].any()))
        latent, self.ranks, self.owners = latent[inside], ranks[inside], owners[inside]
        # What the earlier space did not have, or was inactive there, says nothing: it is drawn.
        filled = np.where(np.isnan(latent), space.latent(rng(seed, "transfer", 0), len(latent)), latent)
        self.rows: Array = space.settle(filled)
        # The best of each earlier study opens the new one, with middle values for what it did not have.
        of_each = [np.flatnonzero(self.owners == owner) for owner in range(len(experience.sources))]
        best = latent[[places[_best(self.ranks[places], 1)[0]] for places in of_each]]
        middle = space.quantile(np.full((1, space.dimension), 0.5))
        self.best: Array = space.settle(np.where(np.isnan(best), middle, best))  # [sources, columns]
        self._latent = latent
        self._judged: dict[tuple[int, int], NDArray[np.bool_]] = {}  # the last answer of `trusted`

    def trusted(self, view: SearchView) -> NDArray[np.bool_]:
        """Return which rows [recalled] are of studies that the results of a view do not contradict.

        A study contradicts if its ranks around the first 4, 8, 16, 32 or 64 completed trials and their losses go
        against each other, beyond what chance does in one of five cases (Spearman's coefficient).
        """
        complete = np.flatnonzero(view.complete & ~view.failed)
        count = max((count for count in _JUDGED if count <= len(complete)), default=0)
        known = self._judged.get((count, view.revision))
        if known is not None:
            return known
        trusted = np.ones(len(self.rows), dtype=np.bool_)
        if count:
            rows, losses = view.rows[complete[:count]], view.losses[complete[:count]]
            found = np.mean([_mean_ranks(column[:, None]) for column in losses.T], axis=0)
            for owner in np.unique(self.owners):
                here = np.flatnonzero(self.owners == owner)
                apart = _distances(view.space, rows, self._latent[here])
                near = np.argsort(apart, axis=1, kind="stable")[:, :_NEAREST]
                foreseen = self.ranks[here].mean(axis=1)[near].mean(axis=1)
                trusted[here] = _rank_correlation(foreseen, found) >= _AGAINST / np.sqrt(count - 1.0)
        self._judged = {(count, view.revision): trusted}
        return trusted


def _check_shared(space: Space, source: str, rows: Iterable[Mapping[str, Any]], *, within: bool) -> None:
    """Raise SearchError if a study shares no parameter with the space, or has no row `within` it."""
    theirs = dict.fromkeys(name for row in rows for name in row)
    ours = [column.name for column in space.columns]
    if theirs.keys().isdisjoint(ours):
        raise SearchError(
            f"warm_start: {source} has {', '.join(theirs)}, this study {', '.join(ours)}: they share nothing"
        )
    if not within:
        raise SearchError(f"warm_start: no configuration of {source} lies within this study's space")


def _distances(space: Space, rows: Array, others: Array) -> Array:
    """Return the distances [rows, others]: differences of units, 1 for other choices, 0 where a value is unknown."""
    choice = np.array([column.kind == "choice" for column in space.columns])
    apart = np.nan_to_num(np.abs(rows[:, None, :] - others[None]))
    found: Array = np.where(choice, apart > 0.0, apart).sum(axis=2)
    return found


def _rank_correlation(first: Array, second: Array) -> float:
    """Return Spearman's coefficient, 0 where one of both is constant."""
    ranks = np.stack([_mean_ranks(column[:, None]) for column in (first, second)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    norm = float(np.sqrt((ranks**2).sum(axis=1).prod()))
    return float(ranks[0] @ ranks[1]) / norm if norm else 0.0


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


def _mean_ranks(scores: Sequence[tuple[float, ...]] | Array) -> Array:
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

"""The library: what the trials of a study have left, checked to be of the same rows, ready for selection."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from trainwright.ensemble.candidates import Candidates, scorer_of
from trainwright.ensemble.entry import Member, read_member
from trainwright.ensemble.front import Front, Strategy, point_of, points_of
from trainwright.ensemble.greedy import top
from trainwright.ensemble.metrics import Array, Metric, metric_of
from trainwright.errors import EnsembleError, MixedSplitsError
from trainwright.ledger import State, open_ledger, state_of

__all__ = ["Library"]


class Library:
    """Members in ascending trial number; `excluded` maps the trials that were left out to the reason."""

    def __init__(self, members: Iterable[Member], excluded: Mapping[int, str] | None = None) -> None:
        self.members = tuple(sorted(members, key=lambda member: member.trial))
        self.excluded = dict(excluded or {})
        if not self.members:
            reason = "; ".join(f"trial {trial}: {why}" for trial, why in list(self.excluded.items())[:1])
            raise EnsembleError(
                "Library: got no member; allowed: at least one trial that left its predictions; call tw.ensemble.leave "
                f"in the training function{f' (left out: {len(self.excluded)}, {reason})' if reason else ''}"
            )
        _refuse_mixed(self.members)

    @classmethod
    def open(cls, directory: str | Path) -> "Library":
        """Return the library of the study in a folder; damaged members are left out, mixed splits refused."""
        return cls.of(state_of(open_ledger(directory)), directory)

    @classmethod
    def of(cls, state: State, directory: str | Path) -> "Library":
        """Return the library of a study's state: of each trial the entry of the highest lease's latest epoch."""
        members: list[Member] = []
        excluded: dict[int, str] = {}
        for number, trial in sorted(state.trials.items()):
            if trial.offered:
                offer = max(trial.offered.values(), key=lambda offer: (offer.lease, offer.epoch))
                try:
                    members.append(read_member(Path(directory) / offer.path, offer.digests, trial=number))
                except EnsembleError as error:
                    excluded[number] = str(error)
        return cls(members, excluded)

    def select(self, strategy: Strategy, metric: str = "cross_entropy", split: str = "selection") -> Front:
        """Return the front of the ensembles that a strategy finds, by a metric on one split's kept predictions."""
        chosen = metric_of(metric, self.members[0].output)
        candidates, excluded = self.candidates(chosen, split)
        scorer = scorer_of(candidates, chosen)
        baselines = {
            "single best" if len(picks) == 1 else f"top-{len(picks)}": point_of(candidates, picks, loss)
            for picks, loss in top(candidates, scorer, strategy.max_members)
        }
        return Front(
            points=points_of(candidates, strategy.pool(candidates, scorer)),
            baselines=baselines,
            library={member.trial: member for member in self.members},
            metric=metric,
            split=split,
            excluded={**self.excluded, **excluded},
        )

    def candidates(self, metric: Metric, split: str) -> tuple[Candidates, dict[int, str]]:
        """Return what selection by a metric needs of the members, and why some were left out.

        Cross-entropy reads the true class's probability alone; other metrics memory-map the predictions.
        """
        kept: list[tuple[Member, Array]] = []
        excluded: dict[int, str] = {}
        timed = any(member.seconds_per_row is not None for member in self.members)
        sized = any(member.weight_bytes is not None for member in self.members)
        for member in self.members:
            if (timed and member.seconds_per_row is None) or (sized and member.weight_bytes is None):
                excluded[member.trial] = (
                    "its cost is unknown, others' is not; give model and sample to tw.ensemble.leave"
                )
                continue
            try:
                kept.append((member, member.predictions(split) if metric.of_true is None else member.true(split)))
            except EnsembleError as error:
                if split not in member.splits:
                    raise
                excluded[member.trial] = str(error)
        if not kept:
            trial, why = next(iter(excluded.items()))
            raise EnsembleError(f"Library.select: got no usable member (trial {trial}: {why}); allowed: at least one")
        members = [member for member, _ in kept]
        _refuse_mixed_devices(members)
        arrays = [array for _, array in kept]
        return Candidates(
            trials=np.array([member.trial for member in members]),
            targets=members[0].targets(split),
            true=None if metric.of_true is None else np.stack(arrays),
            predictions=() if metric.of_true is not None else arrays,
            seconds=_column([member.seconds_per_row for member in members]),
            sizes=_column([member.weight_bytes for member in members]),
        ), excluded


def _column(values: list[float | None] | list[int | None]) -> Array | None:
    return None if any(value is None for value in values) else np.array(values, dtype=np.float64)


def _refuse_mixed(members: tuple[Member, ...]) -> None:
    for name in sorted({name for member in members for name in member.splits}):
        groups: dict[str, list[int]] = {}
        for member in members:
            split = member.splits.get(name)
            kind = f"{split.digest[:8]} ({split.rows} rows, {split.columns} {member.output})" if split else "not left"
            groups.setdefault(kind, []).append(member.trial)
        if len(groups) > 1:
            listed = "; ".join(f"{kind}: {_some(trials)}" for kind, trials in groups.items())
            raise MixedSplitsError(
                f"split {name!r}: got {len(groups)} different sets of rows: {listed}; allowed: one; leave the same "
                "rows and targets in every trial"
            )


def _some(trials: list[int]) -> str:
    more = f" and {len(trials) - 5} more" if len(trials) > 5 else ""
    return f"trial{'s' if len(trials) > 1 else ''} {', '.join(map(str, trials[:5]))}{more}"


def _refuse_mixed_devices(members: list[Member]) -> None:
    groups: dict[str, list[int]] = {}
    for member in members:
        if member.device is not None:
            groups.setdefault(member.device, []).append(member.trial)
    if len(groups) > 1:
        listed = "; ".join(f"{device}: {_some(trials)}" for device, trials in groups.items())
        raise EnsembleError(
            f"Library.select: got seconds measured on different devices ({listed}); allowed: one kind of device"
        )

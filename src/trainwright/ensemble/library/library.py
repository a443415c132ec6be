"""The library of trained models that the trials of a study have left, checked to predict the same rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainwright.ensemble.library.member import Member, Split, read_member
from trainwright.ensemble.library.predictions import Output, check_stored, digest_of
from trainwright.ensemble.metrics import Array, Metric, MetricLike, default_metric, find_metric
from trainwright.ensemble.selection.candidates import Candidates, make_scorer
from trainwright.ensemble.selection.front import Front, find_front, make_point
from trainwright.ensemble.selection.greedy import BudgetedGreedy, cost_columns, find_baselines
from trainwright.errors import EmptyLibraryError, EnsembleError, MixedSplitsError
from trainwright.ledger import State, TrialState, open_ledger, state_of
from trainwright.ledger.trials import Offer
from trainwright.pareto import non_dominated
from trainwright.randomness import rng

__all__ = ["SEEN", "Library", "find_newest_offer", "split_rows"]


SEEN = "validation"  # the split's name
_TURNS = ("selection", "selection", "selection", "calibration", "test")  # 60 %, 20 %, 20 %


class Library:
    """Members in ascending trial number and epoch; `excluded` maps the trials that were left out to the reason.

    Where the trials left a split "validation" and no other, its rows are divided into "selection" (60 %), "calibration"
    and "test" (20 % each) as well, with equal shares of each class; `rows_seen_by_search` then says so.
    """

    def __init__(self, members: Iterable[Member], excluded: Mapping[int, str] | None = None) -> None:
        self.members = tuple(sorted(members, key=lambda member: (member.trial, member.epoch)))
        self.excluded = dict(excluded or {})
        if not self.members:
            reason = "; ".join(f"trial {trial}: {why}" for trial, why in list(self.excluded.items())[:1])
            raise EmptyLibraryError(
                "Library: got no member; allowed: at least one trial that left its predictions; call tw.ensemble.leave "
                f"in the training function{f' (left out: {len(self.excluded)}, {reason})' if reason else ''}"
            )
        _refuse_mixed(self.members)
        self.members = split_rows(self.members)

    @classmethod
    def open(cls, directory: str | Path) -> "Library":
        """Return the library of the study in a folder; damaged members are left out, mixed splits refused."""
        return cls.of(state_of(open_ledger(directory)), directory)

    @classmethod
    def of(cls, state: State, directory: str | Path) -> "Library":
        """Return the library of a study's state: of each trial the newest entries, as many as it says to keep."""
        # A damaged entry costs its trial, not the library.
        members: list[Member] = []
        excluded: dict[int, str] = {}
        for number, trial in sorted(state.trials.items()):
            if trial.offered:
                try:
                    members += _read_snapshots(trial, number, Path(directory))
                except EnsembleError as error:
                    excluded[number] = str(error)
        return cls(members, excluded)

    @property
    def output(self) -> Output:
        """Kind of the predictions: "classes", "values", or "moments" (mean and variance)."""
        return self.members[0].output

    @property
    def rows_seen_by_search(self) -> bool:
        """Say whether the search used the rows for selection and testing, so that all losses are optimistic."""
        return any(split.source is not None for split in self.members[0].splits.values())

    def top(self, count: int, metric: MetricLike | None = None, split: str = "selection") -> "Library":
        """Return the library of the `count` best members on a split, and those that none beats in loss and costs."""
        chosen = find_metric(metric or default_metric(self.output), self.output)
        candidates, excluded = self.candidates(chosen, split)
        losses = make_scorer(candidates, chosen).losses((), np.arange(len(candidates)))
        seconds, sizes = cost_columns(candidates)
        # Whatever their loss, members that are cheapest for it may be picked under a budget.
        stay = non_dominated(np.stack([losses, seconds, sizes], axis=1))
        # The last key counts most: loss, then seconds, then trial number.
        stay[np.lexsort((candidates.trials, seconds, losses))[:count]] = True
        members = [candidates.members[place] for place in np.flatnonzero(stay)]
        return Library(members, {**self.excluded, **excluded})

    def select(self, strategy: BudgetedGreedy, metric: MetricLike | None = None, split: str = "selection") -> Front:
        """Return the front of the ensembles that a strategy finds, by a metric on one split's kept predictions.

        The metric is a name, or a function (predictions, targets) -> a loss. Without it, it is the likelihood that fits
        the predictions: "cross_entropy", "normal_nll" for means and variances, "squared_error" for values.
        """
        chosen = find_metric(metric or default_metric(self.output), self.output)
        # Reads predictions once for all runs of the strategy.
        candidates, excluded = self.candidates(chosen, split)
        scorer = make_scorer(candidates, chosen)
        return Front(
            points=find_front(candidates, strategy.pool(candidates, scorer)),
            baselines={
                name: make_point(candidates, picks, loss)
                for name, picks, loss in find_baselines(candidates, scorer, strategy.max_members)
            },
            scored_by=chosen,
            split=split,
            excluded={**self.excluded, **excluded},
            strategy=strategy,
            candidates=candidates,
        )

    def candidates(self, metric: Metric, split: str) -> tuple[Candidates, dict[int, str]]:
        """Return what selection by a metric needs of the members, and why some were left out.

        Cross-entropy reads the true class's probability alone; for other metrics predictions are mapped one at a time.
        """
        members: list[Member] = []
        true: list[Array] = []
        excluded: dict[int, str] = {}
        timed = any(member.seconds_per_row is not None for member in self.members)
        # A cost that only some members know cannot be compared, so those without it are left out.
        sized = any(member.weight_bytes is not None for member in self.members)
        for member in self.members:
            if (timed and member.seconds_per_row is None) or (sized and member.weight_bytes is None):
                excluded[member.trial] = (
                    "its cost is unknown, others' is not; give model and sample to tw.ensemble.leave, and files= where "
                    "the model cannot be pickled"
                )
                continue
            try:
                if metric.of_true is None:
                    check_stored(member.predictions(split), member.output)  # verified here, and closed again
                else:
                    found = member.true(split)
                    check_stored(found, "true")
                    true.append(found)
            except EnsembleError as error:
                if split not in member.splits:
                    raise
                excluded[member.trial] = str(error)
                continue
            members.append(member)
        if not members:
            trial, why = next(iter(excluded.items()))
            raise EmptyLibraryError(
                f"Library.select: got no usable member (trial {trial}: {why}); allowed: at least one"
            )
        # Seconds on different kinds of devices cannot be compared, so they count as unknown.
        devices = {member.device for member in members if member.device is not None}
        return Candidates(
            members=tuple(members),
            trials=np.array([member.trial for member in members]),
            targets=members[0].targets(split),
            true=np.stack(true) if true else None,
            read=None if true else lambda index: members[index].mapped(split),
            seconds=None if len(devices) > 1 else _make_column([member.seconds_per_row for member in members]),
            sizes=_make_column([member.weight_bytes for member in members]),
        ), excluded


def find_newest_offer(trial: TrialState) -> Offer:
    """Return the newest entry of a trial that has left some: the latest epoch of the highest lease."""
    return max(trial.offered.values(), key=lambda offer: (offer.lease, offer.epoch))


def _read_snapshots(trial: TrialState, number: int, folder: Path) -> list[Member]:
    """Return a trial's newest entry, and as many earlier ones as it says to keep."""
    offers = sorted(trial.offered.values(), key=lambda offer: (offer.lease, offer.epoch), reverse=True)
    newest = read_member(folder / offers[0].path, offers[0].digests, trial=number)
    earlier = offers[1 : newest.snapshots]
    return [newest, *(read_member(folder / offer.path, offer.digests, trial=number) for offer in earlier)]


def _make_column(values: list[float | None] | list[int | None]) -> Array | None:
    return None if any(value is None for value in values) else np.array(values, dtype=np.float64)


def _refuse_mixed(members: tuple[Member, ...]) -> None:
    """Refuse members that were left of other rows, or whose columns mean other classes."""
    for name in sorted({name for member in members for name in member.splits}):
        kinds = [
            f"{split.digest[:8]} ({split.rows} rows, {split.columns} {member.output})" if split else "not left"
            for member in members
            for split in [member.splits.get(name)]
        ]
        mend = "leave the same rows and targets in every trial"
        _refuse_different(members, kinds, f"split {name!r}", "sets of rows", mend)
    orders = [", ".join(member.classes or ("not named",)) for member in members]
    _refuse_different(members, orders, "classes", "orders", "leave the same classes=, in the columns' order, in all")


def _refuse_different(members: Sequence[Member], kinds: Sequence[str], what: str, noun: str, mend: str) -> None:
    groups: dict[str, list[int]] = {}
    for kind, member in zip(kinds, members, strict=True):
        groups.setdefault(kind, []).append(member.trial)
    if len(groups) > 1:
        listed = "; ".join(f"{kind}: {_list_trials(trials)}" for kind, trials in groups.items())
        raise MixedSplitsError(f"{what}: got {len(groups)} different {noun}: {listed}; allowed: one; {mend}")


def _list_trials(trials: list[int]) -> str:
    more = f" and {len(trials) - 5} more" if len(trials) > 5 else ""
    return f"trial{'s' if len(trials) > 1 else ''} {', '.join(map(str, trials[:5]))}{more}"


def split_rows(members: Sequence[Member], seed: int = 0) -> tuple[Member, ...]:
    """Return members that left nothing but "validation" with its rows divided too, as all others are given.

    Classes are in all parts in equal shares as far as their numbers allow. The rows drawn depend on the seed alone.
    """
    if any(set(member.splits) != {SEEN} for member in members):
        return tuple(members)
    first = members[0]
    targets = first.targets(SEEN)
    # The same seed for every member: all are divided alike, whatever trial they come from.
    order = rng(seed, "divided validation rows", 0).permutation(len(targets))
    if first.output == "classes":
        order = order[np.argsort(targets[order], kind="stable")]  # rows of a class go to the parts in turn
    parts: dict[str, Array] = {
        name: np.sort(np.concatenate([order[at :: len(_TURNS)] for at, turn in enumerate(_TURNS) if turn == name]))
        for name in dict.fromkeys(_TURNS)
    }
    parts = {name: rows for name, rows in parts.items() if len(rows)}
    ids = first.row_ids(SEEN)
    # New digests, since a part of the rows is another set of rows.
    digests = {
        name: digest_of(first.data, name, first.output, targets[rows], rows if ids is None else ids[rows])
        for name, rows in parts.items()
    }
    return tuple(replace(member, splits={**member.splits, **_cut_split(member, parts, digests)}) for member in members)


def _cut_split(member: Member, parts: Mapping[str, Array], digests: Mapping[str, str]) -> dict[str, Split]:
    """Return the parts of a member's validation rows as splits."""
    whole = member.splits[SEEN]
    return {
        name: replace(whole, rows=len(places), digest=digests[name], source=SEEN, source_rows=whole.rows, places=places)
        for name, places in parts.items()
    }

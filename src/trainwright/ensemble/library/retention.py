"""What of a library stays on disk: a pure rule over who is there, which does not steer the search."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.errors import EnsembleError
from trainwright.pareto import non_dominated

__all__ = ["LibraryRetention", "Standing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What the rule knows of a member."""

    trial: int
    epoch: int  # how far it was trained
    loss: float  # on the selection rows
    seconds: float  # per row; 0 if not known
    bytes: float  # of weights; 0 if not known


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryRetention:
    """Keep the fully trained, of each lower rung the best share (cheap candidates), at most `library_top` of them.

    Members that none beats in loss, seconds and bytes together always stay, and so do those `pinned` by an ensemble.
    """

    library_top: int = 200
    rung_share: float = 0.2

    def __post_init__(self) -> None:
        if self.library_top < 1:
            raise EnsembleError(f"Retention.library_top: got {self.library_top!r}; allowed: an integer >= 1")
        if not 0.0 <= self.rung_share <= 1.0:
            raise EnsembleError(f"Retention.rung_share: got {self.rung_share!r}; allowed: a number from 0 to 1")

    def keep(self, members: Sequence[Standing], pinned: Collection[int] = ()) -> set[int]:
        """Return the trials that stay."""
        if not members:
            return set()
        axes = np.array([[one.loss, one.seconds, one.bytes] for one in members])
        always = {one.trial for one, best in zip(members, non_dominated(axes).tolist(), strict=True) if best}
        wanted: list[Standing] = []
        full = max(one.epoch for one in members)
        for epoch in sorted({one.epoch for one in members}):
            rung = sorted((one for one in members if one.epoch == epoch), key=_rank)
            wanted += rung if epoch == full else rung[: int(np.ceil(self.rung_share * len(rung)))]
        best = {one.trial for one in sorted(wanted, key=_rank)[: self.library_top]}
        return best | always | {one.trial for one in members if one.trial in set(pinned)}


def _rank(one: Standing) -> tuple[float, float, int]:
    return one.loss, one.seconds, one.trial

"""What of a library stays on disk: a pure rule over who is there, which does not steer the search."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from trainwright.errors import EnsembleError
from trainwright.pareto import non_dominated
from trainwright.settings import Settings
from trainwright.validators import integer, number

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
class LibraryRetention(Settings, error=EnsembleError):
    """Keep the fully trained, of each lower rung the best share (cheap candidates), at most `library_top` of them.

    Members that none beats in loss, seconds and bytes together always stay, and so do those `pinned` by an ensemble.
    """

    library_top: Annotated[int, integer(minimum=1), "most members"] = 200
    rung_share: Annotated[float, number(minimum=0, maximum=1), "share of each lower rung"] = 0.2

    def keep(self, members: Sequence[Standing], pinned: Collection[int] = ()) -> set[int]:
        """Return the trials that stay."""
        if not members:
            return set()
        axes = np.array([[one.loss, one.seconds, one.bytes] for one in members])
        # Whatever their loss, members that are cheapest for it may be picked under a budget.
        always = {one.trial for one, best in zip(members, non_dominated(axes).tolist(), strict=True) if best}
        wanted: list[Standing] = []
        full = max(one.epoch for one in members)
        for epoch in sorted({one.epoch for one in members}):
            rung = sorted((one for one in members if one.epoch == epoch), key=_rank_key)
            # Trials that were stopped early are cheap candidates for diversity, but only the best of each
            # rung.
            wanted += rung if epoch == full else rung[: int(np.ceil(self.rung_share * len(rung)))]
        best = {one.trial for one in sorted(wanted, key=_rank_key)[: self.library_top]}
        return best | always | {one.trial for one in members if one.trial in set(pinned)}


def _rank_key(one: Standing) -> tuple[float, float, int]:
    return one.loss, one.seconds, one.trial

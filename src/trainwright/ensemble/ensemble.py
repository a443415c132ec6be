"""An ensemble: a few members of the library, their weights, and what they score together."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwright.ensemble.combine import Rule, combine
from trainwright.ensemble.entry import Member
from trainwright.ensemble.means import Weighted
from trainwright.ensemble.metrics import SMALLEST, Array, metric_of
from trainwright.ensemble.predictions import normalised

__all__ = ["Ensemble"]


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Members with weights that sum to 1, in ascending trial number; one member is an ensemble too."""

    members: tuple[Member, ...]
    weights: tuple[float, ...]
    rule: Rule = field(default_factory=Weighted)

    @property
    def cost_seconds(self) -> float | None:
        """Seconds per row at batch 128, summed over the members; None if a member's were not measured."""
        seconds = [member.seconds_per_row for member in self.members if member.seconds_per_row is not None]
        return math.fsum(seconds) if len(seconds) == len(self.members) else None

    @property
    def bytes(self) -> int | None:
        """Bytes of the members' parameters and buffers; None if a member's are unknown."""
        sizes = [member.weight_bytes for member in self.members if member.weight_bytes is not None]
        return sum(sizes) if len(sizes) == len(self.members) else None

    def predictions(self, split: str = "test") -> Array:
        """Return the combined kept predictions [N, C] of a split in float64, rows in ascending row id."""
        kept = (member.predictions(split) for member in self.members)  # one member at a time in memory
        classes = self.members[0].output == "classes"
        return combine(self.rule, (normalised(rows) if classes else rows for rows in kept), self.weights)

    def score(self, split: str = "test", metric: str = "accuracy") -> float:
        """Return a metric ("accuracy", "cross_entropy" or "squared_error") of the kept predictions on a split.

        "test" rows are read here and nowhere else: no choice is made on them.
        """
        chosen = metric_of(metric, self.members[0].output)
        if chosen.of_true is not None and self.rule.linear:
            true = (member.true(split).clip(SMALLEST)[:, None] for member in self.members)
            return float(chosen.of_true(combine(self.rule, true, self.weights)[:, 0]).mean())
        return chosen.score(self.predictions(split), self.members[0].targets(split))

    def table(self) -> list[Mapping[str, Any]]:
        """Return one row per member for display: the heaviest first."""
        rows = [
            {
                "trial": member.trial,
                "epoch": member.epoch,
                "weight": weight,
                "seconds_per_row": member.seconds_per_row,
                "bytes": member.weight_bytes,
                "parameter_count": member.parameter_count,
                "params": dict(member.params),
            }
            for member, weight in zip(self.members, self.weights, strict=True)
        ]
        return sorted(rows, key=lambda row: (-row["weight"], row["trial"]))
